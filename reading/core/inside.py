"""A position inside the changes of one commit_ts, and the order that it counts in (pure).

Changes of one commit_ts are delivered by (start_ts, table_id, rank, key). The rank of a row puts deletes before
updates before inserts; rows that are delivered undecoded all have rank 0. An update that a format splits is delivered
twice: its delete among the updates, its insert as rank SECOND, after all other rows of its transaction and table.

Ranks and transactions are not in the catalog, so a reader first looks the commit up: `start_ts` is then 0, and the
position collects which ranks there are and the lowest start_ts. Then each transaction is read once for each rank. While
one is read, the lowest start_ts above it is collected in the same way. All of it depends on the rows alone, not on the
segments that hold them: compaction between two pages changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reading.core.split import RANK, classify

SECOND = 3  #: rank of the inserts of split updates
UPDATE_RANK = 1
NO_CHANGE = 255

Place = tuple[int, bytes]  #: (table_id, key): everything below it is done


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """Everything of the commit before this position is delivered."""

    commit_ts: int
    mode: str  #: how its reader orders and selects rows: another one cannot continue
    start_ts: int = 0  #: 0: the commit is being looked up
    table_id: int = 0
    rank: int = 0
    key: bytes = b""  #: the lowest key that is not delivered
    ranks: int = 0  #: a bit for each rank that the commit has
    next_start_ts: int = 0  #: the lowest start_ts above `start_ts` that was seen; 0 = none

    @property
    def text(self) -> str:
        """What `inside_of` reads. Texts of one commit sort as the positions do."""
        where = f"{self.start_ts:019}/{self.table_id:019}/{self.rank}/{self.key.hex()}"
        return f"{where}/{self.ranks}/{self.next_start_ts}/{self.mode}"

    @property
    def place(self) -> Place:
        """Where reading continues."""
        return self.table_id, self.key

    def at(self, place: Place) -> Inside:
        """The same position further on."""
        return replace(self, table_id=place[0], key=place[1])

    def seen(self, rows: pa.Table, rank: npt.NDArray[np.uint8]) -> Inside:
        """With what these rows of the commit say about ranks, while it is looked up, and about transactions."""
        starts = rows["start_ts"].to_numpy()
        later = starts[starts > np.uint64(self.start_ts)]
        if not len(later):
            return self
        lowest = int(later.min())
        lowest_seen = min(lowest, self.next_start_ts) if self.next_start_ts else lowest
        ranks = self.ranks
        if not self.start_ts:
            for one in np.unique(rank).tolist():
                ranks |= 1 << one
        return replace(self, next_start_ts=lowest_seen, ranks=ranks)

    def next_transaction(self, *, splits: bool) -> Inside | None:
        """The beginning of the next transaction; None after the last one."""
        if not self.next_start_ts:
            return None
        ranks = self.ranks
        if splits and ranks >> UPDATE_RANK & 1:
            ranks |= 1 << SECOND
        following = replace(self, start_ts=self.next_start_ts, table_id=0, key=b"", ranks=ranks, next_start_ts=0)
        return replace(following, rank=following.first_rank)

    def after_rank(self, table_id: int) -> Inside:
        """The next rank of the table, or the first one of the next table."""
        for rank in range(self.rank + 1, SECOND + 1):
            if self.ranks >> rank & 1:
                return replace(self, table_id=table_id, rank=rank, key=b"")
        return replace(self, table_id=table_id + 1, rank=self.first_rank, key=b"")

    @property
    def first_rank(self) -> int:
        """The lowest rank that the commit has."""
        return (self.ranks & -self.ranks).bit_length() - 1


def inside_of(commit_ts: int, text: str) -> Inside:
    """The position of a text. ValueError for one that means none."""
    start_ts, table_id, rank, key, ranks, next_start_ts, mode = text.split("/")
    inside = Inside(
        commit_ts=commit_ts,
        start_ts=int(start_ts),
        table_id=int(table_id),
        rank=int(rank),
        key=bytes.fromhex(key),
        ranks=int(ranks),
        next_start_ts=int(next_start_ts),
        mode=mode,
    )
    numbers = inside.start_ts, inside.table_id, inside.next_start_ts, commit_ts - 1
    if not all(0 <= number < 1 << 63 for number in numbers) or not 0 <= inside.rank <= SECOND:
        raise ValueError("a number is out of its range")
    if not 0 <= inside.ranks < 2 << SECOND or (inside.start_ts and not inside.ranks >> inside.rank & 1):
        raise ValueError("the ranks do not have this one")
    return inside


def ranks_of(rows: pa.Table, *, ranked: bool) -> npt.NDArray[np.uint8]:
    """The rank of each row (schema change.COMMITTED); 255 for a row that changes nothing. All 0 unless `ranked`."""
    if not ranked:
        return np.zeros(rows.num_rows, np.uint8)
    no_value, no_old = (rows[name].is_null().to_numpy() for name in ("value", "old_value"))
    kind = classify(rows["op"].to_numpy(), no_value, no_old, rows["flags"].to_numpy())
    rank = np.full(rows.num_rows, NO_CHANGE, np.uint8)
    known = kind != NO_CHANGE
    rank[known] = RANK[kind[known]]
    return rank


def from_place(rows: pa.Table, place: Place) -> npt.NDArray[np.bool_]:
    """Which rows lie at or above the place."""
    table_id, key = place
    ids = rows["table_id"].to_numpy()
    mask: npt.NDArray[np.bool_] = ids > table_id
    same = ids == table_id
    if same.any():
        mask |= same & pc.greater_equal(rows["key"], pa.scalar(key, pa.binary())).to_numpy()
    return mask


def place_of(rows: pa.Table, n: int) -> Place:
    """The place of a row."""
    return rows["table_id"][n].as_py(), rows["key"][n].as_py()
