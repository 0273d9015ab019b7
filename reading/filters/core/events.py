"""Which kinds of changes are delivered: `ops=`, and the event filters of TiCDC.

An event filter belongs to the tables of its matcher and names what is ignored there:

    matcher                          rules of tables; required
    ignore-event                     kinds of changes and of DDL by TiCDC's names, such as insert, all ddl, drop table
    ignore-sql                       regular expressions (RE2), found anywhere in the text of a DDL, in any case
    ignore-insert-value-expr         row expressions: a change for which one is true is ignored
    ignore-update-old-value-expr
    ignore-update-new-value-expr
    ignore-delete-value-expr
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from reading.core.changes import DELETE, INSERT, UPDATE
from reading.filters.core.refusal import check_length, refused, unknown_word
from reading.filters.core.regexes import Price, found
from reading.filters.core.rules import TableRules, parse_table_rules
from reading.filters.core.syntax import Expression, parse_expression
from schemas.actions import EVENTS
from schemas.model import DdlEvent

PARAMETER = "event_filters"
_KINDS = {"insert": INSERT, "update": UPDATE, "delete": DELETE}
_DDL = "ddl"
_OWN_STATEMENTS = frozenset({1, 2, 3, 4, 11, 14, 21, 24, 25, 26, 47, 60})  # not clauses of ALTER TABLE
#: TiCDC's names of DDL -> TiDB's action types
_DDL_EVENTS: dict[str, frozenset[int]] = {
    "all ddl": EVENTS,
    "alter table": EVENTS - _OWN_STATEMENTS,
    "create schema": frozenset({1}),
    "create database": frozenset({1}),
    "drop schema": frozenset({2}),
    "drop database": frozenset({2}),
    "create table": frozenset({3, 60}),
    "drop table": frozenset({4}),
    "truncate table": frozenset({11}),
    "rename table": frozenset({14, 47}),
    "create view": frozenset({21}),
    "drop view": frozenset({24}),
    "modify schema charset and collate": frozenset({26}),
    "recover table": frozenset({25}),
    "rebase auto id": frozenset({13}),
    "modify table comment": frozenset({17}),
    "modify table charset and collate": frozenset({22}),
    "add table partition": frozenset({19}),
    "drop table partition": frozenset({20}),
    "truncate table partition": frozenset({23}),
    "exchange table partition": frozenset({42}),
    "reorganize table partition": frozenset({64}),
    "alter table partitioning": frozenset({71}),
    "remove table partitioning": frozenset({72}),
    "add column": frozenset({5}),
    "drop column": frozenset({6}),
    "modify column": frozenset({12}),
    "set default value": frozenset({15}),
    "create index": frozenset({7}),
    "drop index": frozenset({8}),
    "rename index": frozenset({18}),
    "alter index visibility": frozenset({41}),
    "add primary key": frozenset({32}),
    "drop primary key": frozenset({33}),
    "alter ttl info": frozenset({65}),
    "alter ttl remove": frozenset({67}),
    "multi schema change": frozenset({61}),
}
_EXPRESSIONS = {
    "ignore-insert-value-expr": (INSERT, "after"),
    "ignore-update-old-value-expr": (UPDATE, "before"),
    "ignore-update-new-value-expr": (UPDATE, "after"),
    "ignore-delete-value-expr": (DELETE, "before"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """The kinds of an `ops` parameter."""

    kinds: frozenset[int]  #: of INSERT, UPDATE, DELETE
    ddl: bool


def parse_operations(text: str) -> Operations:
    """The kinds of `ops=insert,update,delete,ddl`. FilterInvalid for another word."""
    check_length("ops", text)
    kinds, ddl, at = set[int](), False, 0
    for word in text.split(","):
        name = word.strip().lower()
        if name == _DDL:
            ddl = True
        elif name in _KINDS:
            kinds.add(_KINDS[name])
        elif name:
            raise unknown_word("ops", text, at, word.strip(), [*_KINDS, _DDL])
        at += len(word) + 1
    if not kinds and not ddl:
        raise refused("ops", text, 0, "nothing is given")
    return Operations(kinds=frozenset(kinds), ddl=ddl)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRule:
    """Changes of one kind for which the expression is true are ignored."""

    kind: int
    image: str  #: "after" or "before"
    expression: Expression


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """What is ignored of the tables that the matcher means."""

    matcher: TableRules
    kinds: frozenset[int]  #: of INSERT, UPDATE, DELETE
    ddl_types: frozenset[int]
    ddl_texts: tuple[str, ...]
    row_rules: tuple[RowRule, ...]

    def keeps_ddl(self, events: Sequence[DdlEvent]) -> list[DdlEvent]:
        """The DDL that is not ignored: by its type or its text, as the user wrote it or as it is delivered, and by the
        name of its table; of a RENAME the name before, of an EXCHANGE PARTITION either table's."""
        self.matcher.look_at([name for event in events for name in _named(event)])
        ignored = [self._means(event) and event.type in self.ddl_types for event in events]
        for regex in self.ddl_texts:
            asked = [n for n, event in enumerate(events) if not ignored[n] and self._means(event)]
            texts = [text for n in asked for text in (events[n].statement, events[n].query)]
            hits = found(pa.array(texts, pa.string()), regex, ignore_case=True)
            for place, n in enumerate(asked):
                ignored[n] = bool(hits[2 * place]) or bool(hits[2 * place + 1])
        return [event for event, is_ignored in zip(events, ignored, strict=True) if not is_ignored]

    def _means(self, event: DdlEvent) -> bool:
        named = _named(event)
        return any(self.matcher.matches(db, table) if table else self.matcher.may_match_in(db) for db, table in named)


def _named(event: DdlEvent) -> list[tuple[str, str]]:
    """The databases and tables whose DDL it is; a RENAME is one of the name that it takes away, an EXCHANGE PARTITION
    of both tables."""
    if event.type in _DDL_EVENTS["rename table"] and event.old_table:
        return [(event.old_db or event.db, event.old_table)]
    if event.exchanged is not None and event.version is not None:
        return [(event.exchanged.db, event.exchanged.name), (event.version.db, event.version.name)]
    return [(event.db, event.table)]


def parse_event_filters(text: str, price: Price | None = None) -> tuple[EventFilter, ...]:
    """The filters of a JSON list of objects with TiCDC's names. FilterInvalid for anything else."""
    check_length(PARAMETER, text)
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as e:  # ValueError: also of a number of thousands of digits
        raise refused(PARAMETER, text, getattr(e, "pos", 0), "not JSON") from e
    if not isinstance(given, list):
        raise refused(PARAMETER, text, 0, "not a list of objects")
    price = price or Price()
    return tuple(_event_filter(text, n, each, price) for n, each in enumerate(given))


def _event_filter(text: str, n: int, given: Any, price: Price) -> EventFilter:
    path = f"{PARAMETER}[{n}]"
    if not isinstance(given, dict):
        raise refused(path, text, 0, "not an object")
    known = {"matcher", "ignore-event", "ignore-sql", *_EXPRESSIONS}
    for name in given:
        if name not in known:
            raise unknown_word(path, name, 0, name, known)
    matcher = ",".join(_texts(path, "matcher", given.get("matcher")))
    kinds, types = set[int](), set[int]()
    for word in _texts(path, "ignore-event", given.get("ignore-event", [])):
        name = word.strip().lower()
        if name in _KINDS:
            kinds.add(_KINDS[name])
        elif name == "all dml":
            kinds.update(_KINDS.values())
        elif name in _DDL_EVENTS:
            types |= _DDL_EVENTS[name]
        else:
            raise unknown_word(f"{path}.ignore-event", word, 0, word, [*_KINDS, "all dml", *_DDL_EVENTS])
    return EventFilter(
        matcher=parse_table_rules(matcher, f"{path}.matcher", price),
        kinds=frozenset(kinds),
        ddl_types=frozenset(types),
        ddl_texts=tuple(_regex(path, each, price) for each in _texts(path, "ignore-sql", given.get("ignore-sql", []))),
        row_rules=tuple(_row_rule(path, name, given[name]) for name in _EXPRESSIONS if given.get(name)),
    )


def _texts(path: str, name: str, given: Any) -> Sequence[str]:
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise refused(f"{path}.{name}", "", 0, "not a list of texts")
    return given


def _regex(path: str, regex: str, price: Price) -> str:
    if too_large := price.refusal(regex):
        raise refused(f"{path}.ignore-sql", regex, 0, too_large)
    try:
        pc.match_substring_regex(pa.array([""]), regex, ignore_case=True)
    except pa.ArrowInvalid as e:
        cause = f"not a regular expression: {str(e).splitlines()[0]}"
        raise refused(f"{path}.ignore-sql", regex, 0, cause) from e
    return regex


def _row_rule(path: str, name: str, given: Any) -> RowRule:
    if not isinstance(given, str):
        raise refused(f"{path}.{name}", "", 0, "not a text")
    kind, image = _EXPRESSIONS[name]
    return RowRule(kind=kind, image=image, expression=parse_expression(given, f"{path}.{name}"))
