"""Metrics of an engine's statements and write transactions, from SQLAlchemy events."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import Connection, Engine, event

from tistream.runtime import metrics

_OK = metrics.CATALOG_STATEMENTS.labels("ok")
_FAILED = metrics.CATALOG_STATEMENTS.labels("error")
_COMMITTED = metrics.CATALOG_TRANSACTIONS.labels("committed")
_ROLLED_BACK = metrics.CATALOG_TRANSACTIONS.labels("rolled back")


def watch(engine: Engine) -> Engine:
    """Instrument this engine. Transactions of readers, which hold one statement, are not counted."""
    event.listen(engine, "before_cursor_execute", _begin)
    event.listen(engine, "after_cursor_execute", _end)
    event.listen(engine, "handle_error", _fail)
    event.listen(engine, "commit", _commit)
    event.listen(engine, "rollback", _roll_back)
    return engine


def _begin(conn: Connection, *_: Any) -> None:
    conn.info["tistream_began"] = time.perf_counter()


def _end(conn: Connection, *_: Any) -> None:
    _OK.inc()
    metrics.CATALOG_SECONDS.observe(time.perf_counter() - conn.info["tistream_began"])


def _fail(_context: Any) -> None:
    _FAILED.inc()


def _commit(conn: Connection) -> None:
    if _writes(conn):
        _COMMITTED.inc()


def _roll_back(conn: Connection) -> None:
    if _writes(conn):
        _ROLLED_BACK.inc()


def _writes(conn: Connection) -> bool:
    return not conn.get_execution_options().get("tistream_reads")
