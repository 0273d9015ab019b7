"""Schema objects of any bytes: what is not usable is refused as corrupt, with its place, and by no other error."""

from __future__ import annotations

import copy
import random
import struct
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from metaserver.activation import read_snapshot
from metaserver.initial_ranges import lay_out
from schemas.actions import Action
from schemas.ddl import Job
from schemas.history import History
from schemas.saved import FORMAT, change_json, dumps, frame, open_object, unframe
from schemas.snapshot import parse_pushed
from tests.kit.recording import RECORDING
from tistream.errors import CorruptObject
from tistream.ids import Tenant
from tistream.limits import INT_MAX
from tistream.objectstore.layout import SchemaSnapKey

Path = tuple[str | int, ...]

_WHOLE: dict[str, Any] = orjson.loads((RECORDING / "schema_snapshot.json").read_bytes())
_JOBS = next(t for t in _WHOLE["tables"] if t["info"]["name"]["L"] == "tidb_ddl_job")
_USERS = [t for t in _WHOLE["tables"] if t["db_id"] == 116][:3]
SMALL = {**_WHOLE, "tables": [*_USERS, _JOBS]}
KEY = SchemaSnapKey(tenant=Tenant(1, 1), ts=int(_WHOLE["ts"]))
NOT_THERE = object()
VALUES: tuple[Any, ...] = (
    None, -1, 0, 1 << 62, 1 << 63, (1 << 64) - 1, 1.5, 1e300, "x", "", "9" * 30, [], {}, True, [None], ["a"],
    {"a": 1}, [[]], NOT_THERE,
)  # fmt: skip


def paths(value: Any, at: Path = ()) -> Iterator[Path]:
    """Every place of a document; of a list the first three items."""
    yield at
    match value:
        case dict():
            for name, inner in value.items():
                yield from paths(inner, (*at, name))
        case list():
            for n, inner in enumerate(value[:3]):
                yield from paths(inner, (*at, n))


PLACES = [path for path in paths(SMALL) if path]


def changed(document: Any, path: Path, value: Any) -> Any:
    """The document with another value at one place."""
    copied = copy.deepcopy(document)
    inner = copied
    for step in path[:-1]:
        inner = inner[step]
    if value is NOT_THERE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return copied


def activated(data: bytes) -> bool:
    """Do with the bytes what activation and the schema registry do. Whether they can be used."""
    refused = None
    try:
        history = read_snapshot(KEY, data)
    except CorruptObject as error:
        refused = error
    if refused is not None:
        assert refused.facts["object"] == str(KEY)
        return False
    tiles = [task.range for task in lay_out(history, 4)]
    assert all(tile.start < tile.end for tile in tiles)
    assert 0 < history.start_ts <= INT_MAX
    again = History.load(history.dump())
    for db in again.databases(KEY.ts):
        for table in again.tables(db.name, KEY.ts):
            assert table.physical_ids
    return True


def test_the_document_itself_can_be_used() -> None:
    assert activated(zstandard.compress(orjson.dumps(SMALL)))


@pytest.mark.parametrize("name", ["ts", "schema_version", "dbs", "tables"])
@pytest.mark.parametrize("value", VALUES, ids=lambda v: repr(v)[:12])
def test_each_field_of_the_document_with_each_value(name: str, value: Any) -> None:
    activated(zstandard.compress(orjson.dumps(changed(SMALL, (name,), value))))


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        (("dbs",), [None], "dbs[0]"),
        (("schema_version",), "x", "schema_version"),
        (("ts",), 1 << 63, "ts"),
        (("tables", 0, "info", "cols", 1, "type", "Tp"), "x", "cols[1]"),
        (("tables", 1, "db_id"), 10**6, "tables[1].db_id"),
    ],
)
def test_the_place_is_named(path: Path, value: Any, place: str) -> None:
    with pytest.raises(CorruptObject) as caught:
        read_snapshot(KEY, zstandard.compress(orjson.dumps(changed(SMALL, path, value))))
    assert place in str(caught.value.facts["reason"])
    assert caught.value.facts["object"] == str(KEY)


@pytest.mark.parametrize("value", VALUES, ids=lambda v: repr(v)[:12])
def test_any_field_of_any_type_is_used_or_refused(value: Any) -> None:
    for path in PLACES:
        activated(zstandard.compress(orjson.dumps(changed(SMALL, path, value))))


@settings(max_examples=200, deadline=None)
@given(
    document=st.recursive(
        st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["ts", "dbs", "tables", "id"]), inner),
    )
)
def test_any_json_is_refused(document: Any) -> None:
    assert not activated(zstandard.compress(orjson.dumps(document)))


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    assert not activated(data)
    assert not activated(zstandard.compress(data))
    assert not activated(zstandard.compress(b"[" * 100_000))


def test_damaged_bytes_of_a_good_document_are_refused() -> None:
    whole = zstandard.ZstdCompressor(write_checksum=True).compress(orjson.dumps(SMALL))
    rand = random.Random(1)
    for _ in range(100):
        data = bytearray(whole)
        data[rand.randrange(len(data))] ^= 1 << rand.randrange(8)
        activated(bytes(data))
        activated(bytes(data[: rand.randrange(len(data))]))


def job(kind: int, at: int, **more: Any) -> Job:
    """A finished job on the first table of the document."""
    first = _USERS[0]
    values = {"table_id": first["info"]["id"], "schema_name": "", "query": "?", "db_info": None, "table_info": None}
    of = {"id": 1000 + at, "schema_id": first["db_id"], "state": 4, "table_infos": (), "args": None}
    ts = KEY.ts + at
    return Job(type=kind, start_ts=ts - 1, commit_ts=ts, schema_version=10**6 + at, **{**values, **of, **more})


def saved_document() -> tuple[Any, Any, Any]:
    """(head, changes, blocks) of a saved history with changes."""
    pushed = parse_pushed(SMALL)
    history = History(pushed.snapshot, pushed.job_table)
    wider = {**_USERS[0]["info"], "comment": "new"}
    history.apply(job(17, 10, table_info=wider))
    history.apply(job(Action.DROP_TABLE, 20))
    history.advance(KEY.ts + 30)
    data = history.dump()
    opening = open_object("h", lambda at, length: data[at : at + length])
    blocks, at = [], opening.blocks_at
    for length in opening.head["blocks"]["lengths"]:
        blocks.append([orjson.loads(line) for line in unframe("h", data[at : at + length]).splitlines()])
        at += length
    return orjson.loads(dumps(opening.head)), [orjson.loads(dumps(change_json(c))) for c in opening.changes], blocks


def packed(document: Any) -> bytes:
    """The bytes of a saved history with these contents: whole frames with right checksums."""
    head, changes, blocks = document
    framed = [frame(b"".join(orjson.dumps(line) + b"\n" for line in lines)) for lines in blocks]
    head = copy.deepcopy(head)
    if isinstance(head, dict) and isinstance(head.get("blocks"), dict):
        head["blocks"]["lengths"] = [len(block) for block in framed]
    opening = frame(orjson.dumps(head) + b"\n") + frame(b"".join(orjson.dumps(c) + b"\n" for c in changes))
    return b"".join((struct.pack("<IIIQ", 0x184D2A50, 12, FORMAT, len(opening)), opening, *framed))


def opened(data: bytes) -> None:
    """Open a saved history and read all of it; nothing but CorruptObject may come of it."""
    try:
        history = History.open(open_object("h", fetch := lambda at, length: data[at : at + length]), fetch)
        for ts in (history.start_ts, history.resolved_ts):
            for db in history.databases(ts):
                for table in history.tables(db.name, ts):
                    assert isinstance(table.name, str)
    except CorruptObject:
        return


SAVED = list(saved_document())
SAVED_PLACES = [path for path in paths(SAVED) if len(path) > 2 or (len(path) == 2 and path[0] != 2)]  # blocks are lists


def test_the_saved_document_is_read_as_it_was_written() -> None:
    history = History.load(packed(SAVED))
    assert len(history.tables("shop", KEY.ts)) == 3
    assert len(history.tables("shop", history.resolved_ts)) == 2


@settings(max_examples=400, deadline=None)
@given(path=st.sampled_from(SAVED_PLACES), value=st.sampled_from(VALUES))
def test_any_field_of_a_saved_history_is_used_or_refused(path: Path, value: Any) -> None:
    opened(packed(changed(SAVED, path, value)))


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200), head=st.binary(max_size=60))
def test_any_bytes_are_no_saved_history(data: bytes, head: bytes) -> None:
    for tried in (data, struct.pack("<IIIQ", 0x184D2A50, 12, FORMAT, len(data)) + data):
        opened(tried)
    opening = frame(head) + frame(data)
    opened(struct.pack("<IIIQ", 0x184D2A50, 12, FORMAT, len(opening)) + opening)
