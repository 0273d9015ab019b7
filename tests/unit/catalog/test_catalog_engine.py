"""What a driver's error means to a caller of the catalog."""

from __future__ import annotations

import inspect
import sqlite3
from types import ModuleType

import pymysql
import pytest
from sqlalchemy import exc

from tistream.catalog.database.engine import map_error
from tistream.errors import CatalogUnavailable, TiStreamError

AGAIN, NEVER = CatalogUnavailable, TiStreamError

#: Every error class that the two drivers define, and what its errors mean when no code says otherwise.
MEANING = {
    "Error": AGAIN,
    "InterfaceError": AGAIN,
    "DatabaseError": AGAIN,
    "OperationalError": AGAIN,
    "InternalError": AGAIN,
    "DataError": NEVER,
    "IntegrityError": NEVER,
    "ProgrammingError": NEVER,
    "NotSupportedError": NEVER,
}


def error_classes(module: ModuleType) -> list[type[Exception]]:
    return [
        c
        for _, c in inspect.getmembers(module, inspect.isclass)
        if issubclass(c, module.Error) and issubclass(c, Exception)
    ]


def wrapped(original: Exception, module: ModuleType) -> exc.SQLAlchemyError:
    error = exc.DBAPIError.instance("SELECT", {}, original, module.Error)
    assert isinstance(error, exc.SQLAlchemyError)
    return error


@pytest.mark.parametrize(
    ("module", "error_class"),
    [(m, c) for m in (sqlite3, pymysql.err) for c in error_classes(m)],
    ids=lambda p: p.__name__,
)
def test_every_error_class_of_the_drivers_is_mapped(module: ModuleType, error_class: type[Exception]) -> None:
    mapped = map_error(wrapped(error_class(0, "went wrong"), module))
    assert type(mapped) is MEANING[error_class.__name__]
    assert "went wrong" in str(mapped)


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (1213, AGAIN),  # deadlock
        (1205, AGAIN),  # lock wait timeout
        (1040, AGAIN),  # too many connections
        (2006, AGAIN),  # server has gone away
        (2013, AGAIN),  # lost connection
        (1290, AGAIN),  # read only, as in a failover
        (1054, NEVER),  # unknown column
        (1045, NEVER),  # access denied
        (1049, NEVER),  # unknown database
    ],
)
def test_a_code_of_mysql_decides(code: int, meaning: type[TiStreamError]) -> None:
    mapped = map_error(wrapped(pymysql.err.OperationalError(code, "text"), pymysql.err))
    assert type(mapped) is meaning


def test_an_error_before_commit_is_determinate() -> None:
    mapped = map_error(wrapped(pymysql.err.OperationalError(1213, "Deadlock found"), pymysql.err))
    assert isinstance(mapped, CatalogUnavailable)
    assert mapped.determinate is True
    assert mapped.kind == "retry"


def test_an_exhausted_pool_is_unavailable() -> None:
    assert type(map_error(exc.TimeoutError("QueuePool limit reached"))) is CatalogUnavailable


def test_a_broken_statement_is_not_unavailable() -> None:
    assert type(map_error(exc.CompileError("cannot compile"))) is TiStreamError


def test_the_values_of_a_statement_are_not_shown() -> None:
    original = sqlite3.OperationalError("disk I/O error")
    error = exc.OperationalError("SELECT ?", ("secret key",), original)
    assert "secret" not in str(map_error(error))
