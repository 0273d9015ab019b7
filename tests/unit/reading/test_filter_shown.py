"""A value is compared as a reader of its row is shown it, whatever else the row's bytes hold."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

import pytest

from reading.core.changes import INSERT, UPDATE
from reading.core.split import order_messages
from reading.filters import parse_filter, select_rows
from reading.formats import create_format, parse_options
from reading.pages import body
from reading.rows.decode import decode_rows
from reading.rows.scope import Scope
from schemas.model import Index, IndexColumn
from tests.kit.column_run import ADD_COLUMN, FORMS, TENANT, ColumnRun, Ddl, TableRun, Write
from tests.kit.tidb_columns import Default, Type, column_info
from tistream.codec.row.encode import ordered_float, pack_time

_ZERO = Default(text="", value=0, shown=0)
UTF8 = {"charset": "utf8mb4", "collate": "utf8mb4_bin"}
SECOND = 10**9


def _type(sql: str, tp: int, **more: Any) -> Type:
    return Type(sql=sql, tp=tp, zero=_ZERO, defaults=(), **more)


def _moment(*parts: int) -> bytes:
    return struct.pack("<Q", pack_time(*parts))


def _nanos(value: int) -> bytes:
    return struct.pack("<q", value)


#: (type, two cells that are shown alike, what is shown, the constant)
CASES: tuple[tuple[Type, bytes, bytes, Any, str], ...] = (
    (_type("DATE", 10), _moment(2024, 6, 3, 14, 5, 9, 123456), _moment(2024, 6, 3), "2024-06-03", "'2024-06-03'"),
    (_type("DATE", 10), _moment(0, 0, 0, 14, 5, 9), b"\0", "0000-00-00", "'0000-00-00'"),
    (_type("DATE", 10), _moment(2024, 2, 0, 23, 59, 59), _moment(2024, 2, 0), "2024-02-00", "'2024-02-00'"),
    (
        _type("DATETIME", 12, decimal=0),
        *(_moment(2024, 6, 3, 14, 5, 9, 999999), _moment(2024, 6, 3, 14, 5, 9)),
        *("2024-06-03 14:05:09", "'2024-06-03 14:05:09'"),
    ),
    (
        _type("DATETIME(3)", 12, decimal=3),
        *(_moment(2024, 6, 3, 14, 5, 9, 123999), _moment(2024, 6, 3, 14, 5, 9, 123000)),
        *("2024-06-03 14:05:09.123", "'2024-06-03 14:05:09.123'"),
    ),
    (
        _type("TIMESTAMP(2)", 7, decimal=2),
        *(_moment(2024, 6, 3, 14, 5, 9, 129999), _moment(2024, 6, 3, 14, 5, 9, 120000)),
        *("2024-06-03 14:05:09.12", "'2024-06-03 14:05:09.12'"),
    ),
    (_type("TIME", 11, decimal=0), _nanos(5 * SECOND + 999_999_999), _nanos(5 * SECOND), "00:00:05", "'00:00:05'"),
    (_type("TIME", 11, decimal=0), _nanos(-5 * SECOND - 1), _nanos(-5 * SECOND), "-00:00:05", "'-00:00:05'"),
    (_type("TIME(6)", 11, decimal=6), _nanos(1999), _nanos(1000), "00:00:00.000001", "'00:00:00.000001'"),
    (_type("YEAR", 13), b"\x00\x00", b"\x00", 0, "0"),
    (_type("BIT(9)", 16, flen=9), struct.pack("<Q", 257), struct.pack("<H", 257), "AQE=", "257"),
    (_type("SET", 248, elems=("a", "b"), **UTF8), b"\x03\x00", b"\x03", "a,b", "'a,b'"),
    (_type("VARCHAR(9)", 15, flen=9, **UTF8), b"a\xff", b"a\xfe", "a\ufffd", "'a\ufffd'"),
    (_type("INT", 3, flen=11), struct.pack("<q", -7), struct.pack("<b", -7), -7, "-7"),
    (_type("DECIMAL(6,2)", 246, flen=6, decimal=2), b"\x02\x01\x81\x05", b"\x03\x02\x81\x32", "1.50", "1.5"),
    (_type("FLOAT", 4, flen=12), ordered_float(0.25 + 1e-12), ordered_float(0.25), 0.25, "0.25"),
)
IDS = [f"{kind.sql} {n}" for n, (kind, *_) in enumerate(CASES)]


def _run(kind: Type, first: bytes, second: bytes) -> ColumnRun:
    infos = tuple(column_info(kind, id_, name, id_ - 1) for id_, name in ((2, "c"), (3, "e")))
    writes = [
        Write(handle=1, commit_ts=150, value={2: first, 3: second}),
        Write(handle=1, commit_ts=160, value={2: second, 3: first}, old={2: first, 3: second}),
        Write(handle=1, commit_ts=170, old={2: second, 3: first}),
        Write(handle=2, commit_ts=180, value={2: first, 3: first}),
    ]
    table = TableRun(name="t", ddls=[Ddl(commit_ts=110, type=ADD_COLUMN, columns=infos)], writes=writes)
    return ColumnRun([table])


def _kept(run: ColumnRun, **given: str) -> list[dict[str, Any]]:
    """The rows that pass, as NDJSON."""
    scope = Scope(tenant=TENANT)
    selected = select_rows(parse_filter(given), run.history, run.rows, scope)
    decoded = decode_rows(run.history, selected.rows, scope)
    page = body.render(create_format("ndjson", parse_options({})), order_messages(decoded.changes, split=False), [], ())
    return [json.loads(line) for line in bytes(page).splitlines()]


@pytest.mark.parametrize(("kind", "first", "second", "shown", "constant"), CASES, ids=IDS)
def test_filters_compare_what_is_shown(kind: Type, first: bytes, second: bytes, shown: Any, constant: str) -> None:
    run = _run(kind, first, second)
    every = _kept(run)
    images = [image for event in every for image in (event["columns"], event["old"]) if image]
    assert [(image["c"], image["e"]) for image in images] == [(shown, shown)] * 5
    for where in ("c = {}", "c IN ({})", "c BETWEEN {} AND {}", "c >= {} AND c <= {}", "{} = e"):
        assert _kept(run, where=where.replace("{}", constant)) == every, where
    assert _kept(run, where="c = e AND c <= e AND NOT c <> e") == every
    for where in ("c <> {}", "c > {}", "c < {}", "c NOT IN ({})"):
        assert _kept(run, where=where.replace("{}", constant)) == [], where
    assert [event["type"] for event in _kept(run, changed="c")] == ["insert", "delete", "insert"]
    rule = {"matcher": ["d.t"], "ignore-insert-value-expr": f"c = {constant}"}
    assert [event["type"] for event in _kept(run, event_filters=json.dumps([rule]))] == ["update", "delete"]


@pytest.mark.parametrize(("kind", "first", "second"), [case[:3] for case in CASES], ids=IDS)
def test_every_reader_is_shown_the_same(kind: Type, first: bytes, second: bytes) -> None:
    """An update of a unique key is split only where the key changes in what readers are shown."""
    one, other = _run(kind, first, second), _run(kind, second, second)
    changes = decode_rows(one.history, one.rows, Scope(tenant=TENANT)).changes
    key = Index(id=1, name="u", columns=(IndexColumn(name="c", offset=1),), unique=True, primary=False)
    keyed = [replace(each, table=replace(each.table, indexes=(key,))) for each in changes]
    assert [k for each in order_messages(keyed, split=True) for k in each.kind[:2].tolist()] == [INSERT, UPDATE]
    for form, options in FORMS:
        assert one.lines(form, options) == other.lines(form, options), form
    assert one.native("t") == other.native("t")
    assert list(one.written("t", 200)) == list(other.written("t", 200))
