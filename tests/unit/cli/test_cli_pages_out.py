"""What `tistream pull` writes: Arrow as one stream that every reader reads to its end, and lines for people."""

from __future__ import annotations

from decimal import Decimal
from io import BytesIO
from typing import Any

import orjson
import pyarrow as pa
import pytest
from rich.cells import cell_len

from tistream.cli.pages_out import output_of, readable
from tistream.client.core.requests import Page
from tistream.codec.memcomparable import encode_bytes, encode_int
from tistream.codec.table_key import record_key
from tistream.errors import InvalidInput


def page(table: pa.Table, resolved_ts: int = 9) -> Page:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return Page(content=sink.getvalue().to_pybytes(), next_cursor="c", resolved_ts=resolved_ts, has_more=False)


ONE = pa.table({"id": [1, 2], "credit": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2))})
TWO = pa.table({"id": [3], "credit": ["much"], "more": [7]})
EMPTY = TWO.slice(0, 0)


def written(*tables: pa.Table, follow: bool = False) -> bytes:
    sink = BytesIO()
    out = output_of("arrow", sink, follow=follow)
    assert [out.write(page(table)) for table in tables] == [table.num_rows for table in tables]
    out.close()
    return sink.getvalue()


def test_pages_of_several_schemas_are_one_stream_with_all_rows() -> None:
    read = pa.ipc.open_stream(written(ONE, EMPTY, TWO))
    assert read.read_all().to_pylist() == [
        {"id": 1, "credit": "1.50", "more": None},
        {"id": 2, "credit": None, "more": None},
        {"id": 3, "credit": "much", "more": 7},
    ]


def test_a_column_without_a_common_type_is_named_and_nothing_is_written() -> None:
    sink = BytesIO()
    out = output_of("arrow", sink, follow=False)
    out.write(page(pa.table({"c": ["text"]})))
    out.write(page(pa.table({"c": [b"\xff"]})))
    with pytest.raises(InvalidInput, match=r"Column c was both text and bytes .* before and after apart"):
        out.close()
    assert not sink.getvalue()


def test_a_pull_that_follows_writes_rows_at_once() -> None:
    sink = BytesIO()
    out = output_of("arrow", sink, follow=True)
    out.write(page(ONE))
    so_far = sink.getvalue()
    assert pa.ipc.open_stream(so_far).read_next_batch().num_rows == 2
    out.write(page(EMPTY))
    with pytest.raises(InvalidInput, match="columns have changed at or below 77"):
        out.write(page(TWO, resolved_ts=77))
    out.write(page(ONE))
    out.close()
    assert pa.ipc.open_stream(sink.getvalue()).read_all().num_rows == 4


def test_without_a_page_nothing_is_written() -> None:
    assert written() == written(follow=True) == b""


Columns = dict[str, Any]
WIDE = 1_000


def change(kind: str, columns: Columns | None, old: Columns | None, handle: int | bytes = 17) -> Columns:
    return {
        "type": kind, "database": "shop", "table": "orders", "key": record_key(118, handle).hex(),
        "commit_time": "2026-11-21T14:05:31.123Z", "columns": columns, "old": old,
    }  # fmt: skip


def said(columns: Columns) -> str:
    """What stands behind time, table and operation."""
    return readable(columns, width=WIDE).split(maxsplit=3)[3]


def test_an_insert_has_the_key_first_then_all_columns() -> None:
    row = {"state": "new", "total": "9.50", "id": 17, "note": None}
    assert readable(change("insert", row, None), width=WIDE, table_width=14) == (
        "14:05:31.123  shop.orders     insert  id=17  state=new  total=9.50  note=NULL"
    )


def test_an_update_has_what_changed() -> None:
    old = {"id": 17, "state": "paid", "note": "a b", "sent": None}
    new = old | {"state": "shipped", "sent": "2026-11-21 08:00:00"}
    assert said(change("update", new, old)) == "id=17  state: paid -> shipped  sent: NULL -> 2026-11-21 08:00:00"


def test_a_delete_has_the_key_only() -> None:
    assert said(change("delete", None, {"state": "paid", "id": 17})) == "id=17"


def test_a_ddl_has_its_statement() -> None:
    ddl = {"type": "ddl", "database": "shop", "table": "orders", "commit_time": "2026-11-21T14:05:31.123Z"}
    assert readable({**ddl, "query": "ALTER TABLE `orders`\n ADD `x` INT"}, width=WIDE) == (
        r"14:05:31.123  shop.orders  ddl     ALTER TABLE `orders`\n ADD `x` INT"
    )
    assert " shop  ddl " in readable({**ddl, "table": "", "query": "DROP DATABASE `shop`"}, width=WIDE)


def test_a_write_of_a_key_has_its_value_and_its_end() -> None:
    put = {"op": "put", "key": "user:1", "value": "A\\x00", "ts": str(1795269931123 << 18), "expire_ts": 1795248187}
    assert readable(put, width=WIDE) == "14:05:31.123  put     user:1 = A\\x00  expires 2026-11-21T08:03:07Z"
    deleted = {**put, "op": "delete", "key": "", "value": None, "expire_ts": None, "scanned_from_ts": "7"}
    assert readable(deleted, width=WIDE) == '14:05:31.123  delete  ""  (from a scan)'
    assert "expires at 18446744073709551615" in readable({**put, "expire_ts": 2**64 - 1}, width=WIDE)


@pytest.mark.parametrize(
    ("handle", "row", "key"),
    [
        (-3, {"a": 3, "id": -3}, "id=-3"),
        (-1, {"a": 1, "id": "18446744073709551615"}, "id=18446744073709551615"),  # BIGINT UNSIGNED
        (b"\x01" + encode_bytes(b"x") + b"\x03" + encode_int(7), {"n": 7, "t": "y", "k": "x"}, "k=x  n=7"),
        (b"\x01" + encode_bytes(b"b\xff"), {"v": 1, "k": "Yv8="}, "k=Yv8="),  # VARBINARY
    ],
)
def test_key_columns_are_those_with_the_values_of_the_stored_key(handle: int | bytes, row: Columns, key: str) -> None:
    assert said(change("delete", None, row, handle)) == key


@pytest.mark.parametrize("handle", [5, b"\x01" + encode_bytes(b"\x00A\x00L"), b"\x06" + bytes(9), b"\x01\x02"])
def test_without_a_known_key_all_columns_are_shown(handle: int | bytes) -> None:
    old, new = {"k": "al", "f": 1, "g": 2}, {"k": "al", "f": 1.5, "g": 2}
    assert said(change("delete", None, old, handle)) == "k=al  f=1  g=2"
    assert said(change("update", new, old, handle)) == "k=al  f: 1 -> 1.5  g=2"


def test_values_that_could_be_misread_are_in_quotes() -> None:
    row = {"id": 17, "a": None, "b": "NULL", "c": "", "d": " x", "e": "x  y=1", "f": "1 -> 2", "g": 'a"b', "h": [0.5]}
    assert said(change("insert", row, None)) == (
        r'id=17  a=NULL  b="NULL"  c=""  d=" x"  e="x  y=1"  f="1 -> 2"  g="a\"b"  h=[0.5]'
    )


def test_json_is_shown_as_it_is() -> None:
    row = {"id": 17, "a": '{"x": ["y\\n", 1]}', "b": "[1, 2]", "c": '{"x": 1'}
    assert said(change("insert", row, None)) == r'''id=17  a={"x": ["y\n", 1]}  b=[1, 2]  c="{\"x\": 1"'''


def test_control_characters_never_reach_the_terminal() -> None:
    row = {"id": 17, "a\x1b[2J": "x\x1b]0;title\x07", "b": "\r\n\x7f\x9b\u202e\u2028", "c": "\b"}
    event = change("insert", row, None) | {"table": "or\x1bders", "database": "\x9b"}
    text = readable(event, width=WIDE)
    assert text.isprintable()
    assert r"a\x1b[2J=" in text
    assert text.endswith(r'\u202e\u2028"  c="\b"')


def test_a_line_fits_the_terminal_and_a_long_value_leaves_room() -> None:
    old = {"id": 17, "photo": "漢" * 500, "state": "paid"}
    event = change("update", {**old, "photo": "字" * 500, "state": "sent"}, old)
    assert readable(event, width=200).endswith("…  state: paid -> sent")
    for width in (20, 80, 81):
        line = readable(event, width=width)
        assert width - 2 <= cell_len(line) <= width
        assert line.endswith("…")


class Terminal(BytesIO):
    """Where `tistream pull` finds a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_finite_pull_has_days_and_its_end_and_no_watermarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    one, two = change("delete", None, {"id": 17}), change("delete", None, {"id": 17})
    two["commit_time"] = "2026-11-22T00:00:00.000Z"
    lines = [one, one, two, {"type": "resolved", "resolved_ts": "1", "resolved_time": "2026-11-22T00:00:01.000Z"}]
    page = Page(
        content=b"\n".join(map(orjson.dumps, lines)), next_cursor="c", resolved_ts=1795305601000 << 18, has_more=False
    )
    for follow, end in ((False, ["complete up to 2026-11-22T00:00:01.000Z"]), (True, [])):
        out = Terminal()
        output = output_of(None, out, follow=follow)
        assert output.write(page) == 3
        output.close()
        row = "shop.orders  delete  id=17"
        days = ["2026-11-21 (UTC)", *[f"14:05:31.123  {row}"] * 2, "2026-11-22 (UTC)", f"00:00:00.000  {row}"]
        assert out.getvalue().decode().splitlines() == days + end


def test_lines_stay_as_they_are_with_a_format_or_without_a_terminal() -> None:
    page = Page(content=b'{"type":"x"}\n{"type":"y"}\n', next_cursor="c", resolved_ts=1, has_more=False)
    for format_name, out in (("ndjson", Terminal()), (None, BytesIO())):
        assert output_of(format_name, out, follow=False).write(page) == 2
        assert out.getvalue() == page.content
