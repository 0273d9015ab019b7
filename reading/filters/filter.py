"""A filter as a request asks for it, and what it means for tables, columns and DDL of a schema history."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from reading.filters.core.events import (
    PARAMETER,
    EventFilter,
    Operations,
    parse_event_filters,
    parse_operations,
)
from reading.filters.core.refusal import refused
from reading.filters.core.regexes import Price, weight
from reading.filters.core.rules import ColumnRules, TableRules, parse_column_rules, parse_table_rules
from reading.filters.core.syntax import Expression, parse_expression
from reading.formats.rows import handle_columns
from reading.rows.scope import Scope, table_ids, wanted
from schemas.history import History
from schemas.layout import ByIdentity, kept_by_version
from schemas.model import DdlEvent, Table
from schemas.names import folded, similar
from tistream.errors import NotFound

#: the parameters of a request
FILTER_NAMES = ("tables", "columns", "ops", "where", "changed", PARAMETER)
_RULES_KEPT = 64  # lists of table ids of one history


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One of `of` parts of a tenant's changes: each table name, and each DDL by the table that it names, belongs to
    one part, so all changes under a name stay in order."""

    number: int
    of: int
    only: str | None = None  #: this table alone, a name of `part_name`
    without: frozenset[str] = frozenset()  #: these tables belong to other parts

    def has(self, database: str, table: str) -> bool:
        """Whether the table of this name belongs to the part."""
        name = part_name(database, table)
        if self.only is not None:
            return name == self.only
        return name not in self.without and zlib.crc32(name.encode("utf-8", "surrogatepass")) % self.of == self.number


def part_name(database: str, table: str) -> str:
    """A table's name as parts have it."""
    return f"{folded(database)}.{folded(table)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What a reader wants of a scope; None means everything."""

    tables: TableRules | None = None
    columns: ColumnRules | None = None
    ops: Operations | None = None
    where: Expression | None = None
    changed: ColumnRules | None = None
    event_filters: tuple[EventFilter, ...] = ()
    part: Part | None = None  #: of a consumer; not a parameter of a request

    def means(self, table: Table) -> bool:
        """Whether rows of the table may pass."""
        return self._means_name(table.db, table.name)

    def _means_name(self, database: str, table: str) -> bool:
        if self.part is not None and not self.part.has(database, table):
            return False
        return self.tables is None or self.tables.matches(database, table)

    def keeps_ddl(self, events: Iterable[DdlEvent]) -> list[DdlEvent]:
        """The DDL that passes: by any of the names that it concerns."""
        if self.ops is not None and not self.ops.ddl:
            return []
        kept = [e for e in events if self.part is None or self.part.has(e.db, e.table)]
        if self.tables is not None:
            self.tables.look_at([pair for event in kept for pair in _names(event)])
            kept = [event for event in kept if _concerned(self.tables, event)]
        for each in self.event_filters:
            kept = each.keeps_ddl(kept)
        return kept

    @property
    def weight(self) -> int:
        """Of its expressions and patterns."""
        rules = [each for each in (self.tables, *(e.matcher for e in self.event_filters)) if each is not None]
        patterns = [pattern for each in rules for rule in each.rules for pattern in (rule.database, rule.table)]
        patterns += [pattern for each in (self.columns, self.changed) if each is not None for pattern, _ in each.rules]
        texts = [pattern.regex for pattern in patterns if pattern.name is None]
        texts += [regex for each in self.event_filters for regex in each.ddl_texts]
        likes = [pattern for expression in self._expressions() for pattern in expression.patterns()]
        return sum(map(weight, texts)) + sum(map(len, likes))

    def table_ids(self, history: History, scope: Scope, after: int, upto: int) -> Collection[int] | None:
        """The physical ids whose rows may pass in (after, upto], or some more; None for all of a tenant."""
        of_scope = table_ids(history, scope, after, upto)
        if self.tables is None and self.part is None:
            return of_scope
        meant = _ids_of(history, self.tables, self.part, self._means_name)
        return meant if of_scope is None else meant.intersection(of_scope)

    def shown(self, table: Table) -> Table:
        """The table version with the columns that are delivered: those that `columns` means, and those of the key."""
        return table if self.columns is None else _projected(self.columns, ByIdentity(table))

    def asked(self, table: Table) -> Table:
        """The table version with the columns that are delivered, and those that expressions name."""
        if self.columns is None:
            return table
        kept = {c.offset for c in self.shown(table).columns}
        named = {folded(name) for name in self.named()}
        return replace(table, columns=tuple(c for c in table.columns if c.offset in kept or folded(c.name) in named))

    @property
    def digest(self) -> int:
        """A number of the filter: of another one it is surely not the same by chance."""
        rules = [None if each is None else each.text for each in (self.tables, self.columns, self.where, self.changed)]
        events = [repr(each) for each in self.event_filters]
        ops = None if self.ops is None else [sorted(self.ops.kinds), self.ops.ddl]
        part = self.part
        of = None if part is None else [part.number, part.of, part.only, sorted(part.without)]
        return zlib.crc32(repr([rules, ops, events, of]).encode("utf-8", "surrogatepass"))

    def named(self) -> list[str]:
        """The columns that expressions name."""
        return [column.name for expression in self._expressions() for column in expression.columns()]

    def check_names(self, history: History, scope: Scope, after: int, upto: int) -> None:
        """FilterInvalid for a table or column that is named and does not exist at any time in [after, upto]."""
        if self.tables is not None:
            for rule in self.tables.rules:
                if rule.is_one_table:
                    names = str(rule.database.name), str(rule.table.name)
                    _check_table(self.tables, rule.database.at, history, names, after, upto)
        missing = {(parameter, text, at): name for parameter, text, name, at in self._columns_named()}
        known: dict[str, str] = {}
        for table in _tables(history, scope, after, upto) if missing else ():
            if not self.means(table):
                continue
            known |= {folded(c.name): c.name for c in table.visible_columns}
            missing = {place: name for place, name in missing.items() if folded(name) not in known}
            if not missing:
                return
        for (parameter, text, at), name in missing.items() if known else ():
            close = similar(name, list(known.values()))
            hint = f". Did you mean {close[0]}?" if close else "."
            cause = f"there is no column {name!r}"
            raise refused(parameter, text, at, cause, hint=hint, column=name, did_you_mean=close)

    def _expressions(self) -> list[Expression]:
        rules = [r.expression for f in self.event_filters for r in f.row_rules]
        return rules if self.where is None else [self.where, *rules]

    def _columns_named(self) -> Iterator[tuple[str, str, str, int]]:
        """(parameter, its text, column, place)."""
        for expression in self._expressions():
            for column in expression.columns():
                yield expression.parameter, expression.text, column.name, column.at
        for given in (self.columns, self.changed):
            if given is not None:
                for name, at in given.names():
                    yield given.parameter, given.text, name, at


NO_FILTER = Filter()


def parse_filter(given: Mapping[str, str]) -> Filter:
    """The filter of these parameters (`FILTER_NAMES`; others are not looked at). FilterInvalid for a wrong one."""
    tables, columns, ops, where, changed, events = (given.get(name) for name in FILTER_NAMES)
    price = Price()
    return Filter(
        tables=None if tables is None else parse_table_rules(tables, price=price),
        columns=None if columns is None else parse_column_rules(columns, "columns", price),
        ops=None if ops is None else parse_operations(ops),
        where=None if where is None else parse_expression(where),
        changed=None if changed is None else parse_column_rules(changed, "changed", price),
        event_filters=() if events is None else parse_event_filters(events, price),
    )


def _concerned(rules: TableRules, event: DdlEvent) -> bool:
    if not event.table:
        return rules.may_match_in(event.db)
    return any(rules.matches(db, name) for db, name in _names(event))


def _names(event: DdlEvent) -> list[tuple[str, str]]:
    names = [(event.db, event.table), (event.old_db, event.old_table)]
    names += [(t.db, t.name) for t in (event.version, event.exchanged) if t is not None]
    return [(db, name) for db, name in names if name]


_Names = tuple[str | None, Part | None]  # the text of the rules: rules themselves hold all names they have met
_IDS: WeakKeyDictionary[History, dict[_Names, frozenset[int]]] = WeakKeyDictionary()


def _ids_of(
    history: History, rules: TableRules | None, part: Part | None, means: Callable[[str, str], bool]
) -> frozenset[int]:
    """The physical ids that tables of these names ever had. A history that changes is a new object, so the same object
    has the same names."""
    known = _IDS.setdefault(history, {})
    names = None if rules is None else rules.text, part
    ids = known.get(names)
    if ids is None:
        if len(known) >= _RULES_KEPT:
            known.clear()
        if rules is not None:
            rules.look_at(_names_in(history))
        ids = known[names] = frozenset(history.physical_ids_named(means))
    return ids


def _names_in(history: History) -> set[tuple[str, str]]:
    """All names (database, table) of the history, in lower case."""
    there: set[tuple[str, str]] = set()

    def note(database: str, table: str) -> bool:
        there.add((database, table))
        return False

    history.physical_ids_named(note)
    return there


@kept_by_version
def _projected(rules: ColumnRules, key: ByIdentity) -> Table:
    """One object for one version, so that layouts of it are kept. Indexes over columns that are left out are too."""
    table = key.table
    handles = {c.offset for c in handle_columns(table)}
    columns = tuple(c for c in table.columns if not c.visible or c.offset in handles or rules.matches(c.name))
    offsets = {c.offset for c in columns}
    indexes = tuple(i for i in table.indexes if all(c.offset in offsets for c in i.columns))
    return replace(table, columns=columns, indexes=indexes)


def _tables(history: History, scope: Scope, after: int, upto: int) -> Iterator[Table]:
    """The versions that tables of the scope have in [after, upto]."""
    if scope.database is not None and scope.table is not None:
        tables = history.named(scope.database, scope.table, after)
        yield from [tables] if tables is not None else []
    else:
        for database in history.databases(after):
            if scope.database is None or folded(database.name) == folded(scope.database):
                yield from (table for table in history.tables(database.name, after) if wanted(table, scope))
    yield from (table for table in history.changed_versions(after, upto) if wanted(table, scope))


def _check_table(rules: TableRules, at: int, history: History, names: tuple[str, str], after: int, upto: int) -> None:
    if history.existed(*names, after, upto):
        return
    try:
        history.find(*names, after)
    except NotFound as error:
        cause, _, guess = error.message.partition(", ")
        raise refused("tables", rules.text, at, cause, hint=f", {guess}" if guess else ".", **error.facts) from error
