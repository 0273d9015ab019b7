"""What a page leaves, against a table that lives through the same transactions."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from tistream.client.upserts import upserts
from tistream.errors import InvalidInput

ROW = pa.struct([("id", pa.int64()), ("part", pa.string()), ("v", pa.int64())])
PAGE = pa.schema(
    [
        pa.field("_op", pa.dictionary(pa.int8(), pa.string()), False),
        pa.field("_commit_ts", pa.uint64(), False),
        pa.field("_start_ts", pa.uint64(), False),
        pa.field("_key", pa.binary(), False),
        pa.field("_table_id", pa.int64(), False),
        *ROW,
        pa.field("_old", ROW),
    ]
)
_RANK = {"delete": 0, "update": 1, "insert": 2}  # within a commit, then by key: the order of a page


def page(events: list[tuple[str, int, bytes, dict[str, Any] | None, dict[str, Any] | None]]) -> pa.Table:
    """(op, commit_ts, record key, row after, row before)."""
    rows = []
    for op, ts, key, after, before in sorted(events, key=lambda e: (e[1], _RANK[e[0]], e[2])):
        shown = before if op == "delete" else after
        assert shown is not None
        rows.append(
            {"_op": op, "_commit_ts": ts, "_start_ts": ts - 1, "_key": key, "_table_id": 1, **shown, "_old": before}
        )
    plain = pa.schema([PAGE.field(0).with_type(pa.string()), *list(PAGE)[1:]])
    return pa.Table.from_pylist(rows, schema=plain).cast(PAGE)


def lives(seed: int) -> tuple[dict[Any, Any], dict[Any, Any], list[Any]]:
    """A table with hidden record keys and a unique (id, part): before, after, and what happened between."""
    rand = random.Random(seed)
    state: dict[bytes, dict[str, Any]] = {}

    def free(rows: dict[bytes, dict[str, Any]]) -> dict[str, Any] | None:
        used = {(r["id"], r["part"]) for r in rows.values()}
        left = [(i, p) for i in range(4) for p in "ab" if (i, p) not in used]
        if not left:
            return None
        id_, part = rand.choice(left)
        return {"id": id_, "part": part, "v": rand.randrange(1000)}

    events: list[Any] = []
    begun: dict[bytes, dict[str, Any]] = {}
    for ts in range(100, 100 + rand.randrange(2, 14)):
        after = dict(state)
        for _ in range(rand.randrange(1, 7)):
            what, keys = rand.random(), list(after)
            if what < 0.4 and (row := free(after)):
                after[b"k%03d" % rand.randrange(1000)] = row
            elif what < 0.6 and keys:
                del after[rand.choice(keys)]
            elif what < 0.8 and len(keys) > 1:
                a, b = rand.sample(keys, 2)
                after[a], after[b] = {**after[b], "v": 1}, {**after[a], "v": 2}  # they swap their keys
            elif keys and (row := free(after)):
                after[rand.choice(keys)] = row
        for key in state.keys() | after.keys():
            old, new = state.get(key), after.get(key)
            if old != new:
                op = "insert" if old is None else "delete" if new is None else "update"
                events.append((op, ts, key, new, old))
        if ts == 103:
            begun = after
            events.clear()
        state = after
    return begun, state, events


@pytest.mark.parametrize("seed", range(150))
def test_a_merge_by_primary_key_is_the_table(seed: int) -> None:
    begun, ended, events = lives(seed)
    if not events:
        return
    change = upserts(page(events), ["id", "part"])
    merged = {(r["id"], r["part"]): r for r in begun.values()}
    written = [(r["id"], r["part"]) for r in change.rows.to_pylist()]
    deleted = [(r["id"], r["part"]) for r in change.gone.to_pylist()]
    assert len(set(written + deleted)) == len(written + deleted), "each key once"
    for key in deleted:
        merged.pop(key, None)
    merged.update({(r["id"], r["part"]): r for r in change.rows.to_pylist()})
    assert merged == {(r["id"], r["part"]): r for r in ended.values()}
    by_record = upserts(page(events), ["_key"])
    merged = dict(begun)
    for row in by_record.gone.to_pylist():
        merged.pop(row["_key"], None)
    merged.update({r["_key"]: {n: r[n] for n in ("id", "part", "v")} for r in by_record.rows.to_pylist()})
    assert merged == ended


def test_a_page_without_rows_leaves_nothing() -> None:
    change = upserts(PAGE.empty_table(), ["id"])
    assert (change.rows.num_rows, change.gone.num_rows) == (0, 0)
    assert change.rows.schema.names == ["id", "part", "v"]


def test_the_key_must_be_there() -> None:
    with pytest.raises(InvalidInput, match="no column nope"):
        upserts(PAGE.empty_table(), ["id", "nope"])
    with pytest.raises(InvalidInput):
        upserts(PAGE.empty_table(), [])


def test_a_key_may_be_a_set() -> None:
    """Arrow compares no lists; {a, b} and {b} are two keys, as are no label and the label of no characters."""
    kind = pa.struct([("id", pa.list_(pa.string())), ("v", pa.int64())])
    schema = pa.schema([*list(PAGE)[:5], *kind, pa.field("_old", kind)])
    rows = [
        ("insert", 1, ["a", "b"], 1, None),
        ("insert", 1, ["b"], 2, None),
        ("insert", 1, [], 3, None),
        ("insert", 1, [""], 4, None),
        ("update", 2, ["c"], 5, {"id": ["b"], "v": 2}),
        ("update", 3, ["a", "b"], 6, {"id": ["a", "b"], "v": 1}),
        ("delete", 4, [], 3, {"id": [], "v": 3}),
    ]
    plain = pa.schema([schema.field(0).with_type(pa.string()), *list(schema)[1:]])
    events = [
        {"_op": op, "_commit_ts": ts, "_start_ts": 0, "_key": b"k", "_table_id": 1, "id": id_, "v": v, "_old": old}
        for op, ts, id_, v, old in rows
    ]
    change = upserts(pa.Table.from_pylist(events, schema=plain).cast(schema), ["id"])
    assert change.rows.to_pylist() == [{"id": [""], "v": 4}, {"id": ["c"], "v": 5}, {"id": ["a", "b"], "v": 6}]
    assert change.gone.to_pylist() == [{"id": []}, {"id": ["b"]}]
