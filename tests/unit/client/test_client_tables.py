"""Tables pulled as Arrow: pages, their join where DDL changed columns, frames, progress, what is refused."""

from __future__ import annotations

import asyncio
import importlib
import sys
from decimal import Decimal

import httpx2
import pyarrow as pa
import pytest

from tistream.client import AsyncClient, Client, Progress
from tistream.client.tables import joined, narrow
from tistream.errors import InvalidInput, TiStreamError


def answer(table: pa.Table, cursor: str, *, more: bool = False, **headers: str) -> httpx2.Response:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    facts = {"TiStream-Next-Cursor": cursor, "TiStream-Resolved-Ts": "9"}
    facts["TiStream-Has-More"] = "true" if more else "false"
    return httpx2.Response(200, headers={**facts, **headers}, content=sink.getvalue().to_pybytes())


class Pages(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """A table of two pages; a DDL between them made a text of a decimal and added a column."""

    def __init__(self, **headers: str) -> None:
        self.asked: list[dict[str, str]] = []
        self.paths: list[str] = []
        old = pa.array([{"id": 1, "credit": Decimal("0.50")}, None], pa.struct(
            [("id", pa.int64()), ("credit", pa.decimal128(10, 2))]))  # fmt: skip
        self._one = pa.table({"id": [1, 2], "credit": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
                              "_old": old})  # fmt: skip
        self._two = pa.table({"id": [3], "credit": ["much"], "more": [7], "_old": pa.array([{"credit": "x"}])})
        self._headers = headers

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(dict(request.url.params))
        self.paths.append(request.url.path)
        if "cursor" in self.asked[-1]:
            return answer(self._two, "b")
        return answer(self._one, "a", more=True, **self._headers)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return self.handle_request(request)


ROWS = [
    {"id": 1, "credit": "1.50", "_old": {"id": 1, "credit": "0.50"}, "more": None},
    {"id": 2, "credit": None, "_old": None, "more": None},
    {"id": 3, "credit": "much", "_old": {"id": None, "credit": "x"}, "more": 7},
]


def test_pages_of_a_table() -> None:
    script, said = Pages(**{"TiStream-End-Ts": "20"}), list[Progress]()
    with Client("http://host:1", transport=script) as client:
        pull = client.table(3, 4, "shop.a.b", since="-1h", until="-5m", limit=2, progress=said.append)
        pages = list(pull.batches())
    assert [(p.rows.num_rows, p.next_cursor, p.has_more) for p in pages] == [(2, "a", True), (1, "b", False)]
    assert set(script.paths) == {"/v1/clusters/3/tenants/4/databases/shop/tables/a.b/changes"}
    assert script.asked == [
        {"format": "arrow", "start_ts": "-1h", "end_ts": "-5m", "limit": "2"},
        {"format": "arrow", "cursor": "a", "end_ts": "20", "limit": "2"},
    ], "what a span means is settled by the first answer"
    assert [(p.pages, p.rows, p.next_cursor, p.resolved_ts) for p in said] == [(1, 2, "a", 9), (2, 3, "b", 9)]
    assert 0 < said[0].bytes < said[1].bytes


def test_a_join_holds_what_the_pages_held() -> None:
    with Client("http://host:1", transport=Pages()) as client:
        pull = client.table(1, 1, "shop.t")
        assert pull.to_arrow().to_pylist() == ROWS
        assert pull.to_polars().to_dicts() == [{**r, "_old": r["_old"] or None} for r in ROWS]
        assert pull.to_pandas()["credit"].tolist() == ["1.50", None, "much"]
        assert pull.to_duckdb().aggregate("count(*), max(credit)").fetchall() == [(3, "much")]


def test_the_same_with_await() -> None:
    async def run() -> pa.Table:
        async with AsyncClient("http://host:1", transport=Pages()) as client:
            return await client.table(1, 1, "shop.t").to_arrow()

    assert asyncio.run(run()).to_pylist() == ROWS


def test_types_become_as_wide_as_they_ever_were() -> None:
    enum = pa.array(["a", "b"]).dictionary_encode()
    one = pa.table({"n": pa.array([1], pa.int8()), "e": enum.slice(0, 1), "l": pa.array([["x", "y"]])})
    two = pa.table({"n": pa.array([1 << 40]), "e": pa.array(["c"]).dictionary_encode(), "l": ["z"]})
    made = joined([one, two])
    assert made["n"].type == pa.int64()
    assert made.to_pylist() == [{"n": 1, "e": "a", "l": "x,y"}, {"n": 1 << 40, "e": "c", "l": "z"}]
    with pytest.raises(InvalidInput, match="both text and bytes"):
        joined([pa.table({"c": ["t"]}), pa.table({"c": [b"\xff"]}), pa.table({"c": [1]})])


def test_an_empty_page_is_no_obstacle() -> None:
    empty = pa.table({"id": pa.array([], pa.int64())})
    assert joined([empty, pa.table({"id": [1], "c": ["x"]})]).to_pylist() == [{"id": 1, "c": "x"}]
    assert joined([empty]).num_rows == 0


def test_long_decimals_become_text() -> None:
    wide = pa.array([Decimal(10**60), None], pa.decimal256(65, 2))
    table = pa.table({"d": wide, "_old": pa.StructArray.from_arrays([wide], ["d"])})
    assert narrow(table).to_pylist()[0] == {"d": f"{10**60}.00", "_old": {"d": f"{10**60}.00"}}


def test_rows_that_cannot_be_decoded_stop_it() -> None:
    script = Pages(**{"TiStream-Quarantined": "2"})
    with Client("http://host:1", transport=script) as client, pytest.raises(TiStreamError, match="2 rows cannot"):
        client.table(1, 1, "shop.t").to_arrow()


@pytest.mark.parametrize("name", ["shop", "shop.", ".t", ""])
def test_a_table_has_two_names(name: str) -> None:
    with Client("http://host:1", transport=Pages()) as client, pytest.raises(InvalidInput, match=r"database\.table"):
        client.table(1, 1, name)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with Client("http://host:1", transport=Pages()) as client, pytest.raises(InvalidInput, match="pip install duckdb"):
        client.table(1, 1, "shop.t").to_duckdb()
    assert importlib.util.find_spec("polars")
