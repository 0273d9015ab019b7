"""The shop's tables, as TiDB describes them, and the DDL that makes them and changes them now and then.

    customers   id, name, email, city, joined_at                      phone from the first DDL on
    orders      id, customer_id, state, total, placed_at, changed_at  campaign comes and goes
    order_lines id, order_id, product, quantity, price
    payments    id, order_id, method, amount, paid_at

Relations: a step number decides whether the step is a DDL, and which; ids of columns are never used twice.
"""

from __future__ import annotations

import copy
from typing import Any

from schemas.meta import database_key, table_key
from simulator.ddl import JOB_TABLE, MYSQL_ID, Ddl, column, database, table
from simulator.partitions import Json
from simulator.rows import BIGINT, DATETIME, ENUM, INT, NEWDECIMAL, VARCHAR

DATABASE, DATABASE_ID = "shop", 110
TABLES = CUSTOMERS, ORDERS, ORDER_LINES, PAYMENTS = (112, 114, 116, 118)
STATES = ("cart", "new", "paid", "shipped", "delivered", "cancelled")
METHODS = ("card", "paypal", "invoice")
PHONE_STEP = 60  #: customers get a phone number
CAMPAIGN_STEPS = 1200  #: orders get or lose their campaign that often ...
CAMPAIGN_FIRST = 300  #: ... from this step on
_NOT_NULL, _PRIMARY = 1, 4099
_CREATE_DATABASE, _CREATE_TABLE, _ADD_COLUMN, _DROP_COLUMN = 1, 3, 5, 6
_KEY = "`id` BIGINT NOT NULL PRIMARY KEY"
_DEFINITIONS = {
    CUSTOMERS: f"{_KEY}, `name` VARCHAR(64) NOT NULL, `email` VARCHAR(128) NOT NULL, `city` VARCHAR(64) NOT NULL,"
    " `joined_at` DATETIME NOT NULL",
    ORDERS: f"{_KEY}, `customer_id` BIGINT NOT NULL, `state` ENUM{STATES} NOT NULL,"
    " `total` DECIMAL(10,2) NOT NULL, `placed_at` DATETIME, `changed_at` DATETIME(3) NOT NULL",
    ORDER_LINES: f"{_KEY}, `order_id` BIGINT NOT NULL, `product` VARCHAR(64) NOT NULL, `quantity` INT NOT NULL,"
    " `price` DECIMAL(8,2) NOT NULL",
    PAYMENTS: f"{_KEY}, `order_id` BIGINT NOT NULL, `method` ENUM{METHODS} NOT NULL,"
    " `amount` DECIMAL(10,2) NOT NULL, `paid_at` DATETIME(3) NOT NULL",
}


class Schema:
    """The tables as of a step."""

    def __init__(self, step: int = 0) -> None:
        """With everything that DDL below this step has done."""
        self.tables: dict[int, Json] = {}
        self.databases: list[Json] = [database(MYSQL_ID, "mysql")]
        self.version = 1
        for n in range(step):
            if (ddl := self.ddl_of(n)) is not None:
                ddl.apply()

    def names(self, table_id: int) -> list[str]:
        return [c["name"]["O"] for c in self.tables[table_id]["cols"]]

    def has_campaign(self) -> bool:
        return "campaign" in self.names(ORDERS)

    def snapshot(self, ts: int) -> Json:
        """The schema as a pusher puts it before the first change."""
        infos = [{"db_id": DATABASE_ID, "info": copy.deepcopy(info)} for info in self.tables.values()]
        return {
            "ts": str(ts),
            "schema_version": self.version,
            "dbs": copy.deepcopy(self.databases),
            "tables": [{"db_id": MYSQL_ID, "info": copy.deepcopy(JOB_TABLE)}, *infos],
        }

    def ddl_of(self, step: int) -> Ddl | None:
        """The DDL that this step is, if it is one."""
        if step == 0:
            return self._create_database(step)
        if step <= len(TABLES):
            info = _first_tables()[step - 1]
            return self._job(step, _CREATE_TABLE, info, f"CREATE TABLE {{}} ({_DEFINITIONS[info['id']]})")
        if step == PHONE_STEP:
            return self._add(step, CUSTOMERS, "phone", 24)
        if step % CAMPAIGN_STEPS == CAMPAIGN_FIRST:
            return self._drop(step, ORDERS, "campaign") if self.has_campaign() else self._add(step, ORDERS, "campaign")
        return None

    def _create_database(self, step: int) -> Ddl:
        info = database(DATABASE_ID, DATABASE)

        def apply() -> None:
            self.version += 1
            self.databases.append(info)

        body = {
            "schema_id": DATABASE_ID,
            "table_id": 0,
            "schema_name": DATABASE,
            "table_name": "",
            "DBInfo": info,
            "TableInfo": None,
        }
        return Ddl(
            job_id=1000 + step,
            type=_CREATE_DATABASE,
            query=f"CREATE DATABASE `{DATABASE}`",
            tables=frozenset(),
            body=body,
            meta={database_key(DATABASE_ID): info},
            apply=apply,
        )

    def _add(self, step: int, table_id: int, name: str, length: int = 32) -> Ddl:
        info = copy.deepcopy(self.tables[table_id])
        info["max_col_id"] += 1
        info["cols"].append({**_text(info["max_col_id"], name, length, flag=0), "offset": len(info["cols"])})
        return self._job(step, _ADD_COLUMN, info, f"ALTER TABLE {{}} ADD COLUMN `{name}` VARCHAR({length})")

    def _drop(self, step: int, table_id: int, name: str) -> Ddl:
        info = copy.deepcopy(self.tables[table_id])
        kept = [c for c in info["cols"] if c["name"]["O"] != name]
        info["cols"] = [{**c, "offset": i} for i, c in enumerate(kept)]
        return self._job(step, _DROP_COLUMN, info, f"ALTER TABLE {{}} DROP COLUMN `{name}`")

    def _job(self, step: int, kind: int, info: Json, query: str) -> Ddl:
        def apply() -> None:
            self.version += 1
            self.tables[info["id"]] = info

        name = info["name"]["O"]
        body = {
            "schema_id": DATABASE_ID,
            "table_id": info["id"],
            "schema_name": DATABASE,
            "table_name": name,
            "DBInfo": None,
            "TableInfo": info,
        }
        return Ddl(
            job_id=1000 + step,
            type=kind,
            query=query.format(f"`{DATABASE}`.`{name}`"),
            tables=frozenset({info["id"]}),
            body=body,
            meta={table_key(DATABASE_ID, info["id"]): info},
            apply=apply,
        )


def _first_tables() -> list[Json]:
    customers = [
        _text(2, "name", 64),
        _text(3, "email", 128),
        _text(4, "city", 64),
        _typed(5, "joined_at", DATETIME, 19, flag=_NOT_NULL),
    ]
    orders = [
        column(2, "customer_id", BIGINT, flag=_NOT_NULL),
        _typed(3, "state", ENUM, 9, elems=STATES, flag=_NOT_NULL),
        _typed(4, "total", NEWDECIMAL, 10, 2, flag=_NOT_NULL),
        _typed(5, "placed_at", DATETIME, 19),
        _typed(6, "changed_at", DATETIME, 23, 3, flag=_NOT_NULL),
    ]
    lines = [
        column(2, "order_id", BIGINT, flag=_NOT_NULL),
        _text(3, "product", 64),
        column(4, "quantity", INT, flag=_NOT_NULL),
        _typed(5, "price", NEWDECIMAL, 8, 2, flag=_NOT_NULL),
    ]
    payments = [
        column(2, "order_id", BIGINT, flag=_NOT_NULL),
        _typed(3, "method", ENUM, 7, elems=METHODS, flag=_NOT_NULL),
        _typed(4, "amount", NEWDECIMAL, 10, 2, flag=_NOT_NULL),
        _typed(5, "paid_at", DATETIME, 23, 3, flag=_NOT_NULL),
    ]
    named = {"customers": customers, "orders": orders, "order_lines": lines, "payments": payments}
    key = column(1, "id", BIGINT, flag=_PRIMARY)
    return [table(i, name, [key, *cols]) for i, (name, cols) in zip(TABLES, named.items(), strict=True)]


def _text(column_id: int, name: str, length: int, *, flag: int = _NOT_NULL) -> Json:
    return _of_type(column(column_id, name, VARCHAR, flag=flag), Flen=length)


def _typed(
    column_id: int, name: str, tp: int, length: int, decimals: int = 0, *, elems: tuple[str, ...] = (), flag: int = 0
) -> Json:
    made = _of_type(column(column_id, name, tp, flag=flag), Flen=length, Decimal=decimals)
    if not elems:
        return made
    return _of_type(made, Elems=list(elems), Charset="utf8mb4", Collate="utf8mb4_bin")


def _of_type(made: Json, **changed: Any) -> Json:
    return {**made, "type": {**made["type"], **changed}}
