"""Types of the catalog's columns, and the columns that most of its tables have. See `tables`."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, LargeBinary, MetaData, String
from sqlalchemy import Text as SqlText
from sqlalchemy.dialects import mysql

from tistream.catalog.database.names import Name

metadata = MetaData()

WORKER_NAME_MAX = 128
KEY_BYTES_MAX = 9216  #: TiKV refuses keys above 8 KiB

_MYSQL = ("mysql", "mariadb")
UInt = BigInteger().with_variant(mysql.BIGINT(unsigned=True), *_MYSQL)
KeyBytes = LargeBinary(KEY_BYTES_MAX).with_variant(mysql.VARBINARY(KEY_BYTES_MAX), *_MYSQL)
Word = Name(32)
WorkerName = Name(WORKER_NAME_MAX)
ObjectName = Name(512)
SecretHash = Name(64)
OpenKey = Name(256)
AnswerBytes = LargeBinary().with_variant(mysql.MEDIUMBLOB(), *_MYSQL)
ReportText = SqlText().with_variant(mysql.MEDIUMTEXT(), *_MYSQL)
#: text of any language, compared character by character by every database
ExactText = String(255).with_variant(mysql.VARCHAR(255, charset="utf8mb4", collation="utf8mb4_bin"), *_MYSQL)


def id_(name: str, **kwargs: Any) -> Column[int]:
    """A number that is the primary key, or a part of it."""
    return Column(name, UInt, primary_key=True, autoincrement=False, **kwargs)


def ids(*names: str) -> list[Column[int]]:
    """Numbers that are parts of the primary key."""
    return [id_(name) for name in names]


def uints(*names: str) -> list[Column[int]]:
    """Numbers."""
    return [uint(name) for name in names]


def uint(name: str) -> Column[int]:
    """A number."""
    return Column(name, UInt, nullable=False)


def ids_with(name: str) -> list[Column[Any]]:
    """The ids of a tenant and a name, which are the primary key."""
    return [*ids("cluster_id", "tenant_id"), Column(name, WorkerName, primary_key=True)]


def with_default(name: str, value: str) -> Column[int]:
    """A number that the database fills in for releases that do not know it."""
    return Column(name, UInt, nullable=False, server_default=value)


def key_range() -> list[Column[bytes]]:
    """The ends of a key range."""
    return [Column(name, KeyBytes, nullable=False) for name in ("start_key", "end_key")]
