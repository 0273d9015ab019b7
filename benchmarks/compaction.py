"""Compaction on Spark with two cores: against Spark's own sort, and against pyarrow on two threads without Spark.

The input is sorter output: for each of eight ranges 24 committed files, 480,000 rows in all, about 210 MB. Our side
reads them through the object store, merges, sorts, writes Parquet, decodes it again and compares fingerprints. Spark
reads the same rows from as many Parquet files (it cannot read ours), cuts them by range, sorts and writes Parquet with
the same compression. pyarrow reads our files, sorts and writes, without verification. All three must leave the same
rows in the same order within each range. Needs the extra `spark` and Java.
"""

from __future__ import annotations

import itertools
import logging
import tempfile
from collections.abc import Callable, Iterator
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
from compactor.core.results import RangeResult
from compactor.session import new_session
from compactor.spark import SparkExecutor
from compactor.task import read_inputs
from tistream.catalog.rows.segments import SegmentRow, segment_in
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

Output = list[Path]  #: in order of range


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    folder: Path
    store: LocalStore
    plan: list[PlanRow]


def run() -> Iterator[Result]:
    """Two ratios."""
    logging.getLogger("py4j").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        written = _written(Path(folder))
        options = {"spark.ui.enabled": "false", "spark.driver.memory": "2g", "spark.log.level": "ERROR"}
        session = new_session("local[2]", options)
        try:
            ours, native, plain = _sides(written, session).values()

            def proof(left: Output, right: Output) -> bool:
                return _common_rows(left, right) == ROWS

            yield compare("compaction/vs-spark-sort", ours, native, proof=proof, target=2, runs=RUNS)
            yield compare("compaction/vs-two-thread-pyarrow", ours, plain, proof=proof, target=0.6, runs=RUNS)
        finally:
            session.stop()


def _sides(written: Input, session: SparkSession) -> dict[str, Callable[[], Output]]:
    """Ours, Spark's own sort, and two threads of pyarrow; each returns the files that it wrote, in order of range."""
    executor = SparkExecutor(session, f"file://{written.folder}/bucket", SystemClock())
    attempts = itertools.count(1)

    def ours() -> Output:
        results = [result for result in executor(written.plan) if isinstance(result, RangeResult)]
        assert len(results) == len(written.plan), "a range failed"
        results.sort(key=lambda r: r.range_id)
        return [written.folder / "bucket" / r.object_key for r in results]

    def native() -> Output:
        out = written.folder / f"native-{next(attempts)}"
        frame = session.read.parquet(str(written.folder / "parquet"))
        frame = frame.repartitionByRange(RANGES, "range_id").sortWithinPartitions("range_id", *ORDER)
        frame.write.option("compression", "zstd").parquet(str(out))
        return sorted(out.glob("part-*.parquet"))

    def plain() -> Output:
        out = written.folder / f"plain-{next(attempts)}"
        out.mkdir()

        def one(row: PlanRow) -> Path:
            table = _ordered(pa.concat_tables(read_inputs(written.store, row)).combine_chunks())
            path = out / f"{row.range_id:04}.parquet"
            pq.write_table(table, path, compression="zstd", compression_level=1)
            return path

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(one, written.plan))

    return {"ours": ours, "spark": native, "pyarrow": plain}


def _ordered(table: pa.Table) -> pa.Table:
    return table.take(pc.sort_indices(table, sort_keys=[(name, "ascending") for name in ORDER]))


def _common_rows(left: Output, right: Output) -> int:
    """How many rows; ValueError unless both hold the same ones in the same order, in whichever files."""
    rows, waiting = 0, _batches(right)
    other = next(waiting, None)
    for batch in _batches(left):
        while batch.num_rows:
            if other is None:
                raise ValueError("a side has fewer rows")
            count = min(batch.num_rows, other.num_rows)
            if not batch.slice(0, count).equals(other.slice(0, count)):
                raise ValueError(f"the sides differ within {count} rows from {rows}")
            rows += count
            batch, other = batch.slice(count), other.slice(count)
            if not other.num_rows:
                other = next(waiting, None)
    if other is not None:
        raise ValueError("a side has more rows")
    return rows


def _batches(files: Output) -> Iterator[pa.Table]:
    for path in files:
        table = pq.ParquetFile(path).read().select(COMMITTED.names).cast(_SIGNED).combine_chunks()
        if table.num_rows:
            yield table


_SIGNED = pa.schema([pa.field(f.name, pa.int64() if pa.types.is_integer(f.type) else f.type) for f in COMMITTED])


def _written(folder: Path) -> Input:
    """The committed files with their plan, and the same rows as Parquet for Spark's own reader."""
    store = LocalStore(folder / "bucket")
    (folder / "parquet").mkdir()
    changes = change_rows(ROWS)
    tables = np.sort(np.random.default_rng(2).integers(0, 50, ROWS))
    given: dict[str, Any] = {"table_id": pa.array(tables, pa.int64())}
    rows = pa.table([given.get(name) or changes.column(name) for name in COMMITTED.names], schema=COMMITTED)
    ranges = tables * RANGES // 50
    flush = np.searchsorted(
        np.quantile(rows["commit_ts"].to_numpy(), np.arange(1, FLUSHES) / FLUSHES), rows["commit_ts"]
    )
    plan = []
    for range_id in range(RANGES):
        segments: list[SegmentRow] = []
        for seq in range(FLUSHES):
            flushed = rows.filter(pa.array((ranges == range_id) & (flush == seq)))
            flushed = _ordered(flushed)
            segments += _flushed(store, flushed, range_id, seq)
            signed = flushed.cast(_SIGNED).append_column("range_id", pa.array([range_id] * len(flushed)))
            pq.write_table(signed, folder / "parquet" / f"{range_id}-{seq}.parquet", compression="zstd")
        plan.append(PlanRow(tenant=TENANT, job=1, range_id=range_id, task_id=range_id, segments=tuple(segments)))
    return Input(folder=folder, store=store, plan=plan)


def _flushed(store: LocalStore, part: pa.Table, range_id: int, seq: int) -> list[SegmentRow]:
    key = CommittedKey(tenant=TENANT, sorter=f"sorter-{range_id}", incarnation=1, seq=seq + 1)
    data, segments = build_committed_file(key, [(range_id, part)], "w")
    store.put(str(key), data)
    return [segment_in(str(key), s) for s in segments[range_id]]
