"""Computes which batch files may be deleted, from durable positions alone.

Inputs are read from the catalog in one transaction: for each incarnation of a store the seq at or below which *every*
task of the tenant has durably consumed (the floor), and how far files were reclaimed already. What a subscriber has
merely received never counts.

    0 ...... reclaimed ...... floor ...... newest file
             already deleted  may go       must stay

A superseded incarnation whose floor is EVERYTHING has been closed by every task: its whole folder may go, including
files behind its last contiguous one. The newest incarnation is never deleted whole, whatever its floor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

EVERYTHING = (1 << 63) - 1  #: the floor of an incarnation that every task has closed


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaim:
    """The files of one incarnation with `after_seq < seq <= upto_seq` may go; `whole` = the entire folder."""

    incarnation: int
    after_seq: int
    upto_seq: int
    whole: bool = False


def reclaimable(floors: Mapping[int, int], reclaimed: Mapping[int, int], newest: int) -> list[Reclaim]:
    """What may be deleted now, oldest incarnation first.

    `newest` is the store's newest incarnation. An incarnation above it (issued since `newest` was read) is left alone.
    """
    out: list[Reclaim] = []
    for incarnation in sorted(floors):
        after, upto = reclaimed.get(incarnation, 0), floors[incarnation]
        if upto <= after or incarnation > newest:
            continue
        whole = upto >= EVERYTHING
        if whole and incarnation == newest:
            continue
        out.append(Reclaim(incarnation=incarnation, after_seq=after, upto_seq=upto, whole=whole))
    return out
