"""The state of a task as a segment file: the small object that its catalog row points to.

    head        cluster, tenant, task, epoch, start_ts, durable_ts, next_row_no, layout, write_id,
                positions {store: {incarnation: [seq, closed]}}
    runs        the groups with living rows, each in this or another object              (RUNS)
    told        subscriptions that became ready after their rows were saved              (saved.LATE_READY)
    slices      the watermark map                                                        (watermark.SLICES)
    waiting     waiting watermark rows                                                   (watermark.WAITING)
    promised    what each subscription has promised                                      (promised.PROMISED)

Reading it loads no rows: they become `saved.SavedRun`. A kind has as many segments as it needs, in order, or none.
The positions in the head are for people and for a check: the catalog's, switched together with the pointer to this
object, are authoritative.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from sorter.core.promised import PROMISED
from sorter.core.task_core import CoreSnapshot
from sorter.core.watermark import SLICES, WAITING
from sorter.rows.batch_rows import from_arrow
from sorter.rows.run import PARTS
from sorter.rows.saved import LATE_READY, Group, ObjectPart, SavedRun, bits_of, flags_of, states_of
from tistream.codec.segment_file import SegmentFile, SegmentFileWriter
from tistream.errors import CorruptObject
from tistream.ids import Position
from tistream.model.arrays import Mask
from tistream.model.positions import Positions
from tistream.objectstore.layout import SnapshotKey

KIND = "snapshot"
LAYOUT = 2  #: 1 held all rows in the file itself
SEGMENT_BYTES = 256 << 20  #: a kind's rows are cut into segments of about this size

#: kinds of rows in a state, and their columns of bytes
ROW_KINDS = {
    "open": ("key", "value", "old_value"),
    "commits": ("key", "value"),
    "ready": ("key", "value", "old_value"),
}
RUNS = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("object_key", pa.string(), nullable=False),
        pa.field("object_bytes", pa.uint64(), nullable=False),
        pa.field("rows", pa.uint32(), nullable=False),
        pa.field("alive", pa.binary()),  # a bit for each row, the first one lowest; null = all
        pa.field("first_key", pa.binary(), nullable=False),
        pa.field("last_key", pa.binary(), nullable=False),
        pa.field("facts", pa.binary(), nullable=False),  # JSON of saved.Group; "unsaid" is `unready`
    ]
)
_KINDS = {"runs": RUNS, "told": LATE_READY, "slices": SLICES, "waiting": WAITING, "promised": PROMISED}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSnapshot:
    task_id: int
    epoch: int  #: of the task owner that wrote it
    state: CoreSnapshot


def named(key: SnapshotKey) -> dict[str, object]:
    return {
        "cluster": key.tenant.cluster_id,
        "tenant": key.tenant.tenant_id,
        "task": key.task_id,
        "epoch": key.epoch,
    }


def build_state_file(key: SnapshotKey, state: CoreSnapshot, groups: Mapping[Group, Mask], write_id: str) -> bytes:
    """The bytes of the file. `groups` hold all rows of the state, with their current flags."""
    writer = SegmentFileWriter(
        {
            "file": KIND,
            "layout": LAYOUT,
            **named(key),
            "start_ts": state.start_ts,
            "durable_ts": state.durable_ts,
            "next_row_no": state.next_row_no,
            "positions": _plain(state.positions),
            "write_id": write_id,
        }
    )
    runs = pa.Table.from_pylist([_run_row(group, alive) for group, alive in groups.items()], schema=RUNS)
    tables = {
        "runs": runs,
        "told": state.late_ready.to_arrow().cast(LATE_READY),
        "slices": state.slices,
        "waiting": state.waiting,
        "promised": state.promised,
    }
    for kind in _KINDS:
        for part in _parts(tables[kind]):
            writer.add(kind, part, task_id=key.task_id)
    return writer.finish()


def read_state_file(name: str, data: bytes | memoryview) -> LoadedSnapshot:
    """The state in a file. CorruptObject when it is damaged or not a snapshot."""
    file = _opened(name, data)
    unknown = {s.kind for s in file.segments} - set(_KINDS)
    if unknown:
        raise CorruptObject("unknown kind of segment in a snapshot", object=name, kinds=sorted(unknown))
    tables = {kind: _read(file, kind, schema) for kind, schema in _KINDS.items()}
    late_ready = from_arrow(tables["told"])
    runs: dict[str, list[SavedRun]] = {kind: [] for kind in ROW_KINDS}
    try:
        for row in tables["runs"].to_pylist():
            group = _group(row)
            runs[group.kind].append(SavedRun(group, flags_of(row["alive"], group.rows), late_ready))
    except (KeyError, TypeError, ValueError) as e:
        raise CorruptObject("malformed runs in a snapshot", object=name, cause=repr(e)) from e
    try:
        head = file.head
        state = CoreSnapshot(
            start_ts=int(head["start_ts"]),
            durable_ts=int(head["durable_ts"]),
            positions=_positions(head["positions"]),
            next_row_no=int(head["next_row_no"]),
            late_ready=late_ready,
            slices=tables["slices"],
            waiting=tables["waiting"],
            promised=tables["promised"],
            **{kind: states_of(groups) for kind, groups in runs.items()},
        )
        return LoadedSnapshot(task_id=int(head["task"]), epoch=int(head["epoch"]), state=state)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise CorruptObject("malformed head of a snapshot", object=name, cause=repr(e)) from e


def objects_named_by(name: str, data: bytes | memoryview) -> frozenset[str]:
    """The keys of the objects that hold the rows of a state."""
    return frozenset(_read(_opened(name, data), "runs", RUNS)["object_key"].to_pylist())


def _opened(name: str, data: bytes | memoryview) -> SegmentFile:
    file = SegmentFile.open(name, data)
    if file.head.get("file") != KIND:
        raise CorruptObject("not a snapshot", object=name, found=file.head.get("file"))
    if file.head.get("layout") != LAYOUT:
        layout = file.head.get("layout", 1)
        raise CorruptObject("unsupported snapshot layout", object=name, layout=layout, wanted=LAYOUT)
    return file


def _run_row(group: Group, alive: Mask) -> dict[str, Any]:
    facts = {
        "parts": {n: [p.number, p.offset, p.length, p.raw_length, p.crc] for n, p in group.parts.items()},
        "spans": group.spans,
        "same": group.same,
        "cut": group.cut,
        "unsaid": group.unready,
    }
    return {
        "kind": group.kind,
        "object_key": group.object_key,
        "object_bytes": group.object_bytes,
        "rows": group.rows,
        "alive": bits_of(alive),
        "first_key": group.keys[0],
        "last_key": group.keys[1],
        "facts": orjson.dumps(facts),
    }


def _group(row: Mapping[str, Any]) -> Group:
    facts = orjson.loads(row["facts"])
    names = ("number", "offset", "length", "raw_length", "crc")
    parts = {
        name: ObjectPart(**dict(zip(names, map(int, place), strict=True))) for name, place in facts["parts"].items()
    }
    if not {"keys"} <= parts.keys() <= set(PARTS) or not row["rows"]:
        raise ValueError(f"a group of {row['rows']} rows has the parts {sorted(parts)}")
    return Group(
        object_key=row["object_key"],
        object_bytes=row["object_bytes"],
        kind=row["kind"],
        rows=row["rows"],
        parts=parts,
        keys=(row["first_key"], row["last_key"]),
        spans={name: (int(low), int(high)) for name, (low, high) in facts["spans"].items()},
        same={name: (str(type_), int(value)) for name, (type_, value) in facts["same"].items()},
        cut=int(facts["cut"]),
        unready=bool(facts["unsaid"]),
    )


def _read(file: SegmentFile, kind: str, schema: pa.Schema) -> pa.Table:
    parts = [file.read(s.number, schema) for s in file.segments_of(kind)]
    return pa.concat_tables(parts) if parts else schema.empty_table()


def _parts(table: pa.Table) -> Iterator[pa.Table]:
    """The rows in parts of about SEGMENT_BYTES, each of which fits one record batch."""
    if not table.num_rows:
        return
    pieces = -(-table.nbytes // SEGMENT_BYTES)
    rows = max(1, -(-table.num_rows // max(1, pieces)))
    for at in range(0, table.num_rows, rows):
        yield table.slice(at, rows)


def _plain(positions: Positions) -> dict[str, dict[str, list[int]]]:
    return {
        str(store): {str(incarnation): [p.seq, int(p.closed)] for incarnation, p in incarnations.items()}
        for store, incarnations in positions.items()
    }


def _positions(plain: dict[str, dict[str, list[int]]]) -> dict[int, dict[int, Position]]:
    return {
        int(store): {int(i): _position(p) for i, p in incarnations.items()} for store, incarnations in plain.items()
    }


def _position(plain: list[int]) -> Position:
    seq, closed = plain
    return Position(seq=seq, closed=bool(closed))
