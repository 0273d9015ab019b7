"""What `tistream pull` writes: Arrow as one stream that every reader reads to its end."""

from __future__ import annotations

from decimal import Decimal
from io import BytesIO

import pyarrow as pa
import pytest

from tistream.cli.pages_out import output_of
from tistream.client.core.requests import Page
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


def test_lines_are_written_as_they_are() -> None:
    sink = BytesIO()
    out = output_of("ndjson", sink, follow=False)
    assert out.write(Page(content=b"a\nb\n", next_cursor="c", resolved_ts=1, has_more=False)) == 2
    assert sink.getvalue() == b"a\nb\n"
