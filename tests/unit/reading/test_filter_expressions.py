"""Row expressions: the grammar, three-valued logic, comparisons by type; and event filters of DDL."""

from __future__ import annotations

import json
import operator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from reading.filters import parse_filter
from reading.filters.core.evaluate import evaluate
from reading.filters.core.events import parse_event_filters, parse_operations
from reading.filters.core.syntax import parse_expression
from schemas.actions import EVENTS
from schemas.model import DdlEvent
from tests.kit.recording import recorded_history
from tests.kit.schema_models import an_event
from tistream.codec.row.encode import pack_time
from tistream.codec.row.layout import ColumnSpec, storage_type
from tistream.errors import FilterInvalid

#: name -> (MySQL type number, more of the definition, values)
COLUMNS: dict[str, tuple[int, dict[str, Any], list[Any]]] = {
    "t": (1, {}, [1, 1, 1]),
    "f": (1, {}, [0, 0, 0]),
    "u": (1, {}, [None, None, None]),
    "i": (8, {}, [-(2**63), 2**63 - 1, 5]),
    "b": (8, {"unsigned": True}, [0, 2**64 - 1, 2**63]),
    "d": (246, {"flen": 65, "decimal": 30}, [Decimal("0.1"), Decimal("-7"), Decimal("1e-30")]),
    "n": (246, {"flen": 65, "decimal": 0}, [Decimal(1), Decimal(2), Decimal(3)]),
    "r": (4, {}, [0.5, 0.1, -1.0]),
    "s": (15, {}, ["a", "A", "a "]),
    "x": (15, {"binary": True}, [b"\xff", b"a%", b"a\n"]),
    "day": (10, {}, [pack_time(2024, 2, 29), 0, pack_time(2025, 1, 1)]),
    "seen": (7, {"decimal": 6}, [pack_time(2024, 2, 29, 22, 0, 0, 5), pack_time(1970, 1, 1), pack_time(2030, 1, 1)]),
    "e": (247, {"elems": ("x", "y")}, [0, 1, 2]),
    "m": (248, {"elems": ("x", "y")}, [0, 1, 3]),
    "bits": (16, {"flen": 9}, [0, 257, 5]),
    "j": (245, {}, ["{}", None, "1"]),
}


def columns() -> dict[str, tuple[ColumnSpec, pa.Array]]:
    by_name = {}
    for n, (name, (tp, more, values)) in enumerate(COLUMNS.items()):
        spec = ColumnSpec(id=n, name=name, tp=tp, **more)
        by_name[name] = spec, pa.array(values, storage_type(spec))
    return by_name


def value(text: str) -> list[bool | None]:
    truths: list[bool | None] = evaluate(parse_expression(text), "d.t", columns(), 3).to_pylist()
    return truths


T, F, U = "t = 1", "f = 1", "u = 1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{T} AND {U}", None),
        (f"{F} AND {U}", False),
        (f"{U} AND {U}", None),
        (f"{T} AND {T}", True),
        (f"{T} OR {U}", True),
        (f"{F} OR {U}", None),
        (f"{U} OR {U}", None),
        (f"{F} OR {F}", False),
        (f"NOT {U}", None),
        (f"NOT {T}", False),
        (f"NOT NOT {T}", True),
        ("u IS NULL", True),
        ("u IS NOT NULL", False),
        ("u = NULL", None),
        ("t <> NULL", None),
        ("t IN (0, NULL)", None),
        ("t IN (1, NULL)", True),
        ("t NOT IN (0, NULL)", None),
        ("t NOT IN (0, 2)", True),
        ("u IN (1)", None),
        ("u BETWEEN 0 AND 2", None),
        ("t BETWEEN NULL AND 0", False),
        ("t NOT BETWEEN 1 AND 2", False),
        ("gone = 1", None),
        ("gone IS NULL", True),
        ("gone IN (1)", None),
        ("t = gone", None),
        (f"{T} OR {T} AND {F}", True),
        (f"({T} OR {T}) AND {F}", False),
        (f"NOT {F} AND {F}", False),
        (f"{T} && {F} || {T}", True),
        ("t = TRUE and f = false", True),
        ("1 = t", True),
        ("0 >= t", False),
    ],
)
def test_logic_has_three_values(text: str, expected: bool | None) -> None:
    assert value(text) == [expected] * 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i < -9223372036854775808", [False, False, False]),
        ("i <= -9223372036854775808", [True, False, False]),
        ("i > 9223372036854775806.5", [False, True, False]),
        ("i <> 5.5", [True, True, True]),
        ("i < 99999999999999999999", [True, True, True]),
        ("i = '5'", [False, False, True]),
        ("b = 18446744073709551615", [False, True, False]),
        ("b >= 0x8000000000000000", [False, True, True]),
        ("b > -1", [True, True, True]),
        ("b > i", [True, True, True]),
        ("i IN (5.0, 99999999999999999999, 4.5)", [False, False, True]),
        ("d = 0.1", [True, False, False]),
        ("d >= 0.0000000000000000000000000000001", [True, False, True]),
        ("d < 1e-30", [False, True, False]),
        ("i > d", [False, True, True]),
        ("r = 0.5", [True, False, False]),
        ("r = 0.1", [False, False, False]),  # a FLOAT is not the double 0.1
        ("s = 'a'", [True, False, False]),  # neither case nor spaces are folded
        ("s > 'A'", [True, False, True]),
        ("s LIKE 'a_'", [False, False, True]),
        ("s = X'41'", [False, True, False]),
        ("x > 'a'", [True, True, True]),
        ("x LIKE 'a\\%'", [False, True, False]),
        ("x LIKE '_'", [True, False, False]),
        ("x LIKE 'a_'", [False, True, True]),
        ("day >= '2024-02-29'", [True, False, True]),
        ("day < '2024-02-29 00:00:01'", [True, True, False]),
        ("day = '0000-00-00'", [False, True, False]),
        ("seen = '2024-03-01T00:00:00.000005+02:00'", [True, False, False]),
        ("seen >= TIMESTAMP '2029-12-31 23:59:59Z'", [False, False, True]),
        ("day < seen", [True, True, True]),
        ("e = 'y'", [False, False, True]),
        ("e IN (0, 'x')", [True, True, False]),
        ("e LIKE ''", [True, False, False]),
        ("m = 'x,y'", [False, False, True]),
        ("m = 1", [False, True, False]),
        ("bits = 0x0101", [False, True, False]),
        ("j IS NULL", [False, True, False]),
        ("`s`='a' or s=\"A\"", [True, True, False]),
    ],
)
def test_comparisons_by_type(text: str, expected: list[bool]) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "at", "cause"),
    [
        ("a =", 3, "constant"),
        ("a = 1 b", 6, "AND, OR"),
        ("(a = 1", 6, "')'"),
        ("a IN ()", 6, "constant"),
        ("1 = 1", 0, "needs a column"),
        ("a LIKE 5", 7, "pattern"),
        ("a = 'x", 4, "quote"),
        ("a == 1", 3, "constant"),
        ("12a = 1", 0, "not a number"),
        ("a = 1 OR", 8, "constant"),
        ("a IS 5", 5, "NULL"),
        ("a = -'x'", 5, "constant"),
        ("a", 1, "comparison"),
        ("a.b = 1", 1, "'.'"),
        ("a = 1; DROP", 5, "';'"),
        ("a = 1e999", 4, "number"),
        ("f(a) = 1", 1, "comparison"),
        ("NOT", 3, "constant"),
        ("a NOT = 1", 6, "comparison"),
        ("X'0'", 0, "odd"),
        ("a = 1 AND and = 2", 10, "backquotes"),
        ("a LIKE 'x' ESCAPE 'ab'", 7, "one character"),
        (" ", 0, "nothing"),
        ("(" * 51 + "a = 1" + ")" * 51, 51, "50"),
        ("a = " + "1" * 101, 4, "100"),
        ("a = 1 " + " " * 17_000, 16_384, "16384"),
    ],
)
def test_an_error_names_the_place(text: str, at: int, cause: str) -> None:
    with pytest.raises(FilterInvalid, match=r"^where: ") as refused:
        parse_expression(text)
    assert (refused.value.facts["parameter"], refused.value.facts["position"]) == ("where", at)
    assert cause in refused.value.message


@pytest.mark.parametrize(
    ("text", "at", "cause"),
    [
        ("i = 'five'", 4, "number"),
        ("t = 1 AND s = 5", 14, "quotes"),
        ("day = 'soon'", 6, "YYYY-MM-DD"),
        ("day = '2024-13-01'", 6, "not a date"),
        ("day = '2024-01-01Z'", 6, "time zone"),
        ("seen = '2024-02-30Z'", 7, "not a date"),
        ("j = '{}'", 4, "not compared"),
        ("j IN ('{}')", 0, "not compared"),
        ("i LIKE '5'", 7, "LIKE"),
        ("s = i", 4, "with each other"),
        ("day = i", 6, "with each other"),
        ("s = 0xff", 4, "UTF-8"),
        ("bits = '5'", 7, "number"),
        ("d = n", 4, "digits"),
    ],
)
def test_a_constant_that_does_not_fit_is_refused(text: str, at: int, cause: str) -> None:
    with pytest.raises(FilterInvalid, match=r"^where: in table d\.t ") as refused:
        value(text)
    assert refused.value.facts["position"] == at
    assert cause in refused.value.message


def test_kinds_of_changes() -> None:
    operations = parse_operations(" Insert,ddl ,")
    assert (len(operations.kinds), operations.ddl) == (1, True)
    with pytest.raises(FilterInvalid, match=r"^ops: 'updat' is not known .*character 7.*\. Did you mean update\?"):
        parse_operations("insert,updat")


def test_the_example_of_ticdcs_documentation_is_understood() -> None:
    (event_filter,) = parse_event_filters(
        """[{"matcher": ["test.worker"], "ignore-event": ["insert", "all ddl"], "ignore-sql": ["^drop", "add column"],
        "ignore-delete-value-expr": "name = 'john'", "ignore-insert-value-expr": "id >= 100",
        "ignore-update-old-value-expr": "age < 18 or name = 'lili'",
        "ignore-update-new-value-expr": "gender = 'male' and age > 18"}]"""
    )
    assert event_filter.matcher.matches("test", "worker")
    assert event_filter.ddl_types == EVENTS
    assert len(event_filter.row_rules) == 4


@pytest.mark.parametrize(
    ("text", "parameter"),
    [
        ("{", "event_filters"),
        ("{}", "event_filters"),
        ("[1]", "event_filters[0]"),
        ('[{"ignore-event": []}]', "event_filters[0].matcher"),
        ('[{"matcher": ["a.*"]}, {"matcher": ["a"]}]', "event_filters[1].matcher"),
        ('[{"matcher": ["a.*"], "ignore-evnt": []}]', "event_filters[0]"),
        ('[{"matcher": ["a.*"], "ignore-event": ["insrt"]}]', "event_filters[0].ignore-event"),
        ('[{"matcher": ["a.*"], "ignore-sql": ["("]}]', "event_filters[0].ignore-sql"),
        ('[{"matcher": ["a.*"], "ignore-delete-value-expr": "a ="}]', "event_filters[0].ignore-delete-value-expr"),
    ],
)
def test_an_event_filter_that_is_wrong_is_named(text: str, parameter: str) -> None:
    with pytest.raises(FilterInvalid) as refused:
        parse_filter({"event_filters": text})
    assert refused.value.facts["parameter"] == parameter


NUMBERS: dict[str, tuple[int, dict[str, Any], list[Any]]] = {
    "tiny": (1, {}, [-128, 127]),
    "whole": (8, {}, [-(2**63), 2**53 + 1, 2**63 - 1]),
    "unsigned": (8, {"unsigned": True}, [0, 2**53 + 1, 2**63, 2**64 - 1]),
    "bit": (16, {"flen": 64}, [0, 5, 2**64 - 1]),
    "year": (13, {}, [0, 2024]),
    "price": (246, {"flen": 10, "decimal": 2}, [Decimal("1.50"), Decimal("-99999999.99")]),
    "single": (4, {}, [0.5, -1.0]),
    "double": (5, {}, [0.0, 0.1, 2.0**63, 2.0**64, 1e300, -1e300]),
}
_HOLDS = {"<": operator.lt, "=": operator.eq, ">=": operator.ge}


@pytest.mark.parametrize("left", NUMBERS)
@pytest.mark.parametrize("right", NUMBERS)
def test_columns_of_any_two_number_types_are_compared(left: str, right: str) -> None:
    """Exactly, and as doubles where one of them is one."""
    pairs = [(a, b) for a in NUMBERS[left][2] for b in NUMBERS[right][2]]
    given = {}
    for n, (name, values) in enumerate(((left, [a for a, _ in pairs]), ("other", [b for _, b in pairs]))):
        tp, more, _ = NUMBERS[left if n == 0 else right]
        spec = ColumnSpec(id=n, name=name, tp=tp, **more)
        given[name] = spec, pa.array(values, storage_type(spec))
    as_number = float if {left, right} & {"single", "double"} else Decimal
    for op, holds in _HOLDS.items():
        results = evaluate(parse_expression(f"{left} {op} other"), "d.t", given, len(pairs)).to_pylist()
        assert results == [holds(as_number(a), as_number(b)) for a, b in pairs], op


def ddl(type_: int, query: str, table: str, old: str = "", *, db: str = "d", old_db: str = "d") -> DdlEvent:
    was = {"old_table": old, "old_db": old_db} if old else {}
    return an_event(type=type_, query=query, db=db, table=table, as_written=True, **was)


def kept(events: list[DdlEvent], **given: list[str]) -> list[str]:
    (rule,) = parse_event_filters(json.dumps([{name.replace("_", "-"): value for name, value in given.items()}]))
    return [event.query for event in rule.keeps_ddl(events)]


RENAMES = [
    ddl(14, "rename table a1 to b1", "b1", "a1"),
    ddl(14, "rename table b3 to a3", "a3", "b3"),
    ddl(47, "rename table a4 to c4", "c4", "a4"),
    ddl(14, "rename table d.a5 to e.a5", "a5", "a5", db="e"),
]


@pytest.mark.parametrize(
    "ignored", [{"ignore_event": ["all ddl"]}, {"ignore_event": ["rename table"]}, {"ignore_sql": ["^rename"]}]
)
def test_a_rename_is_one_of_the_name_before(ignored: dict[str, list[str]]) -> None:
    assert kept(RENAMES, matcher=["d.a*"], **ignored) == ["rename table b3 to a3"]
    assert kept(RENAMES, matcher=["e.*"], **ignored) == [event.query for event in RENAMES]


@pytest.mark.parametrize("side", ["exchanged", "version"])
def test_an_exchange_of_a_partition_is_one_of_both_tables(side: str) -> None:
    history = recorded_history()
    event = next(e for e in history.events(history.start_ts, history.resolved_ts) if e.exchanged is not None)
    table = getattr(event, side)
    for ignored in ({"ignore_event": ["exchange table partition"]}, {"ignore_sql": ["exchange partition"]}):
        assert kept([event], matcher=[f"{table.db}.{table.name}"], **ignored) == []
        assert kept([event], matcher=["other.*"], **ignored) == [event.query]


@pytest.mark.parametrize("regex", ["add column note", "add column `note`", "^ALTER TABLE `t2`"])
def test_a_text_is_the_users_or_the_delivered_one(regex: str) -> None:
    event = ddl(5, "alter table t2 add column note varchar(20)", "t2")
    assert event.statement != event.query
    assert kept([event], matcher=["d.*"], ignore_sql=[regex]) == []
    assert kept([event], matcher=["d.*"], ignore_sql=["^drop"]) == [event.query]
