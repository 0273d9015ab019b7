"""CREATE statements against SHOW CREATE TABLE of the TiDB that was recorded."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from schemas.model import Column, Database, Table
from schemas.queries import split_statements
from schemas.show_create import Dialect, define
from schemas.types import literal
from tests.kit.recording import EXPECTED, recorded_history

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
        made = define(history.database(table.db, ts), table, Dialect.TIDB)
        mine = made.create_table.replace(f"`{table.db}`.", "", 1)
        assert mine == _UNKNOWN.sub("", text), table.name
        assert bool(made.notes) == bool(table.partition_ids)
        compared += 1
    assert compared >= len(moment["tables"]) * 0.8


def test_generated_columns_become_what_can_be_restored() -> None:
    history = recorded_history()
    table = history.find("shop", "t_gen", history.resolved_ts)
    made = define(history.database("shop", history.resolved_ts), table, Dialect.MYSQL)
    assert "`sv` int(11)" in made.create_table
    assert "vv" not in made.create_table
    assert "GENERATED" not in made.create_table
    assert "column vv, generated as concat(`b`, _utf8mb4'-', `a`): left out" in made.notes
    assert "index eu: over an expression or a virtual column" in made.notes
    assert "KEY `ksv` (`sv`)" in made.create_table


def test_mariadb_gets_only_supported_features() -> None:
    history = recorded_history()
    made = {
        name: define(
            history.database("shop", history.resolved_ts),
            history.find("shop", name, history.resolved_ts),
            Dialect.MARIADB,
        )
        for name in ("k_v0900", "t_bins", "g18")
    }
    assert "utf8mb4_0900" not in made["k_v0900"].create_table
    assert "COLLATE utf8mb4_nopad_bin" in made["k_v0900"].create_table
    assert "`vec` json" in made["t_bins"].create_table
    assert "gb18030" not in made["g18"].create_table
    assert all(each.notes for each in made.values())


def test_a_literal_is_read_back_as_it_was() -> None:
    assert literal("a'b\\c\0\n") == r"'a''b\\c\0\n'"


# ---- texts in a definition must not become a statement

_TEXTS = ("\\", "c\\", "new\\line", "it's", "\\'", "\x1a", "`", "-- x", "; DROP DATABASE d", "a\nb", '"')
_HOSTILE = (*_TEXTS, ")); CREATE DATABASE pwned; -- ", "\\')); CREATE DATABASE pwned; -- ")


def hostile_table(text: str, *, expression: bool = False) -> Table:
    """A table that has the text in every place where a user can put one."""
    kind = {"offset": 0, "flag": 0, "flen": -1, "decimal": -1, "charset": "utf8mb4", "collate": "utf8mb4_bin"}
    return Table(
        id=1,
        db_id=1,
        db=f"d{text}",
        name=f"t{text}",
        charset="utf8mb4",
        collate="utf8mb4_bin",
        columns=(
            Column(id=1, name=f"e{text}", tp=247, elems=(text, f"{text}, x"), comment=text, **kind),
            Column(id=2, name="s", tp=248, elems=(text.replace(",", "") + "1", "b"), **kind),
            Column(id=3, name="v", tp=15, default=text, **{**kind, "flen": 200, "charset": "utf8mb4"}),
            Column(id=4, name="x", tp=3, default=text if expression else None, default_is_expr=expression, **kind),
        ),
        indexes=(),
        pk_is_handle=False,
        is_common_handle=False,
        comment=text,
    )


@pytest.mark.parametrize("text", _HOSTILE)
@pytest.mark.parametrize("dialect", Dialect)
def test_no_text_of_a_table_ends_its_statement(text: str, dialect: Dialect) -> None:
    table = hostile_table(text, expression=True)
    database = Database(id=1, name=table.db, charset="utf8mb4" + text, collate="utf8mb4_bin")
    made = define(database, table, dialect)
    for statement in (made.create_database, made.create_table):
        assert split_statements(statement) == [statement]
        outside = re.sub(r"'(?:[^'\\]|\\.|'')*'|`(?:[^`]|``)*`|/\*.*?\*/", "", statement, flags=re.DOTALL)
        assert not set(outside) & set("'\"`\\;")
        assert outside.count("(") == outside.count(")")
    found = re.search(r"enum\(('(?:[^'\\]|\\.|'')*')", made.create_table, re.DOTALL)
    assert found is not None
    escapes = {"0": "\0", "n": "\n", "r": "\r", "Z": "\x1a"}
    plain = re.sub(r"''|\\(.)", lambda m: "'" if m[1] is None else escapes.get(m[1], m[1]), found[1][1:-1])
    assert plain == text


@pytest.mark.parametrize(
    "text", ["1) , (2", "1); DROP DATABASE d; -- ", "'a\\', '); DROP DATABASE d; -- '", "now() /* ", "f(", "'", "1 # "]
)
def test_an_expression_that_could_end_the_statement_is_left_out(text: str) -> None:
    made = define(Database(id=1, name="d"), _with_default(text), Dialect.MYSQL)
    assert "DEFAULT (" not in made.create_table
    assert f"column x: no default, which was {text}" in made.notes


@pytest.mark.parametrize(
    "text", ["uuid()", "date_format(now(), '%Y-%m-%d')", "replace(upper(uuid()), '-', '')", "(1 + 2) * 3"]
)
def test_an_ordinary_expression_stays(text: str) -> None:
    assert f"DEFAULT ({text})" in define(Database(id=1, name="d"), _with_default(text), Dialect.MYSQL).create_table


def _with_default(text: str) -> Table:
    table = hostile_table("", expression=True)
    return replace(table, columns=(*table.columns[:3], replace(table.columns[3], default=text)))
