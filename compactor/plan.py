"""What a compaction merges (pure): which pieces of the log become one file.

A piece is what one task has in one object. Pieces of one task follow each other in commit_ts, so merging neighbours
keeps a file's stretch of time as short as its bytes allow, and a reader in commit order holds little at a time.

- A run of neighbours ends before it would exceed `target_bytes`. Pieces of at least half of that are left as they are,
  and nothing is merged across one.
- A run is worth it when it has `inputs_min` pieces and none of them holds more than half of its bytes. So whatever is
  written again lies in at least twice as many bytes afterwards: a byte is rewritten at most
  log2(target / its first piece) times. A run with one large piece is tried again to the left and right of it.
- Oldest first, as far as `budget_bytes` of stored input go; at least one run.

The same pieces give the same plan. A plan is a wish: only the swap decides, and it takes no piece that has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tistream.catalog.committed import SegmentRow
from tistream.catalog.compaction import Piece
from tistream.ids import Tenant
from tistream.limits import COMPACTED_FILE_BYTES_TARGET


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """How much is merged."""

    target_bytes: int = COMPACTED_FILE_BYTES_TARGET  #: stored bytes of the inputs of one output
    inputs_min: int = 4  #: fewer pieces are left alone
    budget_bytes: int = 8 << 30  #: stored bytes of all inputs of one job


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Neighbouring pieces of one task that become one file."""

    task_id: int
    pieces: tuple[Piece, ...]

    @property
    def stored_bytes(self) -> int:
        return sum(piece.stored_bytes for piece in self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """What one worker does: read these segments, write one file. All that it needs to know."""

    tenant: Tenant
    job: int
    range_id: int  #: from 0, within the job
    task_id: int
    segments: tuple[SegmentRow, ...]


def plan(pieces: Iterable[Piece], settings: PlanSettings) -> list[Group]:
    """The groups, oldest first. `pieces` may come in any order."""
    of_task: dict[int, list[Piece]] = {}
    for piece in sorted(pieces, key=_place):
        of_task.setdefault(piece.task_id, []).append(piece)
    groups = [
        Group(task_id=task_id, pieces=tuple(worthy))
        for task_id, mine in of_task.items()
        for run in _runs(mine, settings.target_bytes)
        for worthy in _worthy(run, settings.inputs_min)
    ]
    groups.sort(key=lambda group: _place(group.pieces[0]))
    return list(_within(groups, settings.budget_bytes))


def _place(piece: Piece) -> tuple[int, int, str, int]:
    return (piece.lo_ts, piece.hi_ts, piece.object_key, piece.task_id)


def _runs(pieces: Sequence[Piece], target_bytes: int) -> Iterator[list[Piece]]:
    run: list[Piece] = []
    held = 0
    for piece in pieces:
        is_full = piece.stored_bytes * 2 >= target_bytes
        if is_full or held + piece.stored_bytes > target_bytes:
            yield run
            run, held = [], 0
        if not is_full:
            run.append(piece)
            held += piece.stored_bytes
    yield run


def _worthy(run: list[Piece], inputs_min: int) -> Iterator[list[Piece]]:
    if len(run) < max(inputs_min, 2):
        return
    sizes = [piece.stored_bytes for piece in run]
    if 2 * max(sizes) <= sum(sizes):
        yield run
        return
    largest = sizes.index(max(sizes))
    yield from _worthy(run[:largest], inputs_min)
    yield from _worthy(run[largest + 1 :], inputs_min)


def _within(groups: Sequence[Group], budget_bytes: int) -> Iterator[Group]:
    spent = 0
    for group in groups:
        spent += group.stored_bytes
        if spent > budget_bytes and spent > group.stored_bytes:
            return
        yield group
