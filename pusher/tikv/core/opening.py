"""Notices prewrites of an opening scan that may be older than what stands before them.

Until a registration is INITIALIZED, a store mixes rows of the opening scan with live ones and does not say which is
which. Mostly that does no harm. But a lock may be written again while the scan is under way (a pipelined transaction
flushes a key a second time): then the live PREWRITE may come first and the scan's, which says what the lock was before,
behind it; and whoever takes the later row of a subscription takes the wrong one.

The rule: a subscription that before INITIALIZED gets two prewrites of one (key, start_ts) that say different things
cannot know which is newer, and must be given up. Its successor's scan reads the lock as it is then. Repeats of the
same are harmless and stay (a store repeats a PREWRITE whenever its lock is rewritten), and so are PUTs without a
value ("fake prewrites"), which never count against a full one.

Columnar: two 64-bit hashes for each prewrite, what it is known by and what it says. Two keys with one hash would give
up a subscription for nothing; two contents with one hash, of the same key, would have to meet by chance (2^-64). Pure.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tistream.model.change import Op, RowKind

U64 = npt.NDArray[np.uint64]


class OpeningPrewrites:
    """What one subscription was sent before INITIALIZED."""

    def __init__(self) -> None:
        self._runs: list[tuple[U64, U64]] = []  # (identities, contents), each sorted by identity, longest first

    def contradicts(self, rows: pa.RecordBatch) -> bool:
        """Take rows in the order of their arrival; whether a prewrite of them says other things than one before."""
        telling = _telling(rows)
        if not telling.any():
            return False
        prewrites = pa.table(rows).filter(pa.array(telling))
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
        """Merge runs so that each is at least twice as long as the next: few of them, and each row is moved seldom."""
        while self._runs and len(self._runs[-1][0]) < 2 * len(who):
            before = self._runs.pop()
            who, first = np.unique(np.concatenate([before[0], who]), return_index=True)
            what = np.concatenate([before[1], what])[first]
        self._runs.append((who, what))


def _telling(rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Prewrites that say what the key becomes."""
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
