"""Writes a seed: the rows of a timestamp as files, then the manifest, then its registration with the control plane.

- The manifest is written last and nothing counts before the control plane has read it: an interrupted writer starts
  over, and finds the files of its first attempt unchanged;
- an existing file is accepted if it has the same rows (another compressor may have packed them);
- rows stay Arrow tables throughout.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import pyarrow as pa
import structlog

from pusher.control import SeedControl
from tistream.codec.seed_file import SeedBuilder, SeedFile, build_manifest, manifest_key
from tistream.codec.segment_file import SegmentFile, SegmentInfo
from tistream.errors import ObjectConflict

log = structlog.get_logger(__name__)


class SeedBucket(Protocol):
    """The part of ObjectStore that a seed needs."""

    def put(self, key: str, data: bytes | memoryview) -> None: ...
    def get(self, key: str) -> bytes: ...


def push_seed(control: SeedControl, store: SeedBucket, ts: int, rows: Iterable[pa.Table], *, table_id: int = 0) -> None:
    """Write the rows (schema SEED, in key order) of the tenant, or of one table, and make them visible.

    Repeatable with the same rows. ObjectConflict when the bucket has different rows for this timestamp."""
    builder = SeedBuilder(control.tenant, ts, table_id)
    written: list[tuple[int, int, tuple[SegmentInfo, ...]]] = []
    for part in rows:
        written += [_put(store, file) for file in builder.add(part)]
    written += [_put(store, file) for file in builder.finish()]
    manifest = manifest_key(control.tenant, ts, table_id)
    store.put(str(manifest), build_manifest(control.tenant, ts, table_id, written))
    control.add_seed(ts, table_id)
    log.info("seed written", ts=ts, table_id=table_id, files=len(written))


def _put(store: SeedBucket, file: SeedFile) -> tuple[int, int, tuple[SegmentInfo, ...]]:
    """(n, bytes, segments) of the file as stored in the bucket."""
    name = str(file.key)
    try:
        store.put(name, file.data)
    except ObjectConflict:
        stored = store.get(name)
        theirs, ours = SegmentFile.open(name, stored), SegmentFile.open(name, file.data)
        count = len(ours.segments)
        if len(theirs.segments) != count or any(not theirs.read(i).equals(ours.read(i)) for i in range(count)):
            raise
        return file.n, len(stored), theirs.segments
    return file.n, len(file.data), file.segments
