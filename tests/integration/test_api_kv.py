"""Pulling keys and values of a raw tenant: every format against a decoder of its own, cursors, selections, refusals."""

from __future__ import annotations

import asyncio
import base64
import codecs
import json
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest

from apiserver.app import create_app
from tests.kit.api_world import BASE, ApiWorld, api_world, arrow_of, events_of, has_more, next_cursor, resolved_ts
from tests.kit.entry_log import PREFIX, Entry, EntryLog, entry_rows
from tests.kit.stream_world import served
from tistream.catalog.rows.kinds import Keyspace, TenantKind
from tistream.catalog.tenancy.tenants import begin_tenant
from tistream.client import connect, connect_async

END = 1_000_000
_KEYS = [
    b"", b"\x00", b"\x00\x00", b"\xff", b"\xff\xff", b"k", b"k1", b"k\"'\\", b"k\n\r\t\x07", b"k\x7f\x80\xc3", b"\\x00",
    "schlüssel".encode(), "\u2028\U0001f511".encode(), b"user:1", b"user:2", b"r\x00\x00\x01k", bytes(range(256)),
    b"long" * 300,
]  # fmt: skip


def _entries() -> list[Entry]:
    """Writes of hostile keys and values in the order of the log: several a timestamp, some scanned or expiring."""
    dice, by_at = Random(20), {}
    for _ in range(400):
        ts, key = dice.randrange(1, 150) * 1000, dice.choice(_KEYS)
        value = None if dice.random() < 0.3 else dice.choice([b"", *_KEYS, dice.randbytes(9)])
        expire_ts = dice.choice([0, 0, 1_790_000_000, 2**63]) if value is not None else 0
        scanned_from_ts = dice.choice([None, None, 0, ts - 1])
        by_at[ts, key] = Entry(ts, key, value, expire_ts, scanned_from_ts)
    return sorted(by_at.values(), key=lambda e: (e.ts, e.ts if e.scanned_from_ts is None else e.scanned_from_ts, e.key))


ENTRIES = _entries()


@pytest.fixture(scope="module")
def kv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    """A raw tenant's log in seven flushes; its tests only read."""
    with api_world(tmp_path_factory.mktemp("kv"), rows=entry_rows(ENTRIES), builder=EntryLog) as new_world:
        new_world.log.build(7, upto=END)
        yield new_world


def _text(form: str) -> Callable[[str], bytes]:
    return {
        "hex": bytes.fromhex,
        "base64": lambda text: base64.b64decode(text, validate=True),
        "escaped": lambda text: codecs.escape_decode(text.encode("ascii"))[0],
        "utf8": str.encode,
    }[form]


def _of_json(line: dict[str, Any], form: str) -> Entry:
    decode = _text(form)
    assert line["op"] == ("delete" if line["value"] is None else "put")
    return Entry(
        int(line["ts"]),
        decode(line["key"]),
        None if line["value"] is None else decode(line["value"]),
        line["expire_ts"] or 0,
        int(line["scanned_from_ts"]) if "scanned_from_ts" in line else None,
    )


def _of_message(line: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Key and value of TiKV-CDC's message, taken apart by its framing."""
    key, value = (base64.b64decode(line[name], validate=True) for name in ("key", "value"))
    version, size = struct.unpack_from(">QQ", key)
    assert (version, len(key)) == (1, 16 + size)
    (value_size,) = struct.unpack_from(">Q", value)
    assert len(value) == 8 + value_size
    return json.loads(key[16:]), json.loads(value[8:]) if value_size else None


def _decoded(answer: httpx2.Response, format: str, form: str = "hex") -> list[Entry]:
    """The entries of a body; of TiKV-CDC's messages without what they cannot say."""
    if format == "arrow":
        names = ("ts", "key", "value", "expire_ts", "scanned_from_ts", "op")
        rows = arrow_of(answer).select(names).to_pylist()
        assert all((row["op"] == "delete") == (row["value"] is None) for row in rows)
        return [Entry(r["ts"], r["key"], r["value"], r["expire_ts"] or 0, r["scanned_from_ts"]) for r in rows]
    if format == "json":
        return [_of_json(item, form) for item in answer.json()["items"]]
    if format == "ndjson":
        return [_of_json(line, form) for line in events_of(answer) if "op" in line]
    entries = []
    for key, value in map(_of_message, events_of(answer)):
        if key["t"] == 3:
            assert (value, "k" in key) == (None, False)
            continue
        assert key["t"] == 4
        assert value is not None
        stored = base64.b64decode(key["k"])
        assert stored.startswith(PREFIX)
        stored_value = base64.b64decode(value["v"]) if "v" in value else b""
        entries.append(Entry(key["ts"], stored[4:], None if value["op"] == 2 else stored_value, value.get("ex", 0)))
    return entries


def _as_in(format: str, entries: list[Entry]) -> list[Entry]:
    return [e._replace(scanned_from_ts=None) for e in entries] if format == "tikv-cdc" else entries


@pytest.mark.parametrize("form", ["hex", "base64", "escaped"])
@pytest.mark.parametrize("format", ["ndjson", "json", "arrow", "tikv-cdc"])
def test_every_entry_comes_once_in_order_in_each_form(kv: ApiWorld, format: str, form: str) -> None:
    answer = kv.ok("/kv/changes", format=format, key_format=form, limit=10_000)
    assert _decoded(answer, format, form) == _as_in(format, ENTRIES)
    assert (resolved_ts(answer), has_more(answer)) == (END, False)


def test_text_that_is_utf8_is_written_and_other_bytes_are_refused_with_their_key(kv: ApiWorld) -> None:
    selection = {"key_format": "utf8", "prefix": "schl\u00fcssel", "value_pattern": "^[a-z0-9:]*$"}
    entries = _decoded(kv.ok("/kv/changes", format="ndjson", **selection), "ndjson", "utf8")
    want = [e for e in ENTRIES if e.key == "schl\u00fcssel".encode() and re.fullmatch(b"[a-z0-9:]*", e.value or b"")]
    assert entries == want
    assert any(e.value for e in want)
    for prefix, words in (("k\x7f", "The key 0x6b7f80c3"), ("user:", "The value of key 0x757365723a")):
        problem = kv.get("/kv/changes", start_ts="earliest", key_format="utf8", prefix=prefix)
        assert (problem.status_code, problem.json()["code"]) == (400, "TS-1023")
        assert words in problem.json()["detail"]
        assert "key_format=hex" in problem.json()["hint"]


@pytest.mark.parametrize("format", ["ndjson", "arrow", "tikv-cdc"])
@pytest.mark.parametrize("limit", [1, 7, 100])
def test_pages_of_any_size_give_each_change_once(kv: ApiWorld, format: str, limit: int) -> None:
    pages = list(kv.pages("/kv/changes", format=format, limit=limit))
    assert [e for page in pages for e in _decoded(page, format)] == _as_in(format, ENTRIES)
    ends = [{e.ts for e in _decoded(page, format)} for page in pages]
    assert len(set().union(*ends)) == sum(map(len, ends)), "no timestamp is cut in two"


def test_the_parts_of_a_long_pull_hold_each_change_once(kv: ApiWorld) -> None:
    plan = kv.get("/kv/changes/splits", start_ts="earliest", parts=4, part_bytes=1).json()
    assert len(plan["parts"]) == 4
    entries = [
        entry
        for part in plan["parts"]
        for page in kv.pages("/kv/changes", cursor=part["cursor"], end_ts=part["end_ts"], format="arrow", limit=30)
        for entry in _decoded(page, "arrow")
    ]
    assert entries == ENTRIES


@pytest.mark.parametrize(
    ("query", "selects"),
    [
        ({"prefix": "6b"}, lambda e: e.key.startswith(b"k")),
        ({"prefix": "ff"}, lambda e: e.key.startswith(b"\xff")),
        ({"start_key": "6b31", "end_key": "757365723a32"}, lambda e: b"k1" <= e.key < b"user:2"),
        ({"start_key": "6b31", "prefix": "6b"}, lambda e: e.key >= b"k1" and e.key.startswith(b"k")),
        ({"end_key": "00"}, lambda e: e.key == b""),
        ({"key_pattern": r"^user:\d$"}, lambda e: re.search(rb"^user:\d$", e.key)),
        ({"key_pattern": r"[\x80-\xff]"}, lambda e: re.search(rb"[\x80-\xff]", e.key)),
        ({"key_pattern": "\u00ff"}, lambda e: b"\xff" in e.key),
        ({"value_pattern": r"^$|\x00"}, lambda e: e.value is None or e.value == b"" or b"\x00" in e.value),
        ({"end_key": "6b", "value_pattern": "k1"}, lambda e: e.key < b"k" and (e.value is None or b"k1" in e.value)),
        ({"key_pattern": "matches nothing"}, lambda e: False),
    ],
)  # fmt: skip
def test_a_selection_gives_what_plain_code_selects(
    kv: ApiWorld, query: dict[str, str], selects: Callable[[Entry], object]
) -> None:
    want = [e for e in ENTRIES if selects(e)]
    assert [
        e for page in kv.pages("/kv/changes", format="arrow", limit=20, **query) for e in _decoded(page, "arrow")
    ] == want
    whole = kv.ok("/kv/changes", format="ndjson", limit=10_000, **query)
    assert _decoded(whole, "ndjson") == want
    assert next_cursor(whole) == next_cursor(kv.ok("/kv/changes", limit=10_000)), "a selection moves no cursor"


def test_the_requests_of_the_documentation_give_changes(kv: ApiWorld) -> None:
    page = (Path(__file__).parents[2] / "docs" / "filters.md").read_text("utf-8")
    requests = re.findall(r"^GET \.\.\.(/kv/\S+?)\?(.+)$", page, re.MULTILINE)
    assert len(requests) == 2
    for path, query in requests:
        answer = kv.ok(path, **dict(part.split("=", 1) for part in query.split("&")))
        assert len(answer.content.splitlines()) > 2


@pytest.mark.parametrize(("form", "key"), [("base64", "/w=="), ("base64", "_w"), ("escaped", r"\xff"), ("hex", "FF")])
def test_keys_of_a_request_are_in_the_key_format(kv: ApiWorld, form: str, key: str) -> None:
    entries = _decoded(kv.ok("/kv/changes", format="arrow", key_format=form, prefix=key), "arrow")
    assert entries == [e for e in ENTRIES if e.key.startswith(b"\xff")]


@pytest.mark.parametrize(
    ("query", "code", "words"),
    [
        ({"prefix": "zz"}, "TS-1001", "prefix is not written as hex"),
        ({"prefix": "k", "key_format": "base64"}, "TS-1001", "prefix is not written as base64"),
        ({"start_key": r"\zz", "key_format": "escaped"}, "TS-1001", "start_key is not written as escaped"),
        ({"start_key": "02", "end_key": "02"}, "TS-1001", "The range is empty"),
        ({"prefix": "03", "end_key": "02"}, "TS-1001", "No key with the prefix 0x03"),
        ({"key_format": "utf-16"}, "TS-1001", "key_format"),
        ({"key_pattern": "k("}, "TS-1018", "key_pattern: it is no regular expression"),
        ({"value_pattern": "\u20ac"}, "TS-1018", "value_pattern: a pattern is about bytes"),
        ({"value_pattern": "a" * 16_385}, "TS-1018", "more than 16384 characters"),
        ({"tables": "a.b"}, "TS-1001", "There is no parameter 'tables'"),
        ({"format": "canal-json"}, "TS-1001", "There is no format 'canal-json'"),
        ({"start_ts": "-"}, "TS-1001", "is not a timestamp"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused_with_its_parameter(
    kv: ApiWorld, query: dict[str, str], code: str, words: str
) -> None:
    for path in ("/kv/changes", "/kv/changes:stream"):
        problem = kv.get(path, **{"start_ts": "earliest", **query})
        assert (problem.status_code, problem.json()["code"]) == (400, code), path
        assert words in problem.json()["detail"]


def test_a_raw_tenant_has_no_tables_and_a_tidb_tenant_no_keys(kv: ApiWorld, fresh: ApiWorld) -> None:
    table = "/databases/shop/tables/customers"
    paths = ["/changes", "/changes/splits", f"{table}/changes", "/databases", f"{table}/rows", "/ddl", "/schema-diff"]
    for path in [*paths, "/changes:stream"]:
        query = {"start_ts": "earliest"} if "changes" in path else {}
        problem = kv.get(path, **query)
        assert (problem.status_code, problem.json().get("code")) == (400, "TS-1093"), path
        assert f"{BASE}/kv/changes" in problem.json()["detail"], path
    fresh.log.build(1)
    for path in ("/kv/changes", "/kv/changes:stream", "/kv/changes/splits"):
        problem = fresh.get(path, start_ts="earliest")
        assert (problem.status_code, problem.json()["code"]) == (400, "TS-1093")
        assert f"Read {BASE}/changes" in problem.json()["detail"]


def test_a_waiting_pull_and_a_stream_get_what_comes(tmp_path: Path) -> None:
    with api_world(tmp_path, rows=entry_rows(ENTRIES), builder=EntryLog) as world:
        world.log.activate()
        start = world.ok("/kv/changes")
        assert (start.json()["items"], start.json()["next_cursor"]) == ([], next_cursor(start)), "nothing yet"
        middle = world.log.cuts(2)[0]
        timer = threading.Timer(0.3, world.log.flush, [middle])
        timer.start()
        first = world.ok("/kv/changes", cursor=next_cursor(start), wait=20, limit=10_000, format="ndjson")
        timer.join()
        assert _decoded(first, "ndjson") == [e for e in ENTRIES if e.ts <= middle]
        world.log.flush(END)
        with served(create_app(world.services)) as server:
            address = f"{server.url}{BASE}/kv/changes:stream"
            query: dict[str, str | int] = {"start_ts": str(middle), "end_ts": str(END), "limit": 50, "prefix": "6b"}
            bodies = {
                (word, framing): httpx2.get(address, params={**query, "format": word, "framing": framing}, timeout=20)
                for word in ("ndjson", "tikv-cdc")
                for framing in ("lines", "sse")
            }
            arrow = httpx2.get(address, params={**query, "format": "arrow"}, timeout=20)
    want = [e for e in ENTRIES if e.ts > middle and e.key.startswith(b"k")]
    assert _decoded(arrow, "arrow") == want
    for (word, framing), body in bodies.items():
        lines = body.content.split(b"\n") if framing == "lines" else re.findall(rb"^data: (.*)$", body.content, re.M)
        plain = httpx2.Response(200, content=b"\n".join(x for x in lines if b'"op"' in x or b'"key"' in x))
        assert _decoded(plain, word) == _as_in(word, want), (word, framing)
    assert events_of(bodies["ndjson", "lines"])[-1]["reason"] == "end-reached"


def test_a_txn_tenant_is_read_from_before_its_keyspace_is_known(tmp_path: Path) -> None:
    entries = [e._replace(expire_ts=0, scanned_from_ts=None) for e in ENTRIES[:40]]
    builder = partial(EntryLog, kind=TenantKind.TXN, keyspace=Keyspace(name="app"))
    with api_world(tmp_path, rows=entry_rows(entries, b"x\x00\x00\x07"), builder=builder) as world:
        start = world.ok("/kv/changes", format="arrow")
        assert (arrow_of(start).num_rows, resolved_ts(start), has_more(start)) == (0, 0, False)
        begin_tenant(world.catalog, world.log.tenant, 7)
        world.log.flush(END)
        rest = world.ok("/kv/changes", cursor=next_cursor(start), format="arrow")
        assert _decoded(rest, "arrow") == sorted(entries, key=lambda e: (e.ts, e.key))
        message, _ = _of_message(events_of(world.ok("/kv/changes", format="tikv-cdc", limit=1))[0])
        assert base64.b64decode(message["k"]).startswith(b"x\x00\x00\x07")


def test_both_clients_and_the_command_read_keys_as_bytes_and_text(kv: ApiWorld) -> None:
    want = [e for e in ENTRIES if e.key.startswith(b"k") and e.key >= b"k1"]
    keys: dict[str, Any] = {"start": b"k1", "prefix": b"k"}
    with served(create_app(kv.services)) as server:
        with connect(server.url) as client:
            keyspace = client.tenant(1, 1).keys(**keys)
            assert [_of_client(change) for change in keyspace.changes(limit=50)] == want
            assert [_of_client(change) for change in keyspace.follow(end=END, limit=50)] == want
            assert keyspace.changes().to_arrow().column("key").to_pylist() == [e.key for e in want]
            page = keyspace.page(options={"key_format": "escaped"}, limit=1)
            assert _of_json(page.changes()[0], "escaped") == want[0]

        async def read() -> list[Entry]:
            async with connect_async(server.url) as client:
                keyspace = client.tenant(1, 1).keys(**keys)
                assert [_of_client(change) async for change in keyspace.changes(limit=50)] == want
                return [_of_client(change) async for change in keyspace.follow(end=END)]

        assert asyncio.run(read()) == want
        command = [str(Path(sys.executable).with_name("tistream")), "pull"]
        words = ["--keys", "--url", server.url, "--prefix", "k", "--start-key", r"k\x31"]
        out = subprocess.run([*command, *words], capture_output=True, check=True).stdout
        address = f"{server.url}{BASE}/kv/changes?prefix=6b&start_key=6b31&format=tikv-cdc"
        messages = subprocess.run([*command, address], capture_output=True, check=True).stdout
    assert _decoded(httpx2.Response(200, content=out), "ndjson", "escaped") == want
    assert _decoded(httpx2.Response(200, content=messages), "tikv-cdc") == _as_in("tikv-cdc", want)


def _of_client(change: dict[str, Any]) -> Entry:
    scanned_from = int(change["scanned_from_ts"]) if "scanned_from_ts" in change else None
    return Entry(int(change["ts"]), change["key"], change["value"], change["expire_ts"] or 0, scanned_from)
