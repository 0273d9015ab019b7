"""Who may ask: API keys, logins of the console, and answers kept for requests that are sent again."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from tistream.catalog.database.steps import create_index, create_table, insert_rows

revision = "0008"
down_revision = "0007"

_MYSQL = ("mysql", "mariadb")
_UINT = sa.BigInteger().with_variant(mysql.BIGINT(unsigned=True), *_MYSQL)
_BYTES = sa.LargeBinary().with_variant(mysql.MEDIUMBLOB(), *_MYSQL)


def _name(length: int) -> sa.String:
    return sa.String(length).with_variant(mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), *_MYSQL)


def _words(*names: str, length: int = 32) -> list[sa.Column[str]]:
    return [sa.Column(name, _name(length), nullable=False) for name in names]


def _uints(*names: str, nullable: bool = False) -> list[sa.Column[int]]:
    return [sa.Column(name, _UINT, nullable=nullable) for name in names]


def upgrade() -> None:
    create_table(
        "api_keys",
        sa.Column("key_id", _name(32), primary_key=True),
        *_words("secret_hash", length=64),
        sa.Column("name", sa.String(255), nullable=False),
        *_words("role"),
        *_uints("cluster_id", "tenant_id", nullable=True),
        *_words("made_by"),
        sa.Column("replaced_by", _name(32)),
        *_uints("created_ms", "expires_ms", "used_ms", "revoked_ms"),
    )
    create_index("api_keys_of_tenant", "api_keys", ["cluster_id", "tenant_id"])
    create_table(
        "logins",
        sa.Column("token_hash", _name(64), primary_key=True),
        *_words("kind", "key_id"),
        *_uints("expires_ms"),
    )
    create_index("logins_by_expiry", "logins", ["expires_ms"])
    create_table(
        "kept_answers",
        sa.Column("asked_hash", _name(64), primary_key=True),
        *_words("request_hash", length=64),
        *_words("attempt"),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("media_type", sa.String(128), nullable=False),
        sa.Column("body", _BYTES, nullable=False),
        *_uints("begun_ms"),
    )
    create_index("kept_answers_by_age", "kept_answers", ["begun_ms"])
    insert_rows("counters", [{"name": "first key", "value": 0}], key="name")
