"""Lists of rules: which tables (`tables=`) and which columns (`columns=`, `changed=`) are meant.

    tables     DATABASE.TABLE, both patterns
    columns    one pattern

A rule that begins with `!` excludes. The last rule that matches a name decides; a name that no rule matches is not
meant. Rules are separated by commas.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from reading.filters.core.patterns import Pattern, PatternReader
from reading.filters.core.refusal import check_length
from reading.filters.core.regexes import Price
from schemas.names import folded


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRule:
    """One rule of tables."""

    database: Pattern
    table: Pattern
    includes: bool

    @property
    def is_one_table(self) -> bool:
        """Whether it includes exactly one name."""
        return self.includes and self.database.name is not None and self.table.name is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRules:
    """The rules of a `tables` parameter, or of the matcher of an event filter."""

    text: str
    rules: tuple[TableRule, ...]

    def look_at(self, names: Collection[tuple[str, str]]) -> None:
        """Match many names (database, table) at once, before `matches` is asked about each."""
        for rule in self.rules:
            rule.database.look_at(folded(database) for database, _ in names)
            rule.table.look_at(folded(table) for _, table in names)

    def matches(self, database: str, table: str) -> bool:
        """Whether a table is meant."""
        for rule in reversed(self.rules):
            if rule.database.matches(database) and rule.table.matches(table):
                return rule.includes
        return False

    def may_match_in(self, database: str) -> bool:
        """Whether the database as a whole is meant: by a rule that includes some of its tables, and not excluded as a
        whole by a later one."""
        for rule in reversed(self.rules):
            if rule.database.matches(database) and (rule.includes or rule.table.matches_all):
                return rule.includes
        return False


def parse_table_rules(text: str, parameter: str = "tables", price: Price | None = None) -> TableRules:
    """The rules of a text. FilterInvalid with the position for anything else."""
    check_length(parameter, text)
    reader, rules = PatternReader(parameter, text, price), list[TableRule]()

    def one() -> None:
        includes = _includes(reader)
        database = reader.pattern()
        if reader.peek() != ".":
            raise reader.refused("a table is missing: write DATABASE.TABLE")
        reader.at += 1
        rules.append(TableRule(database=database, table=reader.pattern(), includes=includes))

    reader.items(one)
    if not rules:
        raise reader.refused("nothing is given")
    return TableRules(text=text, rules=tuple(rules))


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRules:
    """The rules of a `columns` or `changed` parameter."""

    parameter: str
    text: str
    rules: tuple[tuple[Pattern, bool], ...]

    def matches(self, column: str) -> bool:
        """Whether a column is meant."""
        for pattern, includes in reversed(self.rules):
            if pattern.matches(column):
                return includes
        return False

    def names(self) -> Iterator[tuple[str, int]]:
        """The plain names in the rules, with their places."""
        return ((pattern.name, pattern.at) for pattern, _ in self.rules if pattern.name is not None)


def parse_column_rules(text: str, parameter: str, price: Price | None = None) -> ColumnRules:
    """The rules of a text. FilterInvalid with the position for anything else."""
    check_length(parameter, text)
    reader, rules = PatternReader(parameter, text, price), list[tuple[Pattern, bool]]()

    def one() -> None:
        includes = _includes(reader)
        rules.append((reader.pattern(), includes))

    reader.items(one)
    if not rules:
        raise reader.refused("nothing is given")
    return ColumnRules(parameter=parameter, text=text, rules=tuple(rules))


def _includes(reader: PatternReader) -> bool:
    if reader.peek() != "!":
        return True
    reader.at += 1
    return False
