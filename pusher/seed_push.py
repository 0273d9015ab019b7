"""Writes a seed: the rows that existed at a timestamp, as files, then the manifest, then the word to the control plane.

Relations:

- nothing of a seed counts until the control plane has read its manifest, and the manifest is written last: a writer
  that was interrupted begins again, and what it wrote before is met again unchanged;
- a file that is there already is as good as ours if its rows are (another compressor may have packed them);
- rows are Arrow tables all the way.
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
    """What is asked of the bucket; see ObjectStore."""

    def put(self, key: str, data: bytes | memoryview) -> None: ...
    def get(self, key: str) -> bytes: ...


def push_seed(control: SeedControl, store: SeedBucket, ts: int, rows: Iterable[pa.Table], *, table_id: int = 0) -> None:
    """Write the rows (schema SEED, in key order) of the tenant, or of one table, and make them visible.

    Safe to repeat with the same rows. ObjectConflict when other rows are there for this timestamp."""
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
    """(n, bytes, segments) of the file as it is in the bucket."""
    name = str(file.key)
    try:
        store.put(name, file.data)
    except ObjectConflict:
        there = store.get(name)
        found, ours = SegmentFile.open(name, there), SegmentFile.open(name, file.data)
        count = len(ours.segments)
        if len(found.segments) != count or any(not found.read(i).equals(ours.read(i)) for i in range(count)):
            raise
        return file.n, len(there), found.segments
    return file.n, len(file.data), file.segments
