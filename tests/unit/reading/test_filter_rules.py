"""Rules of tables and columns. The expected values are those of PingCAP's documentation of table filters."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from reading.filters.core import patterns
from reading.filters.core.rules import parse_column_rules, parse_table_rules
from tistream.errors import FilterInvalid


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("irrelevant.table", False),  # no rule
        ("employees.employees", True),  # rule 1
        ("employees.dept_emp", False),  # rules 1, 2
        ("employees.departments", True),  # rules 1, 2, 3
        ("else.departments", True),  # rules 2, 3
    ],
)
def test_the_last_rule_that_matches_decides(table: str, expected: bool) -> None:
    rules = parse_table_rules("employees.*, !*.dep*, *.departments")
    assert rules.matches(*table.split(".")) is expected


@pytest.mark.parametrize(
    ("rules", "inside", "outside"),
    [
        ("db1.tbl1,db2.tbl2,db3.tbl3", ["db1.tbl1", "DB2.TBL2"], ["db1.tbl2", "db4.tbl1"]),
        (
            "db[0-9].tbl[0-9a-f][0-9a-f]",
            ["db1.tbl0f", "DB9.TBLFF"],
            ["db.tbl0f", "db1.tbl0", "db1.tbl0g", "db12.tbl00"],
        ),
        ("data.*", ["data.x", "data."], ["data2.x"]),
        ("*.backup_*", ["a.backup_", "b.backup_1"], ["a.backup", "a.x_backup_1"]),
        ("d.[!a-z]?", ["d.1x", "d._\U0001f926"], ["d.ax", "d.1", "d.1xy"]),
        ("d.[^a]", ["d.^", "d.a"], ["d.b"]),
        ("d.a?c", ["d.a\u00e9c"], ["d.ae\u0301c"]),  # a character is a code point
        ("*.*,!*.Password,!employees.salaries", ["a.b"], ["a.password", "employees.SALARIES"]),
        ("!*.Password", [], ["a.b", "a.password"]),
        (r"db\.with\.dots.*", ["db.with.dots|t"], ["dbxwithxdots|t"]),
        (r'"db.with.dots"."tbl\1"', [r"db.with.dots|tbl\1"], ["db.with.dots|tbl1"]),
        (r"`db.with.dots`.`tbl\2`", [r"db.with.dots|tbl\2"], ["db.with.dots|tbl2"]),
        ('"foo""bar".`foo``bar`', ['foo"bar|foo`bar'], ["foobar|foobar"]),
        (r"foo\"bar.foo\`bar", ['foo"bar|foo`bar'], ["foobar|foobar"]),
        (r"/^db\d{2,}$/./^tbl\d{2,}$/", ["db01.tbl22", "DB123.TBL00"], ["db1.tbl22", "xdb01.tbl22"]),
        ("/b/.*", ["db01.t"], ["d01.t"]),
        (r"/a\/b/.*", ["xa/by|t"], ["ab|t"]),
        ("*.*,!test.*", ["a.b"], ["test.a"]),
        ("scm1.tidb_*", ["scm1.tidb_", "scm1.tidb_x"], ["scm1.tidb"]),
        (' a.b\n, "x,y"./a,b/ ,', ["a.b", "x,y|-a,b-"], ["x,y|ab"]),
    ],
)
def test_rules_match_as_documented(rules: str, inside: list[str], outside: list[str]) -> None:
    table_rules = parse_table_rules(rules)
    for names, expected in ((inside, True), (outside, False)):
        for name in names:
            assert table_rules.matches(*name.split("|" if "|" in name else ".")) is expected, name


@pytest.mark.parametrize(
    ("rules", "at"),
    [
        ("", 0),
        ("db", 2),
        ("db.", 3),
        ("a.b.c", 3),
        ('"this is "invalid*.*', 10),
        ("db.table   # but this part is not comment", 11),
        ("@config/filter.txt", 0),
        ("a.b\\", 3),
        (r"a.\n", 2),
        ("a.b,c.[", 6),
        ("a./(/", 2),
        ("a./x", 2),
        ('a."', 2),
        ("a.b!", 3),
    ],
)
def test_an_error_names_parameter_and_place(rules: str, at: int) -> None:
    with pytest.raises(FilterInvalid, match=r"^tables: ") as refused:
        parse_table_rules(rules)
    assert refused.value.facts["parameter"] == "tables"
    assert refused.value.facts["position"] == at


def test_a_hostile_regular_expression_takes_no_time() -> None:
    rules = parse_table_rules("/^(a+)+$/.*")
    assert not rules.matches("a" * 64 + "b", "t")
    assert rules.matches("a" * 64, "t")


@pytest.mark.parametrize(
    ("rules", "database", "expected"),
    [
        ("shop.*", "shop", True),
        ("shop.*", "other", False),
        ("shop.orders", "shop", True),  # the database of a table that is meant
        ("*.*,!shop.*", "shop", False),
        ("*.*,!shop.orders", "shop", True),
        ("!shop.*,*.*", "shop", True),
    ],
)
def test_which_databases_are_meant(rules: str, database: str, expected: bool) -> None:
    assert parse_table_rules(rules).may_match_in(database) is expected


def test_rules_of_columns() -> None:
    rules = parse_column_rules("*, !secret_*, secret_but_shown, `odd name`", "columns")
    names = ["id", "SECRET_a", "secret_but_shown", "odd name"]
    assert [rules.matches(name) for name in names] == [True, False, True, True]
    assert list(rules.names()) == [("secret_but_shown", 14), ("odd name", 32)]
    with pytest.raises(FilterInvalid, match=r"^changed: .* character 1"):
        parse_column_rules("a.b", "changed")


def test_threads_share_rules_whose_answers_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "_KNOWN_MAX", 0)
    rules, before = parse_table_rules("a.*5"), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def ask(first: int) -> list[str]:
        return [name for n in range(first, first + 1500) if rules.matches("a", name := f"t{n % 20}")]

    try:
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(ask, range(0, 80, 20)))
    finally:
        sys.setswitchinterval(before)
    assert answers == [["t5", "t15"] * 75] * 4
