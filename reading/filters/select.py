"""Selects the rows of a page that pass a filter, decoding no more than it needs.

    tables     by name, before anything is decoded
    ops        kinds that cannot pass, from the presence of the two images
    rows       the columns that expressions and `changed` name are decoded, of the rows that are left
    the rest   is decoded by the caller, of the rows that pass

An expression is asked about the row before and the row after a change: a row that enters the selection is an insert,
one that leaves it a delete. Rows are changed accordingly: the old image, or the new one, is taken away.

Where the upstream sends no old values (FLAG_OLD_VALUE_UNKNOWN), a row that does not pass may have passed before. Unless
the columns of the key decide, its put is delivered as a delete, and deletes always are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reading.core.changes import DELETE, INSERT, UPDATE
from reading.core.split import classify, differs
from reading.filters.core.evaluate import evaluate
from reading.filters.core.syntax import Expression
from reading.filters.filter import Filter
from reading.rows.decode import Quarantined, decode_images, rows_of
from reading.rows.scope import Scope
from schemas.history import History
from schemas.layout import key_layout, row_layout
from schemas.model import Table
from schemas.names import folded
from tistream.codec.row.layout import ColumnSpec
from tistream.model.arrays import Mask
from tistream.model.change import FLAG_OLD_VALUE_UNKNOWN, Op

_NEEDED = ("table_id", "op", "key", "commit_ts", "value", "old_value", "flags")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """The rows of a page that pass."""

    rows: pa.Table  #: schema change.COMMITTED, in the order of the page
    quarantined: tuple[Quarantined, ...]  #: rows whose value could not be decoded to ask the expressions


def select_rows(filter: Filter, history: History, rows: pa.Table, scope: Scope) -> Selected:
    """The rows (schema change.COMMITTED, by commit_ts) that pass."""
    rows = rows.combine_chunks()
    passed: list[npt.NDArray[np.int64]] = []
    entering: list[npt.NDArray[np.int64]] = []
    leaving: list[npt.NDArray[np.int64]] = []
    bad: list[Quarantined] = []
    for table, index in rows_of(history, rows, scope):
        if filter.means(table):
            mask = _TableSelection(filter, table).of(rows, index)
            passed.append(mask.passed)
            entering.append(mask.entering)
            leaving.append(mask.leaving)
            bad += mask.quarantined
    kept = np.sort(np.concatenate([np.zeros(0, np.int64), *passed]))
    whole = rows if len(kept) == rows.num_rows else rows.take(pa.array(kept))
    changed = _without_images(whole, np.isin(kept, _all(entering)), np.isin(kept, _all(leaving)))
    return Selected(rows=changed, quarantined=tuple(bad))


def passing_rows(filter: Filter, table: Table, rows: pa.RecordBatch) -> Mask:
    """Which rows of a snapshot pass, as inserts. `rows` have the columns of the table version, in storage form."""
    return _TableSelection(filter, table).of_snapshot(rows)


def _all(parts: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _without_images(rows: pa.Table, entering: Mask, leaving: Mask) -> pa.Table:
    """The rows as inserts where they enter the selection, as deletes where they leave it."""
    for name, mask in (("old_value", entering), ("value", leaving)):
        if mask.any():
            values = pc.if_else(pa.array(mask), pa.scalar(None, pa.binary()), rows[name])
            rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), values)
    if leaving.any():
        op = np.where(leaving, np.uint8(Op.DELETE), rows["op"].to_numpy())
        rows = rows.set_column(rows.schema.get_field_index("op"), rows.schema.field("op"), pa.array(op, pa.uint8()))
    return rows.combine_chunks()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Row numbers of the page."""

    passed: npt.NDArray[np.int64]
    entering: npt.NDArray[np.int64]
    leaving: npt.NDArray[np.int64]
    quarantined: Sequence[Quarantined] = ()


class _TableSelection:
    """The rules that concern the rows of one table version."""

    def __init__(self, filter: Filter, table: Table) -> None:
        self._table, self._where = table, filter.where
        mine = [each for each in filter.event_filters if each.matcher.matches(table.db, table.name)]
        self._ignored = frozenset(kind for each in mine for kind in each.kinds)
        self._row_rules = [rule for each in mine for rule in each.row_rules]
        self._kinds = frozenset({INSERT, UPDATE, DELETE}) if filter.ops is None else filter.ops.kinds
        specs = row_layout(table).columns
        self._changed = () if filter.changed is None else tuple(s for s in specs if filter.changed.matches(s.name))
        self._asks_changed = filter.changed is not None
        named = {folded(c.name) for e in self._expressions() for c in e.columns()}
        compared = {s.id for s in self._changed}
        self._specs = tuple(s for s in specs if folded(s.name) in named or s.id in compared)

    def _expressions(self) -> list[Expression]:
        rules = [rule.expression for rule in self._row_rules]
        return rules if self._where is None else [self._where, *rules]

    def of(self, rows: pa.Table, index: npt.NDArray[np.int64]) -> _Found:
        """Which of the rows at `index` pass."""
        kind = _kinds(rows, index)
        possible = self._possible(kind)
        index, kind = index[possible], kind[possible]
        nothing = np.zeros(0, np.int64)
        if not len(index) or not (self._asks_changed or self._expressions()):
            return _Found(passed=index, entering=nothing, leaving=nothing)
        part = rows.select(_NEEDED)
        part = part if len(index) == rows.num_rows else part.take(pa.array(index)).combine_chunks()
        layout = replace(row_layout(self._table), columns=self._specs)
        after, before, bad = decode_images(self._table, layout, part)
        good = np.ones(len(index), np.bool_)
        good[sorted(bad)] = False
        images = {"after": self._columns(after), "before": self._columns(before)}
        keep = good & ~self._ignored_rows(kind, images)
        enters, leaves = np.zeros(len(index), np.bool_), np.zeros(len(index), np.bool_)
        if self._where is not None:
            unknown = (part["flags"].to_numpy() & FLAG_OLD_VALUE_UNKNOWN > 0) & part["old_value"].is_null().to_numpy()
            passes, enters, leaves = self._moved(kind, unknown & (not self._is_decided_by_key()), images)
            keep &= passes
        if self._asks_changed:
            keep &= (kind != UPDATE) | enters | leaves | self._differing(after, before)
        final = np.where(enters, INSERT, np.where(leaves, DELETE, kind))
        keep &= np.isin(final, sorted(self._kinds))
        return _Found(
            passed=index[keep],
            entering=index[keep & enters],
            leaving=index[keep & leaves],
            quarantined=[bad[n] for n in sorted(bad)],
        )

    def of_snapshot(self, rows: pa.RecordBatch) -> Mask:
        """Which rows pass as inserts."""
        count = rows.num_rows
        if INSERT not in self._kinds - self._ignored:
            return np.zeros(count, np.bool_)
        place = {spec.id: n for n, spec in enumerate(row_layout(self._table).columns)}
        columns = {folded(s.name): (s, rows.column(place[s.id])) for s in self._specs}
        images = {"after": columns, "before": columns}
        keep = ~self._ignored_rows(np.full(count, INSERT, np.uint8), images)
        return keep if self._where is None else keep & self._true(self._where, columns, count)

    def _possible(self, kind: npt.NDArray[np.uint8]) -> Mask:
        """Which kinds of changes may pass; with an expression an update may become an insert or a delete, and an
        insert without an old value a delete."""
        raw = set(self._kinds)
        if self._where is not None and raw & {INSERT, DELETE}:
            raw |= {UPDATE} | ({INSERT} if DELETE in raw else set())
        mask: Mask = np.isin(kind, sorted(raw - self._ignored))
        return mask

    def _columns(self, batch: pa.RecordBatch) -> dict[str, tuple[ColumnSpec, pa.Array]]:
        return {folded(s.name): (s, batch.column(n)) for n, s in enumerate(self._specs)}

    def _true(self, expression: Expression, columns: dict[str, tuple[ColumnSpec, pa.Array]], rows: int) -> Mask:
        mask = evaluate(expression, f"{self._table.db}.{self._table.name}", columns, rows)
        return np.asarray(pc.fill_null(mask, False).to_numpy(zero_copy_only=False), np.bool_)

    def _ignored_rows(
        self, kind: npt.NDArray[np.uint8], images: dict[str, dict[str, tuple[ColumnSpec, pa.Array]]]
    ) -> Mask:
        ignored = np.zeros(len(kind), np.bool_)
        for rule in self._row_rules:
            ignored |= (kind == rule.kind) & self._true(rule.expression, images[rule.image], len(kind))
        return ignored

    def _moved(
        self,
        kind: npt.NDArray[np.uint8],
        unknown: Mask,
        images: dict[str, dict[str, tuple[ColumnSpec, pa.Array]]],
    ) -> tuple[Mask, Mask, Mask]:
        """(passes, enters, leaves). `unknown`: the old row may have passed or not."""
        assert self._where is not None
        new = self._true(self._where, images["after"], len(kind)) & (kind != DELETE)
        old = (self._true(self._where, images["before"], len(kind)) & (kind != INSERT)) | unknown
        enters = (kind == UPDATE) & new & ~old
        leaves = (kind != DELETE) & old & ~new
        return new | old, enters, leaves

    def _is_decided_by_key(self) -> bool:
        """Whether the record key holds all columns of the expression."""
        assert self._where is not None
        held = {folded(s.name) for s in key_layout(self._table).columns}
        return {folded(c.name) for c in self._where.columns()} <= held

    def _differing(self, after: pa.RecordBatch, before: pa.RecordBatch) -> Mask:
        mask = np.zeros(after.num_rows, np.bool_)
        wanted: Collection[int] = {s.id for s in self._changed}
        for n, spec in enumerate(self._specs):
            if spec.id in wanted:
                mask |= differs(after.column(n), before.column(n))
        return mask


def _kinds(rows: pa.Table, index: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    op, flags = rows["op"].to_numpy()[index], rows["flags"].to_numpy()[index]
    no_value, no_old = (rows[name].is_null().to_numpy()[index] for name in ("value", "old_value"))
    return classify(op, no_value, no_old, flags)
