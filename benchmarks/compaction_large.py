"""Compaction of gigabytes on two real executors, against Spark's own sort and two-thread pyarrow. By hand:

    python -m benchmarks.compaction_large --parts 10 --runs 3 --master 'local-cluster[2,1,1200]'

Too long for `python -m benchmarks`. The input is several times that of `benchmarks/compaction.py` (a part is 210 MB of
committed files). Each run times the three one after the other; the outputs of the first must hold the same rows in the
same order. During ours the resident memory of the executors and of their Python workers is sampled.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.compaction import RANGES, Input, Output, common_rows, sides, written
from compactor.session import new_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


def _measured(made: Input, session: SparkSession, runs: int, ranges: int) -> dict[str, object]:
    candidates = sides(made, session, ranges)
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    memory = _Memory()
    for run in range(runs):
        outputs: dict[str, Output] = {}
        for name, side in candidates.items():
            os.sync()  # a side that leaves its files to the page cache must not slow the next one
            begun = time.monotonic()
            with memory if name == "ours" else threading.Lock():
                outputs[name] = side()
            seconds[name].append(round(time.monotonic() - begun, 2))
        if run == 0:
            rows = common_rows(outputs["ours"], outputs["spark"])
            assert rows == common_rows(outputs["ours"], outputs["pyarrow"])
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
