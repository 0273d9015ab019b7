"""Rows of a batch file that contradict what their subscription promised in an earlier file of the same store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

SAMPLE_ROWS_MAX = 20  #: rows that a record names


class BatchFileId(NamedTuple):
    """A batch file of a tenant's store."""

    store_id: int
    incarnation: int
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContradictingRow:
    """One of the rows, as a record names it."""

    key: bytes
    start_ts: int
    commit_ts: int
    region_id: int
    promised_ts: int  #: what an earlier file of the same subscription had promised


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """Rows of one file, in the range of one task, that contradict an earlier promise of the store."""

    store_id: int
    incarnation: int
    seq: int
    good_ts: int  #: below the first of the rows
    promised_ts: int  #: the highest promise that one of them contradicts
    rows: int
    sample: Sequence[ContradictingRow]  #: those with the lowest commit_ts

    @property
    def file(self) -> BatchFileId:
        return BatchFileId(self.store_id, self.incarnation, self.seq)
