"""Passes notifications of the S3 server on to the processes that look: dispatchers, and the elected meta server.

    a batch file         the dispatcher that the catalog names for the store, by a call of its Flight port
    a schema snapshot    the tenant's row in the catalog, which the activation of waiting tenants reads

They look at once. Passing on is best effort: each of them looks by itself as well.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.flight as fl
import structlog

from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.tenants import note_schema_snapshot
from tistream.errors import FeedUnavailable, InvalidInput, TiStreamError
from tistream.feed.flight import Bearer, Locate
from tistream.feed.tls import FeedTlsFiles, connect
from tistream.feed.wire import LOOK, call_options, encode_files
from tistream.objectstore.layout import BatchKey
from tistream.objectstore.notifications import NotifiedObject, read_events
from tistream.runtime import metrics

log = structlog.get_logger(__name__)

CALL_S = 2.0

Look = Callable[[Sequence[BatchKey]], None]  #: makes dispatchers look for these files

_PASSED_ON, _IGNORED, _INVALID, _FAILED = (
    metrics.NOTIFICATIONS.labels(outcome) for outcome in ("passed_on", "ignored", "invalid", "failed")
)


class Notifications:
    """Reads messages of an S3 server and passes them on. Thread-safe."""

    def __init__(self, catalog: Catalog, look: Look, bucket: str, prefix: str) -> None:
        self._catalog, self._look, self._bucket, self._prefix = catalog, look, bucket, prefix

    def read(self, body: bytes) -> NotifiedObject:
        """What a message names. InvalidInput when it is none of an S3 server."""
        try:
            events = read_events(body, self._bucket, self._prefix)
        except InvalidInput:
            _INVALID.inc()
            raise
        _IGNORED.inc(events.ignored)
        return events

    def pass_on(self, written: Sequence[NotifiedObject]) -> None:
        """Make the processes look. An error is counted only."""
        files = [key for each in written for key in each.files]
        tenants = sorted({tenant for each in written for tenant in each.schemas})
        self._attempt(len(files), lambda: self._look(files))
        self._attempt(len(tenants), lambda: [note_schema_snapshot(self._catalog, tenant) for tenant in tenants])

    def _attempt(self, count: int, pass_on: Callable[[], object]) -> None:
        if not count:
            return
        try:
            pass_on()
        except TiStreamError as e:
            log.info("notifications not passed on", count=count, cause=str(e))
            _FAILED.inc(count)
        else:
            _PASSED_ON.inc(count)


class LookByFlight:
    """Calls dispatchers of other processes. Thread-safe."""

    def __init__(self, locate: Locate, bearer: Bearer, *, tls: FeedTlsFiles | None = None) -> None:
        self._locate, self._bearer, self._tls = locate, bearer, tls
        self._lock = threading.Lock()
        self._clients: dict[str, fl.FlightClient] = {}
        self._token = ""  # read again after a refused call

    def __call__(self, files: Sequence[BatchKey]) -> None:
        """Raises the last error, after every dispatcher was called."""
        of_address: dict[str, list[BatchKey]] = defaultdict(list)
        for key in files:
            if address := self._locate(key.tenant, key.store_id):
                of_address[address].append(key)
        failed: TiStreamError | None = None
        for address, keys in of_address.items():
            try:
                self._call(address, keys)
            except (pa.ArrowException, OSError) as e:
                self._forget(address)
                failed = FeedUnavailable("a dispatcher does not answer", address=address, cause=str(e).split("\n")[0])
        if failed is not None:
            raise failed

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.close()

    def _call(self, address: str, keys: Sequence[BatchKey]) -> None:
        with self._lock:
            client = self._clients.get(address)
            if client is None:
                client, _ = connect(address, self._tls)
                self._clients[address] = client
            token = self._token = self._token or self._bearer()
        for _ in client.do_action(fl.Action(LOOK, encode_files(keys)), call_options(token, timeout_s=CALL_S)):
            pass

    def _forget(self, address: str) -> None:
        """After a failed call: the token or the certificate may have been renewed, or the dispatcher has moved."""
        with self._lock:
            self._clients.pop(address, None)
            self._token = ""
