"""Compaction on Spark with two cores: against Spark's own sort, and against pyarrow on two threads without Spark.

The input is what sorters leave: for each of eight ranges 24 committed files, 480,000 rows in all, about 210 MB. Our
side reads them through the object store, merges, sorts, writes Parquet, decodes it again and compares fingerprints.
Spark's own side reads the same rows from as many Parquet files (it cannot read ours), cuts them by range, sorts and
writes Parquet with the same compression. The pyarrow side reads our files, sorts and writes, and verifies nothing. All
three must leave the same rows in the same order within each range.

Needs the extra `spark` and Java.
"""

from __future__ import annotations

import itertools
import logging
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.harness import Result, compare
from benchmarks.rows import change_rows
from compactor.core.plan import PlanRow
from compactor.spark import SparkExecutor, new_session
from compactor.task import read_inputs
from tistream.catalog.log.committed import SegmentRow
from tistream.catalog.tenancy.tenants import TaskKind
from tistream.clock import SystemClock
from tistream.codec.committed_file import build_committed_file
from tistream.ids import Tenant
from tistream.model.change import COMMITTED
from tistream.objectstore.layout import CommittedKey
from tistream.objectstore.local import LocalStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 480_000
RANGES = 8
FLUSHES = 24
RUNS = 5
TENANT = Tenant(1, 1)
ORDER = ("table_id", "commit_ts", "start_ts", "key")

_Output = list[Path]  # the files, in order of range


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    folder: Path
    store: LocalStore
    plan: list[PlanRow]


def run() -> Iterator[Result]:
    """Two ratios."""
    logging.getLogger("py4j").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        made = written(Path(folder))
        options = {"spark.ui.enabled": "false", "spark.driver.memory": "2g", "spark.log.level": "ERROR"}
        session = new_session("local[2]", options)
        try:
            yield from _compared(made, session)
        finally:
            session.stop()


def _compared(made: Input, session: SparkSession) -> Iterator[Result]:
    executor = SparkExecutor(session, f"file://{made.folder}/bucket", SystemClock())
    attempts = itertools.count(1)

    def ours() -> _Output:
        results = sorted(executor(made.plan), key=lambda r: r.range_id)
        return [made.folder / "bucket" / r.object_key for r in results]

    def native() -> _Output:
        out = made.folder / f"native-{next(attempts)}"
        frame = session.read.parquet(str(made.folder / "parquet"))
        frame = frame.repartitionByRange(RANGES, "range_id").sortWithinPartitions("range_id", *ORDER)
        frame.write.option("compression", "zstd").parquet(str(out))
        return sorted(out.glob("part-*.parquet"))

    def plain() -> _Output:
        out = made.folder / f"plain-{next(attempts)}"
        out.mkdir()

        def one(row: PlanRow) -> Path:
            table = pa.concat_tables(read_inputs(made.store, row)).combine_chunks()
            by = [(name, "ascending") for name in ORDER]
            path = out / f"{row.range_id:02}.parquet"
            pq.write_table(
                table.take(pc.sort_indices(table, sort_keys=by)), path, compression="zstd", compression_level=1
            )
            return path

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(one, made.plan))

    yield compare("compaction/vs-spark-sort", ours, native, proof=_same, target=2, runs=RUNS)
    yield compare("compaction/vs-two-thread-pyarrow", ours, plain, proof=_same, target=0.6, runs=RUNS)


def _same(left: _Output, right: _Output) -> bool:
    """Whether both hold the same rows, in the same order; which file they lie in does not matter."""
    return bool(_signed(left).equals(_signed(right)))


def _signed(files: _Output) -> pa.Table:
    tables = [pq.ParquetFile(path).read().select(COMMITTED.names) for path in files]
    return pa.concat_tables([table.cast(_SIGNED) for table in tables]).combine_chunks()


_SIGNED = pa.schema([pa.field(f.name, pa.int64() if pa.types.is_integer(f.type) else f.type) for f in COMMITTED])


def written(folder: Path, part: int = 0) -> Input:
    """The committed files with their plan, and the same rows as Parquet for Spark's own reader. Parts are of one size;
    each has rows and ranges of its own."""
    store = LocalStore(folder / "bucket")
    (folder / "parquet").mkdir(exist_ok=True)
    changes = change_rows(ROWS, 1 + part)
    tables = np.sort(np.random.default_rng(2).integers(0, 50, ROWS))
    given: dict[str, Any] = {"table_id": pa.array(tables, pa.int64())}
    rows = pa.table([given.get(name) or changes.column(name) for name in COMMITTED.names], schema=COMMITTED)
    ranges = part * RANGES + tables * RANGES // 50
    flush = np.searchsorted(
        np.quantile(rows["commit_ts"].to_numpy(), np.arange(1, FLUSHES) / FLUSHES), rows["commit_ts"]
    )
    plan = []
    for range_id in range(part * RANGES, (part + 1) * RANGES):
        segments: list[SegmentRow] = []
        for seq in range(FLUSHES):
            flushed = rows.filter(pa.array((ranges == range_id) & (flush == seq)))
            flushed = flushed.take(pc.sort_indices(flushed, sort_keys=[(name, "ascending") for name in ORDER]))
            segments += _flushed(store, flushed, range_id, seq)
            signed = flushed.cast(_SIGNED).append_column("range_id", pa.array([range_id] * len(flushed)))
            pq.write_table(signed, folder / "parquet" / f"{range_id}-{seq}.parquet", compression="zstd")
        plan.append(PlanRow(tenant=TENANT, job=1, range_id=range_id, task_id=range_id, segments=tuple(segments)))
    return Input(folder=folder, store=store, plan=plan)


def _flushed(store: LocalStore, part: pa.Table, range_id: int, seq: int) -> list[SegmentRow]:
    key = CommittedKey(tenant=TENANT, sorter=f"sorter-{range_id}", incarnation=1, seq=seq + 1)
    data, segments = build_committed_file(key, [(range_id, part)], "w")
    store.put(str(key), data)
    return [
        SegmentRow(
            object_key=str(key),
            task_id=range_id,
            kind=TaskKind.DATA,
            segment_no=s.number,
            start_key=s.start_key,
            end_key=s.end_key,
            table_lo=s.table_lo,
            table_hi=s.table_hi,
            lo_ts=s.lo_ts,
            hi_ts=s.hi_ts,
            rows=s.rows,
            offset=s.offset,
            length=s.length,
            crc=s.crc,
        )
        for s in segments[range_id]
    ]
