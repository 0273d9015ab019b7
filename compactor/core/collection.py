"""Garbage collection of keys with versions, as API V2 defines it: which versions go, and whether a merge removes any
(pure).

    above the safe point          every version is kept, as it is
    at or below it, per key       the newest is kept, the older (obsolete) ones go
    at the bottom                 so does the newest below S, when it is a deletion or has expired

The safe point S is the floor of the log, so what goes changes no read as of S or later. *Bottom* means that no older
version of these keys exists outside the rows given. Elsewhere a deletion stays, since without it a read would find an
older version; so does an expired version. A version has expired when its expiry is at or below the physical time of S.
Whether it has expired by now does not matter: a read as of S would miss it.

A version from an opening scan (FLAG_SCANNED) leaves open what its key was between its start_ts and its commit_ts, but
for the moments at which another version was written. With S between both it lies above S and stays as it is: a start_ts
raised to S would make the read as of S look exact. At or below S it opens no question about S or later. A deletion or
expired version at S itself stays for the same reason: without it the read as of S, exact before, would become inexact.

A merge removes versions when that is worth it, by the rules of API V2, over its files: it is at the bottom, or more
than half of the files are *due*, or all of them together are. A file is due when it has obsolete versions and these are
more than a tenth of all, or one key has more than 1,024 versions. Versions count at or below S.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tistream import ts as tso
from tistream.model.arrays import Mask

OBSOLETE_RATIO = 0.1
KEY_VERSIONS_MAX = 1024

_NEWEST_FIRST = [("key", "ascending"), ("commit_ts", "descending")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """Counts of the versions in a file."""

    total: int = 0
    obsolete: int = 0  #: at or below the safe point, and not the newest of their key there
    of_one_key: int = 0  #: the most that a key has at or below the safe point

    def plus(self, other: Versions) -> Versions:
        """Of both files. A key in both counts as in the one that has more of it."""
        return Versions(
            total=self.total + other.total,
            obsolete=self.obsolete + other.obsolete,
            of_one_key=max(self.of_one_key, other.of_one_key),
        )

    @property
    def is_due(self) -> bool:
        """Whether removing the obsolete versions is worth it."""
        many = self.obsolete > OBSOLETE_RATIO * self.total or self.of_one_key > KEY_VERSIONS_MAX
        return self.obsolete > 0 and many


def kept(rows: pa.Table, safe_ts: int, *, bottom: bool) -> Mask:
    """Which rows (schema change.COMMITTED, in any order) are kept."""
    places, is_newest = _at_or_below(rows, safe_ts)
    if bottom:
        is_newest &= ~ended(rows, safe_ts)[places]
    keep = np.ones(rows.num_rows, np.bool_)
    keep[places] = is_newest
    return keep


def counted(rows: pa.Table, safe_ts: int) -> Versions:
    """The counts of a file with these rows."""
    places, is_newest = _at_or_below(rows, safe_ts)
    starts = np.flatnonzero(is_newest)
    most = int(np.diff(starts, append=len(places)).max(initial=0))
    return Versions(total=rows.num_rows, obsolete=len(places) - len(starts), of_one_key=most)


def is_worth_collecting(files: Sequence[Versions], *, bottom: bool) -> bool:
    """Whether a merge of these files removes versions."""
    together = Versions()
    for each in files:
        together = together.plus(each)
    return bottom or 2 * sum(each.is_due for each in files) > len(files) or together.is_due


def ended(rows: pa.Table, safe_ts: int) -> Mask:
    """Which rows go at the bottom, those above the safe point and the obsolete aside. A null value is a deletion."""
    gone = rows["value"].is_null().to_numpy() | expired(rows["expire_ts"].to_numpy(), safe_ts)
    before: Mask = gone & (rows["commit_ts"].to_numpy() < np.uint64(safe_ts))
    return before


def expired(expire_ts: npt.NDArray[np.uint64], ts: int) -> Mask:
    """Which of these expiries (Unix seconds, 0 = never) have passed for a read as of `ts`."""
    mask: Mask = (expire_ts != 0) & (expire_ts <= np.uint64(tso.physical_ms(ts) // 1000))
    return mask


def _at_or_below(rows: pa.Table, safe_ts: int) -> tuple[npt.NDArray[np.int64], Mask]:
    """(places of the rows at or below, by key and the newest first; whether each is the newest of its key)"""
    places = np.flatnonzero(rows["commit_ts"].to_numpy() <= np.uint64(safe_ts))
    below = rows.select(["key", "commit_ts"]).take(pa.array(places)).combine_chunks()
    order = pc.sort_indices(below, sort_keys=_NEWEST_FIRST)
    keys = below["key"].take(order).combine_chunks()
    is_newest = np.ones(len(places), np.bool_)
    is_newest[1:] = pc.not_equal(keys.slice(1), keys.slice(0, max(len(keys) - 1, 0))).to_numpy(zero_copy_only=False)
    return places[order.to_numpy()], is_newest
