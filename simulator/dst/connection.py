"""The part of SQLAlchemy's Connection that the catalog uses, as directly as possible on one SQLite database.

SQLAlchemy compiles each statement that is written once (see tistream.catalog.database.tables), and its text then goes
straight to the driver: executing through SQLAlchemy takes ten times as long as SQLite does. One with a list among its
parameters has a text for each length of the list. A statement that is built for each use goes through SQLAlchemy.

Results have SQLAlchemy's names and meanings, and errors are SQLAlchemy's. There is no pool, and no implicit
transaction: the caller says BEGIN to the driver.
"""

from __future__ import annotations

import sqlite3
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, exc
from sqlalchemy.engine.interfaces import Dialect

Note = Callable[[str, Any, bool], None]  #: statement, parameters, whether they are many


class QuickConnection:
    """One connection, for one thread at a time. `note` is called with every statement before it runs."""

    def __init__(self, raw: sqlite3.Connection, whole: Connection, note: Note) -> None:
        """`whole` is SQLAlchemy's connection over `raw`, which calls `note` itself."""
        self.dialect = whole.dialect
        self._raw, self._whole, self._note = raw, whole, note
        self.exec_driver_sql = whole.exec_driver_sql

    def execute(self, statement: Any, parameters: Any = None) -> Any:
        """Run a statement, with one set of parameters, with a list of sets, or with none."""
        many = isinstance(parameters, list)
        given = (parameters[0] if many else parameters) or {}
        known = _PLANS.get(statement)
        if known is None:  # for the first time, perhaps for the only time
            _PLANS[statement] = {}
            return self._whole.execute(statement, parameters)
        shape = tuple([(name, len(value) if type(value) is list else None) for name, value in given.items()])
        if shape not in known:
            known[shape] = _plan(statement, given, self.dialect)
        plan = known[shape]
        if plan is None:
            return self._whole.execute(statement, parameters)
        args = [plan.arguments(each) for each in parameters] if many else plan.arguments(given)
        self._note(plan.sql, args, many)
        try:
            cursor = (self._raw.executemany if many else self._raw.execute)(plan.sql, args)
            rows = cursor.fetchall() if plan.row is not None else []
        except sqlite3.Error as e:
            raise exc.DBAPIError.instance(plan.sql, args, e, sqlite3.Error) from e
        return _Result(plan.rows(rows), cursor.rowcount)

    def begin(self) -> QuickConnection:
        """A begun transaction; ends by `commit` or `rollback`."""
        return self

    def commit(self) -> None:
        self._whole.commit()
        self._raw.commit()

    def rollback(self) -> None:
        self._whole.rollback()
        self._raw.rollback()

    def invalidate(self, _error: BaseException | None = None) -> None:
        """Does nothing: there is only one connection."""


class _Result:
    """Rows that were fetched at once."""

    def __init__(self, rows: list[Any], rowcount: int) -> None:
        self._rows, self.rowcount = rows, rowcount

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def all(self) -> list[Any]:
        return self._rows

    def scalars(self) -> Iterator[Any]:
        return (row[0] for row in self._rows)

    def first(self) -> Any:
        return self._rows[0] if self._rows else None

    def one_or_none(self) -> Any:
        if len(self._rows) > 1:
            raise exc.MultipleResultsFound("Multiple rows were found when one or none was required")
        return self._rows[0] if self._rows else None

    def one(self) -> Any:
        if not self._rows:
            raise exc.NoResultFound("No row was found when one was required")
        return self.one_or_none()

    def scalar_one(self) -> Any:
        return self.one()[0]

    def scalar(self) -> Any:
        return self._rows[0][0] if self._rows else None

    def scalar_one_or_none(self) -> Any:
        row = self.one_or_none()
        return None if row is None else row[0]


class _Plan:
    """How a compiled statement is run with parameters of certain names."""

    __slots__ = ("_binds", "_lists", "_read", "row", "sql")

    def __init__(
        self,
        sql: str,
        binds: Sequence[tuple[str, Any, Any]],
        lists: Mapping[str, Sequence[str]],
        columns: Sequence[tuple[str, Any]],
    ) -> None:
        """`binds`: name, value unless it is given, processor, for each place; `lists`: names for the items of a given
        list; `columns`: name and processor."""
        self.sql, self._lists = sql, lists
        self.row: Any = namedtuple("Row", [name for name, _ in columns], rename=True) if columns else None
        self._binds = binds
        self._read = [read or _as_it_is for _, read in columns] if any(read for _, read in columns) else None

    def arguments(self, given: Mapping[str, Any]) -> list[Any]:
        """The driver's parameters, in the order of the places."""
        for name, items in self._lists.items():
            given = {**given, **dict(zip(items, given[name], strict=True))}
        values = [given.get(name, fixed) for name, fixed, _ in self._binds]
        return [v if write is None else write(v) for v, (_, _, write) in zip(values, self._binds, strict=True)]

    def rows(self, rows_read: list[Any]) -> list[Any]:
        """The driver's result, as rows with names and Python's types."""
        if not rows_read:
            return []
        make, read = self.row._make, self._read
        if read is None:
            return [make(values) for values in rows_read]
        return [make([to(v) for to, v in zip(read, values, strict=True)]) for values in rows_read]


def _as_it_is(value: Any) -> Any:
    return value


_PLANS: WeakKeyDictionary[Any, dict[tuple[tuple[str, int | None], ...], _Plan | None]] = WeakKeyDictionary()


def _plan(statement: Any, given: Mapping[str, Any], dialect: Dialect) -> _Plan | None:
    """None when the statement's text depends on more of its parameters than the lengths of lists."""
    compiled = statement.compile(dialect=dialect, column_keys=list(given))
    later = {bind.key for bind in compiled.post_compile_params | compiled.literal_execute_params if bind.key in given}
    if any(type(given[name]) is not list or not given[name] or type(given[name][0]) is tuple for name in later):
        return None
    values = compiled.construct_params(given, _check=False)
    text = compiled._process_parameters_for_postcompile(values)  # items of lists join the values
    lists = {name: items for name, items in text.parameter_expansion.items() if name in later}
    writes = {**compiled._bind_processors, **text.processors}
    binds = [(name, values[name], writes.get(name)) for name in text.positiontup or ()]
    columns = []
    for column in compiled._result_columns:
        type_ = column.type.dialect_impl(dialect)
        columns.append((column.keyname, type_.result_processor(dialect, None)))
    return _Plan(text.statement, binds, lists, columns)
