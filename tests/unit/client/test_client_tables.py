"""Tables pulled as Arrow: pages, their join where DDL changed columns, frames, progress, what is refused."""

from __future__ import annotations

import asyncio
import sys
from decimal import Decimal

import httpx2
import pyarrow as pa
import pytest

from tistream.client import AsyncClient, Client, Progress
from tistream.client.core.requests import ALIVE
from tistream.client.frames import joined, narrow
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
        if request.url.path == ALIVE:
            return httpx2.Response(200)
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
        pull = client.tenant(3, 4).table("shop.a.b").changes(start="-1h", end="-5m", limit=2, progress=said.append)
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
        pull = client.tenant(1, 1).table("shop.t").changes()
        assert pull.to_arrow().to_pylist() == ROWS
        assert pull.to_polars().to_dicts() == ROWS
        assert pull.to_pandas()["credit"].tolist() == ["1.50", None, "much"]
        assert pull.to_duckdb().aggregate("count(*), max(credit)").fetchall() == [(3, "much")]


def test_the_same_with_await() -> None:
    async def run() -> pa.Table:
        async with AsyncClient("http://host:1", transport=Pages()) as client:
            return await client.tenant(1, 1).table("shop.t").changes().to_arrow()

    assert asyncio.run(run()).to_pylist() == ROWS


def test_types_become_as_wide_as_they_ever_were() -> None:
    enum = pa.array(["a", "b"]).dictionary_encode()
    one = pa.table({"n": pa.array([1], pa.int8()), "e": enum.slice(0, 1), "l": pa.array([["x", "y"]])})
    two = pa.table({"n": pa.array([1 << 40]), "e": pa.array(["c"]).dictionary_encode(), "l": ["z"]})
    table = joined([one, two])
    assert table["n"].type == pa.int64()
    assert table.to_pylist() == [{"n": 1, "e": "a", "l": "x,y"}, {"n": 1 << 40, "e": "c", "l": "z"}]
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
        client.tenant(1, 1).table("shop.t").changes().to_arrow()


@pytest.mark.parametrize("name", ["shop", "shop.", ".t", ""])
def test_a_table_has_two_names(name: str) -> None:
    with Client("http://host:1", transport=Pages()) as client, pytest.raises(InvalidInput, match=r"database\.table"):
        client.tenant(1, 1).table(name)


def test_rows_break_where_pieces_break() -> None:
    lines = b'{"columns":{"id":1,"name":"a"}}\n{"columns":{"id":2,"name":"b"}}\n'

    class Pieces(httpx2.BaseTransport):
        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            return httpx2.Response(200, content=iter([lines[:40], lines[40:]]))

    with Client("http://host:1", transport=Pieces()) as client:
        rows = client.tenant(1, 1).table("shop.t").rows()
        assert [*rows] == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]


def test_what_never_ends_is_no_frame() -> None:
    with Client("http://host:1", transport=Pages()) as client:
        followed = client.tenant(1, 1).table("shop.t").follow()
        with pytest.raises(InvalidInput, match="give an end"):
            followed.to_arrow()
        assert next(followed.batches()).rows.num_rows == 2


@pytest.mark.parametrize("package", ["pandas", "polars", "duckdb"])
def test_a_package_is_asked_for_before_the_service(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    script = Pages()
    with Client("http://host:1", transport=script) as client:
        table = client.tenant(1, 1).table("shop.t")
        for result in (table.changes(), table.rows()):
            with pytest.raises(InvalidInput, match=f"{package} is not installed: pip install {package}"):
                getattr(result, f"to_{package}")()
    assert not script.asked
