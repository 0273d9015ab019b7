"""A recording of DDL of partitions on a living cluster: its batch files, sorted once by the real router and core.

    batch_files.tar.zst    data_change_buffer/... as a pusher wrote it: schema snapshot, three stores
    truth.ndjson.zst       TiDB's own SELECT as of many timestamps around each DDL, and the DDL jobs

Every value of a reading is text, as MySQL's text protocol gives it.
"""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from metaserver.initial_ranges import lay_out
from schemas.snapshot import parse_pushed
from tests.kit.core_run import Trouble, prepare, run_tasks
from tests.kit.recording import objects
from tistream.codec.batch_file import BatchFile, decode_batch_file
from tistream.codec.table_key import META_RANGE
from tistream.model import change
from tistream.model.change import RowKind
from tistream.objectstore.layout import BatchKey, SchemaSnapKey, parse

FOLDER = Path(__file__).parents[2] / "tests" / "data" / "partition_ddl"
DATABASE = "rec"

_UNTROUBLED = Trouble(lag=0.9, again=0, snapshot=0, restart=0, unknown=0)
_DATA_TASKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What TiDB answered to SELECT * as of a timestamp."""

    ts: int
    table: str
    rows: list[tuple[str | None, ...]]  #: sorted


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecording:
    """The recording as sorters leave it, and what TiDB said."""

    start_ts: int
    end_ts: int  #: every task is whole up to here
    schema: bytes  #: the pushed snapshot, as JSON
    rows: pa.Table  #: schema change.COMMITTED, all but the meta range
    meta: pa.Table  #: the meta range
    committed: set[tuple[bytes, int]]  #: (key, commit_ts) of every commit in the batch files, whatever became of it
    readings: list[Reading]


@cache
def recorded() -> PartitionRecording:
    """The recording of this project."""
    return read_recording(FOLDER)


def read_recording(folder: Path) -> PartitionRecording:
    """Any recording of this form, through the real router and core."""
    schema, files = b"", list[BatchFile]()
    for name, data in _members(folder / "batch_files.tar.zst"):
        key = parse(name)
        if isinstance(key, SchemaSnapKey):
            schema = zstandard.ZstdDecompressor().decompressobj().decompress(data)
        elif isinstance(key, BatchKey):
            files.append(decode_batch_file(key, data))
    pushed = parse_pushed(orjson.loads(schema))
    start_ts = pushed.snapshot.ts
    files.sort(key=lambda file: (file.cut_ts, file.key.store_id, file.key.seq))
    ranges = dict(enumerate((task.range for task in lay_out(pushed, _DATA_TASKS)), 1))
    tasks = run_tasks(prepare(files), ranges, start_ts, random.Random(1), _UNTROUBLED)
    of_meta = [task.rows() for task in tasks.values() if task.range == META_RANGE]
    others = [task.rows() for task in tasks.values() if task.range != META_RANGE]
    end_ts = min(task.durable_ts for task in tasks.values())
    return PartitionRecording(
        start_ts=start_ts,
        end_ts=end_ts,
        committed={at for file in files for at in _commits(file.rows) if start_ts < at[1] <= end_ts},
        schema=schema,
        rows=_in_order(others),
        meta=_in_order(of_meta),
        readings=[_reading(line) for line in objects(folder / "truth.ndjson.zst") if "rows" in line],
    )


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    with path.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as packed:
        data = io.BytesIO(packed.read())
    with tarfile.open(fileobj=data) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:
                yield member.name.removeprefix("./"), file.read()


def _commits(rows: pa.RecordBatch) -> Iterator[tuple[bytes, int]]:
    decided = pc.is_in(rows["kind"], pa.array([RowKind.COMMIT, RowKind.COMMITTED], pa.uint8()))
    found = rows.filter(decided)
    return zip(found["key"].to_pylist(), found["commit_ts"].to_pylist(), strict=True)


def _in_order(parts: Iterable[pa.Table]) -> pa.Table:
    found = pa.concat_tables([change.COMMITTED.empty_table(), *parts])
    return found.sort_by([(name, "ascending") for name in ("commit_ts", "start_ts", "key")]).combine_chunks()


def _reading(line: dict[str, Any]) -> Reading:
    return Reading(ts=int(line["ts"]), table=line["table"], rows=sorted(map(tuple, line["rows"]), key=repr))
