"""The DDL of a scope."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reading.scope import Scope, concerns
from schemas.actions import Action
from schemas.model import DdlEvent, Table
from tistream.ids import Tenant

T = Tenant(1, 1)
EVENT = DdlEvent(
    commit_ts=5, start_ts=4, job_id=1, schema_version=1, type=5, kind="add column", query="q", db="Shop",
    table="Orders", db_id=1, table_id=7,
)  # fmt: skip


def table(db: str, name: str) -> Table:
    return Table(
        id=1, db_id=1, db=db, name=name, charset="", collate="", columns=(), indexes=(), pk_is_handle=False,
        is_common_handle=False,
    )  # fmt: skip


RENAME = replace(EVENT, type=Action.RENAME_TABLE, db="arch", table="kept", old_db="shop", old_table="orders")
EXCHANGE = replace(
    EVENT,
    type=Action.EXCHANGE_PARTITION,
    table="swap",
    version=table("shop", "parted"),
    exchanged=table("shop", "swap"),
)
DROP_DB = replace(EVENT, type=Action.DROP_SCHEMA, table="")
CREATE_DB = replace(EVENT, type=Action.CREATE_SCHEMA, table="")


@pytest.mark.parametrize(
    ("event", "database", "name", "wanted"),
    [
        (EVENT, None, None, True),
        (EVENT, "SHOP", None, True),
        (EVENT, "shop", "orders", True),
        (EVENT, "shop", "other", False),
        (EVENT, "arch", None, False),
        (EVENT, "arch", "orders", False),
        (RENAME, "shop", "orders", True),
        (RENAME, "arch", "kept", True),
        (RENAME, "arch", "orders", False),
        (RENAME, "shop", None, True),
        (RENAME, "arch", None, True),
        (EXCHANGE, "shop", "swap", True),
        (EXCHANGE, "shop", "parted", True),
        (EXCHANGE, "shop", "third", False),
        (DROP_DB, "shop", None, True),
        (DROP_DB, "shop", "orders", True),
        (DROP_DB, "arch", "orders", False),
        (CREATE_DB, "shop", None, True),
        (CREATE_DB, "shop", "orders", False),
    ],
)
def test_scope_of_ddl(event: DdlEvent, database: str | None, name: str | None, wanted: bool) -> None:
    assert concerns(event, Scope(tenant=T, database=database, table=name)) is wanted
