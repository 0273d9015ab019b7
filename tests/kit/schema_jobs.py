"""DDL jobs and definitions as TiDB writes them, and a history that they can be applied to."""

from __future__ import annotations

from typing import Any

from schemas import ddl
from schemas.ddl import Job
from schemas.history import History
from schemas.model import Database
from schemas.snapshot import SchemaSnapshot
from schemas.tidb_json import table as table_of


def name(text: str) -> dict[str, str]:
    return {"O": text, "L": text.lower()}


def column(number: int, state: int = 5) -> dict[str, Any]:
    kind = {"Tp": 3, "Flag": 3 if number == 1 else 0, "Flen": 11}
    return {"id": number, "name": name(f"C{number}"), "offset": number - 1, "state": state, "type": kind}


def info(
    table_id: int, text: str, partitions: tuple[int, ...] = (), *, columns: int = 1, **more: Any
) -> dict[str, Any]:
    """TiDB's TableInfo."""
    definition = {"id": table_id, "name": name(text), "cols": [column(i + 1) for i in range(columns)]}
    definition |= {"index_info": None, "state": 5, "pk_is_handle": True}
    if partitions:
        definitions = [{"id": i, "name": name(f"p{i}")} for i in partitions]
        definition["partition"] = {"enable": True, "definitions": definitions}
    return definition | more


def job(kind: int, commit_ts: int, **more: Any) -> Job:
    """A job that is done, on the database Shop."""
    data: dict[str, Any] = {"id": commit_ts, "type": kind, "state": 4, "schema_id": 1, "schema_name": "shop"}
    data |= {"query": "the user's text", "start_ts": commit_ts - 5} | more
    binlog = {"SchemaVersion": commit_ts} | data.pop("binlog", {})
    return ddl.parse_job(data | {"binlog": binlog}, start_ts=commit_ts - 1, commit_ts=commit_ts)


def rename_args(*clauses: tuple[int, int, str, int, str], form: str = "array") -> Any:
    """The arguments of a RENAME of several tables, each (id, database and name before, database and name after), as an
    array of older servers or an object."""
    if form == "object":
        entries = [
            {
                "table_id": i,
                "old_schema_id": a,
                "old_table_name": name(b),
                "new_schema_id": c,
                "new_table_name": name(d),
            }
            for i, a, b, c, d in clauses
        ]
        return {"rename_table_infos": entries}
    ids, old_dbs, old, new_dbs, new = (list(part) for part in zip(*clauses, strict=True))
    databases = [name("Shop" if db == 1 else "mysql") for db in old_dbs]
    return [old_dbs, new_dbs, [name(n) for n in new], ids, databases, [name(n) for n in old]]


def shop_history(start_ts: int) -> History:
    """Two databases; Shop.Orders (10), Shop.Parts (20: partitions 21, 22)."""
    databases = {1: Database(id=1, name="Shop"), 2: Database(id=2, name="Store")}
    infos = (info(10, "Orders"), info(20, "Parts", (21, 22)))
    tables = {each["id"]: table_of(each, db_id=1, db="Shop") for each in infos}
    return History(SchemaSnapshot(ts=start_ts, databases=databases, tables=tables), job_table=tables[10])
