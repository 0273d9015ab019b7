"""CREATE statements against SHOW CREATE TABLE of the TiDB that was recorded."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from schemas.show_create import Dialect, define, literal
from tistream.testing.recording import EXPECTED, recorded_history

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


def test_mariadb_gets_only_what_it_has() -> None:
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
