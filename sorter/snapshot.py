"""A task's buffered state as one segment file, and back.

    head        cluster, tenant, task, epoch, start_ts, upper, positions {store: {incarnation: [seq, closed]}}, write_id
    open        prewrites that are not decided         (doubt.OPEN)
    commits     commits that wait                      (doubt.COMMITS)
    ready       rows that wait for the watermark       (doubt.READY)
    slices      the watermark map                      (watermark.SLICES)
    waiting     watermark rows that wait               (watermark.WAITING)

A kind takes as many segments as it needs, in order; one without rows has none. The positions in the head are for people
and for a check: the catalog's, switched together with the pointer to this object, are the ones that count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from sorter.core import CoreSnapshot, Positions
from sorter.doubt import COMMITS, OPEN, READY
from sorter.watermark import SLICES, WAITING
from tistream.codec.segment_file import SegmentFile, SegmentFileWriter
from tistream.errors import CorruptObject
from tistream.ids import Position
from tistream.layout import SnapshotKey

KIND = "snapshot"
SEGMENT_BYTES = 256 << 20  #: a kind's rows are cut into segments of about this size

_KINDS = {"open": OPEN, "commits": COMMITS, "ready": READY, "slices": SLICES, "waiting": WAITING}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSnapshot:
    """A snapshot file that was read back."""

    task_id: int
    epoch: int  #: of the owner that wrote it
    state: CoreSnapshot


def build_snapshot_file(key: SnapshotKey, state: CoreSnapshot, write_id: str) -> bytes:
    """The bytes of the file. InvalidInput when the state does not fit one file."""
    writer = SegmentFileWriter(
        {
            "file": KIND,
            "cluster": key.tenant.cluster_id,
            "tenant": key.tenant.tenant_id,
            "task": key.task_id,
            "epoch": key.epoch,
            "start_ts": state.start_ts,
            "upper": state.upper,
            "positions": _plain(state.positions),
            "write_id": write_id,
        }
    )
    for kind in _KINDS:
        for part in _parts(getattr(state, kind)):
            writer.add(kind, part, task_id=key.task_id)
    return writer.finish()


def read_snapshot_file(name: str, data: bytes | memoryview) -> LoadedSnapshot:
    """The state in a file. CorruptObject when it is damaged or not a snapshot."""
    file = SegmentFile.open(name, data)
    if file.head.get("file") != KIND:
        raise CorruptObject("not a snapshot", object=name, found=file.head.get("file"))
    unknown = {s.kind for s in file.segments} - set(_KINDS)
    if unknown:
        raise CorruptObject("a snapshot holds an unknown kind of segment", object=name, kinds=sorted(unknown))
    tables = {kind: _read(file, kind, schema) for kind, schema in _KINDS.items()}
    try:
        head = file.head
        state = CoreSnapshot(
            start_ts=int(head["start_ts"]), upper=int(head["upper"]), positions=_positions(head["positions"]), **tables
        )
        return LoadedSnapshot(task_id=int(head["task"]), epoch=int(head["epoch"]), state=state)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise CorruptObject("the head of a snapshot is malformed", object=name, cause=repr(e)) from e


def _read(file: SegmentFile, kind: str, schema: pa.Schema) -> pa.Table:
    parts = [file.read(s.number, schema) for s in file.segments_of(kind)]
    return pa.concat_tables(parts) if parts else schema.empty_table()


def _parts(table: pa.Table) -> Iterator[pa.Table]:
    """The rows in pieces of about SEGMENT_BYTES, each of which fits one record batch."""
    if not table.num_rows:
        return
    pieces = -(-table.nbytes // SEGMENT_BYTES)
    rows = max(1, -(-table.num_rows // max(1, pieces)))
    for at in range(0, table.num_rows, rows):
        yield table.slice(at, rows)


def _plain(positions: Positions) -> dict[str, dict[str, list[int]]]:
    return {
        str(store): {str(incarnation): [p.seq, int(p.closed)] for incarnation, p in lives.items()}
        for store, lives in positions.items()
    }


def _positions(plain: dict[str, dict[str, list[int]]]) -> dict[int, dict[int, Position]]:
    return {int(store): {int(i): _position(p) for i, p in lives.items()} for store, lives in plain.items()}


def _position(plain: list[int]) -> Position:
    seq, closed = plain
    return Position(seq=seq, closed=bool(closed))
