"""CREATE statements against SHOW CREATE TABLE of the TiDB that was recorded."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schemas.model import Database, Index, IndexColumn, Table
from schemas.queries import split_statements
from schemas.show_create import CreateStatements, Dialect, define
from schemas.types import literal
from tests.kit.recording import EXPECTED, recorded_history
from tests.kit.schema_models import a_column, a_table

#: what a version does not know, as TiDB prints it
_UNKNOWN = re.compile(
    r" AUTO_INCREMENT=\d+| /\*T!\[auto_\w+\][^*]*\*/| /\*T! SHARD[^*]*\*/| /\*!80000 INVISIBLE \*/"
    r"|,?\n  CONSTRAINT [^\n]*| ON COMMIT DELETE ROWS|GLOBAL TEMPORARY |\nPARTITION BY.*",
    re.DOTALL,
)


@pytest.mark.parametrize("path", sorted(EXPECTED.glob("tables-*.json")), ids=lambda p: p.stem)
def test_tables_without_generated_columns_are_as_tidb_prints_them(path: Path) -> None:
    history, moment, compared = recorded_history(), json.loads(path.read_text("utf-8")), 0
    ts = int(moment["ts"])
    for recorded in moment["tables"]:
        text = recorded.get("create", "")
        if recorded["kind"] != "table" or "GENERATED ALWAYS" in text or "((" in text:
            continue
        table = history.find(recorded["db"], recorded["table"], ts)
        definition = define(history.database(table.db, ts), table, Dialect.TIDB)
        statement = definition.create_table.replace(f"`{table.db}`.", "", 1)
        assert statement == _UNKNOWN.sub("", text), table.name
        assert bool(definition.notes) == bool(table.partition_ids)
        compared += 1
    assert compared >= len(moment["tables"]) * 0.8


def defined(name: str, dialect: Dialect) -> CreateStatements:
    """A recorded table at the end."""
    history = recorded_history()
    at = history.resolved_ts
    return define(history.database("shop", at), history.find("shop", name, at), dialect)


def test_generated_columns_become_what_can_be_restored() -> None:
    definition = defined("t_gen", Dialect.MYSQL)
    assert "`sv` int(11)" in definition.create_table
    assert "vv" not in definition.create_table
    assert "GENERATED" not in definition.create_table
    assert "column vv, generated as concat(`b`, _utf8mb4'-', `a`): left out" in definition.notes
    assert "index eu: over an expression or a virtual column" in definition.notes
    assert "KEY `ksv` (`sv`)" in definition.create_table


def test_mariadb_gets_only_supported_features() -> None:
    definitions = {name: defined(name, Dialect.MARIADB) for name in ("k_v0900", "t_bins", "g18")}
    assert "utf8mb4_0900" not in definitions["k_v0900"].create_table
    assert "COLLATE utf8mb4_nopad_bin" in definitions["k_v0900"].create_table
    assert "`vec` json" in definitions["t_bins"].create_table
    assert "gb18030" not in definitions["g18"].create_table
    assert all(each.notes for each in definitions.values())


def test_a_primary_key_that_is_no_row_key_is_one_elsewhere() -> None:
    note = "primary key NONCLUSTERED: clustered"
    for name, dialect, is_told in (
        ("k_rowid", Dialect.MARIADB, True),
        ("k_rowid", Dialect.MYSQL, True),
        ("k_rowid", Dialect.TIDB, False),
        ("k_comp", Dialect.MARIADB, False),
        ("k_int", Dialect.MARIADB, False),
        ("k_nopk_uk", Dialect.MARIADB, False),
    ):
        assert (note in defined(name, dialect).notes) is is_told, (name, dialect)


def test_a_literal_is_read_back_as_it_was() -> None:
    assert literal("a'b\\c\0\n") == r"'a''b\\c\0\n'"


# ---- texts in a definition must not become a statement

_TEXTS = ("\\", "c\\", "new\\line", "it's", "\\'", "\x1a", "`", "-- x", "; DROP DATABASE d", "a\nb", '"')
_HOSTILE = (*_TEXTS, ")); CREATE DATABASE pwned; -- ", "\\')); CREATE DATABASE pwned; -- ")


def hostile_table(text: str, *, expression: bool = False) -> Table:
    """A table that has the text in every place where a user can put one."""
    kind: dict[str, Any] = {"flen": -1, "decimal": -1, "charset": "utf8mb4", "collate": "utf8mb4_bin"}
    return a_table(
        a_column(0, f"e{text}", 247, elems=(text, f"{text}, x"), comment=text, **kind),
        a_column(1, "s", 248, elems=(text.replace(",", "") + "1", "b"), **kind),
        a_column(2, "v", 15, default=text, **{**kind, "flen": 200}),
        a_column(3, "x", 3, default=text if expression else None, default_is_expr=expression, **kind),
        db=f"d{text}",
        name=f"t{text}",
        comment=text,
    )


@pytest.mark.parametrize("text", _HOSTILE)
@pytest.mark.parametrize("dialect", Dialect)
def test_no_text_of_a_table_ends_its_statement(text: str, dialect: Dialect) -> None:
    table = hostile_table(text, expression=True)
    database = Database(id=1, name=table.db, charset="utf8mb4" + text, collate="utf8mb4_bin")
    definition = define(database, table, dialect)
    for statement in (definition.create_database, definition.create_table):
        assert split_statements(statement) == [statement]
        outside = re.sub(r"'(?:[^'\\]|\\.|'')*'|`(?:[^`]|``)*`|/\*.*?\*/", "", statement, flags=re.DOTALL)
        assert not set(outside) & set("'\"`\\;")
        assert outside.count("(") == outside.count(")")
    match = re.search(r"enum\(('(?:[^'\\]|\\.|'')*')", definition.create_table, re.DOTALL)
    assert match is not None
    escapes = {"0": "\0", "n": "\n", "r": "\r", "Z": "\x1a"}
    plain = re.sub(r"''|\\(.)", lambda m: "'" if m[1] is None else escapes.get(m[1], m[1]), match[1][1:-1])
    assert plain == text


@pytest.mark.parametrize(
    "text", ["1) , (2", "1); DROP DATABASE d; -- ", "'a\\', '); DROP DATABASE d; -- '", "now() /* ", "f(", "'", "1 # "]
)
def test_an_expression_that_could_end_the_statement_is_left_out(text: str) -> None:
    definition = define(Database(id=1, name="d"), _with_default(text), Dialect.MYSQL)
    assert "DEFAULT (" not in definition.create_table
    assert f"column x: no default, which was {text}" in definition.notes


@pytest.mark.parametrize(
    "text", ["uuid()", "date_format(now(), '%Y-%m-%d')", "replace(upper(uuid()), '-', '')", "(1 + 2) * 3"]
)
def test_an_ordinary_expression_stays(text: str) -> None:
    assert f"DEFAULT ({text})" in define(Database(id=1, name="d"), _with_default(text), Dialect.MYSQL).create_table


@pytest.mark.parametrize(
    ("tp", "text", "is_expression", "mysql", "mariadb"),
    [
        (10, "CURRENT_DATE", False, "(CURRENT_DATE)", "(CURRENT_DATE)"),
        (10, "CURRENT_TIMESTAMP", False, "(CURRENT_DATE)", "(CURRENT_DATE)"),  # of old servers
        (10, "2024-01-01", False, "'2024-01-01'", "'2024-01-01'"),
        (12, "CURRENT_TIMESTAMP", False, "CURRENT_TIMESTAMP", "CURRENT_TIMESTAMP"),
        (15, "uuid()", True, "(uuid())", "(uuid())"),
        (
            15,
            "replace(upper(uuid()), _utf8mb4'nextval(', '')",
            True,
            *["(replace(upper(uuid()), _utf8mb4'nextval(', ''))"] * 2,
        ),
        (16, "uuid_to_bin(uuid())", True, "(uuid_to_bin(uuid()))", ""),
        (8, "nextval(`d`.`s`)", True, "", ""),
        (8, "NextVal (`d`.`s`)", True, "", ""),
        (252, "vec_from_text('[1]')", True, "", ""),
        (252, "tidb_decode_key('74')", True, "", ""),
    ],
)
def test_a_default_is_one_that_the_server_knows(
    tp: int, text: str, is_expression: bool, mysql: str, mariadb: str
) -> None:
    """What it does not know is left out, with a note that names the column."""
    table = _with_default(text, tp=tp, default_is_expr=is_expression)
    for dialect, expected in ((Dialect.MYSQL, mysql), (Dialect.MARIADB, mariadb)):
        definition = define(Database(id=1, name="d"), table, dialect)
        line = next(line for line in definition.create_table.splitlines() if line.lstrip().startswith("`x`"))
        assert line.partition(" DEFAULT ")[2].rstrip(",") == expected, dialect
        assert (f"column x: no default, which was {text}" in definition.notes) == (not expected)


def test_the_current_date_is_one_for_tidb_too() -> None:
    table = _with_default("CURRENT_DATE", tp=10, default_is_expr=False)
    definition = define(Database(id=1, name="d"), table, Dialect.TIDB)
    assert "`x` date DEFAULT CURRENT_DATE\n" in definition.create_table


@pytest.mark.parametrize("dialect", Dialect)
def test_an_index_over_a_vector_is_left_out(dialect: Dialect) -> None:
    table = _with_default(None, tp=225, flen=3, default_is_expr=False)
    index = Index(id=1, name="near", columns=(IndexColumn(name="x", offset=3),), unique=False, primary=False)
    definition = define(Database(id=1, name="d"), replace(table, indexes=(index,)), dialect)
    assert "near" not in definition.create_table
    assert "index near: over a vector" in definition.notes


def _with_default(text: str | None, **more: Any) -> Table:
    table = hostile_table("", expression=True)
    return replace(table, columns=(*table.columns[:3], replace(table.columns[3], default=text, **more)))
