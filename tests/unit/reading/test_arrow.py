"""The native Arrow form of the recording, table by table, against the text form of the same changes."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from reading.core.split import order_messages
from reading.formats import create_format
from reading.formats.lines import written
from reading.pages import arrow
from reading.rows.decode import decode_rows
from reading.rows.scope import Scope
from schemas.model import Column
from tests.kit.log_builder import with_broken_value
from tests.kit.recording import committed_rows, recorded_history
from tistream.codec.row.layout import ColumnSpec
from tistream.ids import Tenant

TENANT = Tenant(1, 1)


def table_names() -> list[tuple[str, str]]:
    """Every name under which rows were ever written."""
    history, rows = recorded_history(), committed_rows()
    pairs = zip(rows["table_id"].to_pylist(), rows["commit_ts"].to_pylist(), strict=True)
    defined = (history.table_at(table_id, commit_ts - 1) for table_id, commit_ts in pairs)
    return sorted({(t.db, t.name) for t in defined if t is not None})


def pages(scope: Scope, rows: pa.Table) -> Iterator[pa.Table]:
    history = recorded_history()
    commit_ts = rows["commit_ts"].to_numpy()
    at, end = 0, history.resolved_ts
    while True:
        page = arrow.native_page(history, rows.slice(at), scope, end)
        table = pa.ipc.open_stream(page.content).read_all()
        assert (table.num_rows, page.quarantined) == (page.rows, 0)
        yield table
        if page.end == end:
            return
        assert page.end >= int(commit_ts[at])
        at = int(np.searchsorted(commit_ts, np.uint64(page.end), side="right"))


def as_text(value: Any, column: Column) -> object:
    """A native value as ndjson shows it."""
    match value:
        case None | str() | bool():
            return value
        case int():
            if column.tp == 16:
                return base64.b64encode(value.to_bytes((column.flen + 7) // 8, "big")).decode()
            return value if abs(value) < 2**53 else str(value)
        case float():
            return value
        case Decimal():
            return format(value, "f")
        case bytes():
            return base64.b64encode(value).decode()
        case dt.datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}".rjust(19, "0") + fraction(value.microsecond, column)
        case dt.date():
            return value.isoformat()
        case dt.timedelta():
            micros = abs(value) // dt.timedelta(microseconds=1)
            seconds, micros = divmod(micros, 1_000_000)
            clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
            return "-" * (value < dt.timedelta()) + clock + fraction(micros, column)
        case list():
            return value if column.tp == 225 else ",".join(value)
    raise AssertionError(type(value))


def fraction(micros: int, column: Column) -> str:
    digits = max(column.decimal, 0)
    return f".{micros:06d}"[: digits + 1] if digits else ""


def same(ours: object, shown: object, column: Column) -> bool:
    if ours is None and isinstance(shown, str) and column.tp in (7, 10, 12):
        return "-00" in shown or shown.startswith("0000")  # zero and impossible dates have no native form
    if isinstance(ours, float | list) and isinstance(shown, int | float | list):
        number = np.float32 if column.tp in (4, 225) else float
        return np.array_equal(np.array(ours, float).astype(number), np.array(shown, float).astype(number))
    return ours == shown


@pytest.mark.parametrize("name", table_names(), ids=".".join)
def test_native_values_are_those_of_the_text_form(name: tuple[str, str]) -> None:
    scope = Scope(tenant=TENANT, database=name[0], table=name[1])
    history, rows = recorded_history(), committed_rows()
    changes = order_messages(decode_rows(history, rows, scope).changes, split=False)
    fmt = create_format("ndjson")
    expected = {
        (line["commit_ts"], line["key"]): (line, {c.name: c for c in part.table.visible_columns})
        for part in changes
        for line in map(json.loads, written(fmt.rows(part)).to_pylist())
    }
    tables = list(pages(scope, rows))
    seen = 0
    for row in (row for table in tables for row in table.to_pylist()):
        line, columns = expected[str(row["_commit_ts"]), row["_key"].hex()]
        assert row["_op"] == line["type"]
        assert (str(row["_start_ts"]), row["_table_id"]) == (line["start_ts"], line["table_id"])
        shown = line["columns"] if line["columns"] is not None else line["old"]
        assert list(row) == ["_op", "_commit_ts", "_start_ts", "_key", "_table_id", *columns, "_old"]
        for image, want in ((row, shown), (row["_old"], line["old"])):
            assert (image is None) == (want is None)
            for column in columns.values() if image is not None else ():
                value = as_text(image[column.name], column)
                assert same(value, want[column.name], column), (column.name, value, want[column.name])
        seen += 1
    assert seen == len(expected)
    order = [ts for table in tables for ts in table["_commit_ts"].to_pylist()]
    assert order == sorted(order)
    for left, right in pairwise(tables):
        labels = [f.name for f in left.schema if pa.types.is_dictionary(f.type)]
        assert left.schema != right.schema or len(labels) > 1  # other columns, or other labels of an ENUM


def test_own_names_give_way_to_columns() -> None:
    schema = arrow._schema([ColumnSpec(id=1, name=name, tp=8) for name in ("_OP", "_old", "__old")])
    assert schema.names == ["__op", "_commit_ts", "_start_ts", "_key", "_table_id", "_OP", "_old", "__old", "___old"]


def test_a_row_that_cannot_be_decoded_is_listed_and_the_others_are_there() -> None:
    scope = Scope(tenant=TENANT, database="shop", table="customers")
    good = next(pages(scope, committed_rows()))
    rows = committed_rows()
    broken = with_broken_value(rows, rows["key"].to_pylist().index(good["_key"][1].as_py()))
    page = arrow.native_page(recorded_history(), broken, scope, recorded_history().resolved_ts)
    table = pa.ipc.open_stream(page.content).read_all()
    assert (page.quarantined, table.num_rows) == (1, good.num_rows - 1)
    (fact,) = json.loads(table.schema.metadata[b"quarantined"])
    assert (fact["table"], fact["key"]) == ("customers", good["_key"][1].as_py().hex())
    assert fact["cause"]


def test_a_missing_table_has_our_columns_only() -> None:
    history = recorded_history()
    empty = arrow.empty(history, Scope(tenant=TENANT, database="shop", table="nothing"), history.resolved_ts)
    assert empty.column_names == ["_op", "_commit_ts", "_start_ts", "_key", "_table_id", "_old"]
    assert pa.ipc.open_stream(arrow.ipc(empty)).read_all().num_rows == 0
