"""Watches every transaction of the catalog: the counter of events is the last row that it locks.

All transactions that record an event meet at that counter. One that locks something after it may wait for another that
has this lock and waits for the counter: a deadlock, which MariaDB ends by refusing one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, Engine, event

_WRITES = ("INSERT", "UPDATE", "DELETE", "REPLACE")
_COUNTED: WeakSet[Connection] = WeakSet()  # those whose transaction holds the counter
_BROKEN: list[str] = []  # statements of this process that came too late


def locked_after_events() -> list[str]:
    """The statements that break the rule from now on, in this process: a list that grows until the next call."""
    _BROKEN.clear()
    return _BROKEN


def _is_of_counter(statement: str, parameters: Any) -> bool:
    if not statement.startswith("UPDATE counters"):
        return False
    given = parameters.values() if isinstance(parameters, dict) else parameters
    return "event" in given or "'event'" in statement


def _locks(statement: str) -> bool:
    """More than the new event."""
    if statement.startswith("INSERT INTO events"):
        return False
    return statement.startswith(_WRITES) or "FOR UPDATE" in statement or "LOCK IN SHARE MODE" in statement


def _execute(conn: Connection, _: Any, statement: str, parameters: Any, *__: Any) -> None:
    if _is_of_counter(statement, parameters):
        _COUNTED.add(conn)
    elif conn in _COUNTED and _locks(statement):
        _BROKEN.append(statement)


def _end(conn: Connection) -> None:
    _COUNTED.discard(conn)


# For good: SQLAlchemy's lists of listeners do not bear changes while other threads use a catalog.
_LISTENERS: Mapping[str, Callable[..., Any]] = {
    "before_cursor_execute": _execute,
    "begin": _end,
    "commit": _end,
    "rollback": _end,
}
for _name, _listener in _LISTENERS.items():
    event.listen(Engine, _name, _listener)
