"""The database's time as an SQL expression, for every supported database."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class now_ms(FunctionElement[int]):
    """Unix milliseconds by the database's clock, as an expression."""

    type = BigInteger()
    inherit_cache = True


@compiles(now_ms, "sqlite")
def _now_ms_sqlite(_element: now_ms, _compiler: Any, **_kwargs: Any) -> str:
    return "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"


@compiles(now_ms, "mysql")
@compiles(now_ms, "mariadb")
def _now_ms_mysql(_element: now_ms, _compiler: Any, **_kwargs: Any) -> str:
    return "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS UNSIGNED)"
