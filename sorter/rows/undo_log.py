"""Takes back what a step has changed in the buffers, when it cannot be finished."""

from __future__ import annotations

import numpy as np

from sorter.rows.run import LookupKeys, Run, RunSet
from tistream.model.arrays import I64


class UndoLog:
    """The rows that a step removes and the runs that it adds; an exception takes both back."""

    def __init__(self, *buffers: RunSet) -> None:
        self._counts = [(runs, len(runs.runs)) for runs in buffers]
        self._removed: list[tuple[Run, I64]] = []

    def __enter__(self) -> UndoLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            return
        for runs, count in self._counts:
            del runs.runs[count:]
        for run, rows in self._removed:
            rows = np.unique(rows)
            run.alive[rows] = True
            run.live += len(rows)

    def kill(self, run: Run, rows: I64) -> None:
        """Remove these living rows."""
        run.kill(rows)
        self._removed.append((run, rows))

    def kill_equal(self, runs: RunSet, lookup_keys: LookupKeys, ts: str) -> None:
        """Remove all rows that equal one of these in (key, ts)."""
        for run, _found, rows in runs.find(lookup_keys, ts):
            self.kill(run, rows)
