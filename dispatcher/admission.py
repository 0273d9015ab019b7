"""Bounds what batch files take while they are read: usual ones side by side, large ones one at a time.

A file is large when it is stored as, or unpacks to, more than BATCH_FILE_USUAL_BYTES. Both sizes are known before
memory of that size is taken. So the threads of a dispatcher hold at most one large file, and a usual one each.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tistream.limits import BATCH_FILE_BYTES_MAX, BATCH_FILE_USUAL_BYTES
from tistream.objectstore.keys import check_size
from tistream.objectstore.protocol import Admit


class LargeFiles:
    """Shared by the readers of a process."""

    def __init__(self) -> None:
        self._turn = threading.Lock()

    @contextmanager
    def reading(self, key: str) -> Iterator[Admit]:
        """A function to call with each size of a file before memory is taken for it: waits for its turn when the file
        is large. CorruptObject when it is larger than any batch file."""
        held = False

        def admit(size: int) -> None:
            nonlocal held
            check_size(key, size, BATCH_FILE_BYTES_MAX)
            if size > BATCH_FILE_USUAL_BYTES and not held:
                self._turn.acquire()
                held = True

        try:
            yield admit
        finally:
            if held:
                self._turn.release()
