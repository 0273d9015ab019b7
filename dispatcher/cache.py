"""Bounded cache of decoded batch files, shared by all subscribers of a dispatcher.

A file is either *ahead* (read before any subscriber asked for it) or *taken* (handed out at least once). Taken files
are evicted first, least recently used first, because evicting a file ahead means reading it twice. Files ahead may fill
at most half of the bound; `room_ahead` says whether to read ahead. The newest entry always stays, so a file larger than
the bound still passes. Thread-safe.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from dispatcher.core.router import Directory
from tistream.ids import Tenant
from tistream.objectstore.layout import BatchKey


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedFile:
    key: BatchKey
    cut_ts: int
    directory: Directory
    bytes: int  #: of its Arrow buffers


class FileCache:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._lock = threading.Lock()
        self._taken: OrderedDict[BatchKey, DecodedFile] = OrderedDict()
        self._ahead: OrderedDict[BatchKey, DecodedFile] = OrderedDict()
        self._bytes = 0
        self._bytes_ahead = 0

    @property
    def bytes(self) -> int:
        return self._bytes

    def put(self, file: DecodedFile) -> None:
        """Add a file that was just read."""
        with self._lock:
            if file.key in self._taken or file.key in self._ahead:
                return
            self._ahead[file.key] = file
            self._bytes += file.bytes
            self._bytes_ahead += file.bytes
            while self._bytes > self.bytes_max and len(self._taken) + len(self._ahead) > 1:
                self._drop(next(iter(self._taken or self._ahead)))

    def take(self, key: BatchKey) -> DecodedFile | None:
        with self._lock:
            file = self._ahead.pop(key, None)
            if file is not None:
                self._bytes_ahead -= file.bytes
                self._taken[key] = file
            elif (file := self._taken.get(key)) is not None:
                self._taken.move_to_end(key)
            return file

    def holds(self, key: BatchKey) -> bool:
        """Whether the file is here; does not count as use."""
        with self._lock:
            return key in self._ahead or key in self._taken

    def room_ahead(self) -> bool:
        return self._bytes_ahead < self.bytes_max // 2

    def forget(self, tenant: Tenant, store_id: int, incarnation: int | None = None, after_seq: int = 0) -> None:
        """Drop the files of a store, or those of one incarnation behind `after_seq`."""
        with self._lock:
            for key in [*self._taken, *self._ahead]:
                mine = (key.tenant, key.store_id) == (tenant, store_id) and incarnation in (None, key.incarnation)
                if mine and key.seq > after_seq:
                    self._drop(key)

    def _drop(self, key: BatchKey) -> None:
        file = self._taken.pop(key, None)
        if file is None:
            file = self._ahead.pop(key)
            self._bytes_ahead -= file.bytes
        self._bytes -= file.bytes
