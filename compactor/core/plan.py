"""Plans which pieces of the log become one file (pure).

A piece is all segments of one task in one object. Pieces of one task are ordered by commit_ts; merging neighbours keeps
the time span of a file as short as its bytes allow, so that readers hold little at a time.

- A run of neighbours ends before it would exceed `target_bytes` stored, `raw_bytes_max` unpacked, or other limits: a
  log that compresses well is large in memory. Pieces of at least half of a limit are *full*: they are left alone, and
  nothing is merged across them. So are pieces in objects that could not be merged before.
- A run is merged when it has `inputs_min` pieces and none of them holds more than half of its bytes. So every rewritten
  byte ends in a file at least twice as large: a byte is rewritten at most log2(target / its first piece) times. A run
  with one large piece is tried again to the left and right of it.
- Oldest first, up to `budget_bytes` of stored input; at least one run.

The same pieces give the same plan. The commit decides: it refuses pieces that have changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tistream.catalog.rows.compaction import Piece
from tistream.catalog.rows.segments import SegmentRow
from tistream.ids import Tenant
from tistream.limits import COMPACTED_FILE_BYTES_TARGET, COMPACTED_RAW_BYTES_MAX, COMPACTED_ROWS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """Limits of a plan."""

    target_bytes: int = COMPACTED_FILE_BYTES_TARGET  #: stored bytes of the inputs of one output
    raw_bytes_max: int = COMPACTED_RAW_BYTES_MAX  #: of the inputs of one output, unpacked
    rows_max: int = COMPACTED_ROWS_MAX  #: of one output
    pieces_max: int = 1000  #: of one output: they are replaced in one transaction
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
    """The complete input of one worker: segments that become one file."""

    tenant: Tenant
    job: int
    range_id: int  #: from 0, within the job
    task_id: int
    segments: tuple[SegmentRow, ...]
    safe_ts: int = 0  #: obsolete versions of keys at or below it may go; 0 = every row stays


def plan(pieces: Iterable[Piece], settings: PlanSettings, excluded: Collection[str] = ()) -> list[Group]:
    """The groups, oldest first. `pieces` in any order; `excluded`: objects that are left alone."""
    groups = [
        Group(task_id=task_id, pieces=tuple(worthy))
        for task_id, mine in _by_task(pieces).items()
        for run in _runs(mine, settings, excluded)
        for worthy in _worthy(run, settings.inputs_min)
    ]
    groups.sort(key=lambda group: _place(group.pieces[0]))
    return list(_within(groups, settings.budget_bytes))


def _place(piece: Piece) -> tuple[int, int, str, int]:
    return (piece.lo_ts, piece.hi_ts, piece.object_key, piece.task_id)


def unfinished(pieces: Iterable[Piece], settings: PlanSettings, excluded: Collection[str] = ()) -> list[Piece]:
    """The last run of each task, which may become a group with later pieces."""
    return [piece for mine in _by_task(pieces).values() for piece in list(_runs(mine, settings, excluded))[-1]]


def _by_task(pieces: Iterable[Piece]) -> dict[int, list[Piece]]:
    of_task: dict[int, list[Piece]] = {}
    for piece in sorted(pieces, key=_place):
        of_task.setdefault(piece.task_id, []).append(piece)
    return of_task


@dataclass(frozen=True, slots=True)
class _Held:
    """Size of a run."""

    stored: int = 0
    raw: int = 0
    rows: int = 0
    pieces: int = 0

    def plus(self, piece: Piece) -> _Held:
        return _Held(
            self.stored + piece.stored_bytes, self.raw + piece.raw_bytes, self.rows + piece.rows, self.pieces + 1
        )

    def is_over(self, settings: PlanSettings) -> bool:
        is_large = self.stored > settings.target_bytes or self.raw > settings.raw_bytes_max
        return is_large or self.rows > settings.rows_max or self.pieces > settings.pieces_max

    def is_full(self, settings: PlanSettings) -> bool:
        return (
            self.stored * 2 >= settings.target_bytes
            or self.raw * 2 >= settings.raw_bytes_max
            or self.rows * 2 >= settings.rows_max
        )


def _runs(pieces: Sequence[Piece], settings: PlanSettings, excluded: Collection[str]) -> Iterator[list[Piece]]:
    run: list[Piece] = []
    held = _Held()
    for piece in pieces:
        is_full = piece.object_key in excluded or _Held().plus(piece).is_full(settings)
        if is_full or held.plus(piece).is_over(settings):
            yield run
            run, held = [], _Held()
        if not is_full:
            run.append(piece)
            held = held.plus(piece)
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
