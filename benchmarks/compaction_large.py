"""Compaction of gigabytes on two real executors, against Spark's own sort and two-thread pyarrow. By hand:

    python -m benchmarks.compaction_large --parts 10 --runs 3 --master 'local-cluster[2,1,1200]'

Too long for `python -m benchmarks`. The input is that of `benchmarks/compaction.py`, so many times (a part is 210 MB of
committed files). Each run times the three one after the other; the outputs of the first must hold the same rows in the
same order. While ours is at work the resident memory of the executors and of their Python workers is looked at.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.compaction import ORDER, RANGES, Input, written
from compactor.core.plan import PlanRow
from compactor.spark import SparkExecutor, new_session
from compactor.task import read_inputs
from tistream.clock import SystemClock
from tistream.model.change import COMMITTED

_SIGNED = pa.schema([pa.field(f.name, pa.int64() if pa.types.is_integer(f.type) else f.type) for f in COMMITTED])


def main() -> int:
    """Print one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", type=int, default=10)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--master", default="local-cluster[2,1,1200]")
    asked = parser.parse_args()
    logging.getLogger("py4j").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = [written(folder, part) for part in range(asked.parts)]
        made = Input(folder=folder, store=parts[0].store, plan=[row for part in parts for row in part.plan])
        options = {
            "spark.ui.enabled": "false",
            "spark.driver.memory": "1g",
            "spark.executor.memory": "1000m",
            "spark.executorEnv.PYTHONPATH": os.pathsep.join(p for p in ["", *sys.path] if p) or os.getcwd(),
            "spark.log.level": "ERROR",
        }
        session = new_session(asked.master, options)
        try:
            print(json.dumps(_measured(made, session, asked.runs, asked.parts * RANGES), indent=2))
        finally:
            session.stop()
    return 0


def _measured(made: Input, session: object, runs: int, ranges: int) -> dict[str, object]:
    sides = _sides(made, session, ranges)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    memory = _Memory()
    for run in range(runs):
        outputs: dict[str, Sequence[Path]] = {}
        for name, side in sides.items():
            os.sync()  # a side that leaves its files to the page cache must not slow the next one
            begun = time.monotonic()
            with memory if name == "ours" else threading.Lock():
                outputs[name] = side()
            seconds[name].append(round(time.monotonic() - begun, 2))
        if run == 0:
            rows = _same(outputs["ours"], outputs["spark"])
            assert rows == _same(outputs["ours"], outputs["pyarrow"])
        for files in outputs.values():
            for path in files:
                path.unlink()
    size = sum(segment.length for row in made.plan for segment in row.segments)
    ratios = {
        f"speed in units of {name}": round(
            statistics.median(b / a for a, b in zip(seconds["ours"], seconds[name], strict=True)), 2
        )
        for name in ("spark", "pyarrow")
    }
    return {
        "rows": rows,
        "input_bytes": size,
        "input_files": sum(len(row.segments) for row in made.plan),
        "seconds": seconds,
        **ratios,
        "peak_rss_mib": {kind: peak >> 20 for kind, peak in memory.peaks.items()},
    }


def _sides(made: Input, session: object, ranges: int) -> dict[str, Callable[[], Sequence[Path]]]:
    executor = SparkExecutor(session, f"file://{made.folder}/bucket", SystemClock())  # type: ignore[arg-type]
    attempts = itertools.count(1)

    def ours() -> Sequence[Path]:
        results = sorted(executor(made.plan), key=lambda r: r.range_id)
        return [made.folder / "bucket" / r.object_key for r in results]

    def native() -> Sequence[Path]:
        out = made.folder / f"native-{next(attempts)}"
        frame = session.read.parquet(str(made.folder / "parquet"))  # type: ignore[attr-defined]
        frame = frame.repartitionByRange(ranges, "range_id").sortWithinPartitions("range_id", *ORDER)
        frame.write.option("compression", "zstd").parquet(str(out))
        return sorted(out.glob("part-*.parquet"))

    def plain() -> Sequence[Path]:
        out = made.folder / f"plain-{next(attempts)}"
        out.mkdir()

        def one(row: PlanRow) -> Path:
            table = pa.concat_tables(read_inputs(made.store, row)).combine_chunks()
            ordered = table.take(pc.sort_indices(table, sort_keys=[(name, "ascending") for name in ORDER]))
            path = out / f"{row.range_id:04}.parquet"
            pq.write_table(ordered, path, compression="zstd", compression_level=1)
            return path

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(one, made.plan))

    return {"ours": ours, "spark": native, "pyarrow": plain}


def _same(left: Sequence[Path], right: Sequence[Path]) -> int:
    """How many rows; ValueError unless both hold the same ones in the same order, whichever file they lie in."""
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


def _batches(files: Sequence[Path]) -> Iterator[pa.Table]:
    for path in files:
        table = pq.ParquetFile(path).read().select(COMMITTED.names).cast(_SIGNED).combine_chunks()
        if table.num_rows:
            yield table


class _Memory:
    """While it is entered: the largest resident memory of any executor and of any Python worker."""

    def __init__(self) -> None:
        self.peaks = {"executor": 0, "python worker": 0}
        self._over = threading.Event()

    def __enter__(self) -> None:
        self._over.clear()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        while not self._over.wait(0.5):
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    command = (folder / "cmdline").read_bytes()
                    resident = int((folder / "statm").read_text().split()[1]) * page
                except OSError:
                    continue
                for kind, mark in (("executor", b"CoarseGrainedExecutorBackend"), ("python worker", b"pyspark.daemon")):
                    if mark in command:
                        self.peaks[kind] = max(self.peaks[kind], resident)


if __name__ == "__main__":
    shutil.which("java") or sys.exit("Java is needed")
    sys.exit(main())
