"""Which columns of a table a read as of a timestamp delivers (pure).

TiDB computes a virtual generated column when it is read and stores no value of it. A read of the whole table leaves it
out and says so; a read that asks for it by name is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from schemas.model import STATE_PUBLIC, Column, Table
from schemas.names import folded, no_column
from tistream.errors import ColumnNotStored, InvalidInput

_NAME = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^`,]+?))\s*(,|$)")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A column that a read of the whole table does not have."""

    column: str
    expression: str  #: as TiDB shows it
    reason: str = "virtual generated column"


def parse_columns(text: str | None) -> tuple[str, ...] | None:
    """The names of a list such as ``id,`a,b` ``; None for None. InvalidInput when it is not a list."""
    if text is None:
        return None
    names: list[str] = []
    at = 0
    while True:
        match = _NAME.match(text, at)
        if match is None:
            raise InvalidInput(
                f"'{text[:80]}' is no list of columns: separate names by commas; a name with a comma is in backquotes."
            )
        names.append(match[1].replace("``", "`") if match[1] is not None else match[2])
        at = match.end()
        if not match[3]:
            return tuple(names)


def projected(table: Table, names: Sequence[str] | None) -> Table:
    """The table with no other visible columns than these, in table order; the whole table for None. NotFound for an
    unknown name, ColumnNotStored for a virtual generated column."""
    if names is None:
        return table
    known = {folded(column.name): column for column in table.columns if _readable(column)}
    chosen = set()
    for name in names:
        column = known.get(folded(name))
        if column is None:
            raise no_column(table.db, table.name, name, [each.name for each in known.values()])
        if not column.visible:
            raise ColumnNotStored(
                f"Column {column.name} of {table.db}.{table.name} is a virtual generated column: TiDB computes "
                f"{column.generated_expr} when it is read, and stores no value.",
                database=table.db,
                table=table.name,
                column=column.name,
                expression=column.generated_expr,
            )
        chosen.add(column.id)
    return replace(table, columns=tuple(c if c.id in chosen else replace(c, hidden=True) for c in table.columns))


def left_out(table: Table) -> tuple[LeftOut, ...]:
    """The columns that a read of the whole table leaves out, in table order."""
    missing = (column for column in table.columns if _readable(column) and not column.visible)
    return tuple(LeftOut(column.name, column.generated_expr) for column in missing)


def _readable(column: Column) -> bool:
    """Whether a SELECT could name it."""
    return column.state == STATE_PUBLIC and not column.hidden
