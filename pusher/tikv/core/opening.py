"""Detects prewrites of an opening scan whose order is unknown.

Until INITIALIZED a store mixes scanned and live rows without marking them. That is harmless unless a lock is rewritten
during the scan (a pipelined transaction flushes a key again): then the live PREWRITE may arrive before the scanned,
older one, and a reader that takes the later row takes the wrong one.

Rule: a subscription that gets two different prewrites of one (key, start_ts) before INITIALIZED must be closed, because
their order is unknown; its successor's scan reads the current lock. Identical repeats are allowed (a store repeats a
PREWRITE whenever its lock is rewritten), and so are PUTs without a value ("fake prewrites").

Columnar: two 64-bit hashes for each prewrite, of identity and contents. A collision of identities closes a subscription
needlessly; a missed difference needs a collision of contents for the same key (2^-64). Pure.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tistream.model.arrays import U64
from tistream.model.change import Op, RowKind


class OpeningPrewrites:
    """The prewrites of one subscription before INITIALIZED."""

    def __init__(self) -> None:
        self._runs: list[tuple[U64, U64]] = []  # (identities, contents), each sorted by identity, longest first

    def contradicts(self, rows: pa.RecordBatch) -> bool:
        """Add rows in arrival order; whether one of their prewrites differs from an earlier one."""
        full = _full_prewrites(rows)
        if not full.any():
            return False
        prewrites = pa.table(rows).filter(pa.array(full))
        who, what = (
            _hashes(prewrites, ("key", "start_ts")),
            _hashes(prewrites, ("op", "generation", "value", "old_value")),
        )
        order = np.argsort(who, kind="stable")
        who, what = who[order], what[order]
        same = who[1:] == who[:-1]
        if (what[1:] != what[:-1])[same].any() or any(_differ(run, who, what) for run in self._runs):
            return True
        self._add(who, what)
        return False

    def _add(self, who: U64, what: U64) -> None:
        """Merge runs so that each is at least twice as long as the next: few runs, and rows are moved rarely."""
        while self._runs and len(self._runs[-1][0]) < 2 * len(who):
            before = self._runs.pop()
            who, first = np.unique(np.concatenate([before[0], who]), return_index=True)
            what = np.concatenate([before[1], what])[first]
        self._runs.append((who, what))


def _full_prewrites(rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Prewrites with contents."""
    sizes = pc.fill_null(pc.binary_length(rows.column("value")), 0).to_numpy()
    full = (sizes > 0) | (rows.column("op").to_numpy() != Op.PUT)
    mask: npt.NDArray[np.bool_] = full & (rows.column("kind").to_numpy() == RowKind.PREWRITE)
    return mask


def _hashes(rows: pa.Table, names: tuple[str, ...]) -> U64:
    hashes: U64 = pl.DataFrame(rows.select(list(names))).hash_rows().to_numpy()
    return hashes


def _differ(run: tuple[U64, U64], who: U64, what: U64) -> bool:
    """Whether a run has other contents for one of these identities."""
    at = np.searchsorted(run[0], who)
    at[at == len(run[0])] = 0
    return bool(((run[0][at] == who) & (run[1][at] != what)).any())
