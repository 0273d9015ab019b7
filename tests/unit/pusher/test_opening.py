"""Contradicting prewrites of an opening scan: examples, and against a dict."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import given

from pusher.tikv.core.opening import OpeningPrewrites
from tistream.model.change import ROWS, Op, RowKind


def row(key: bytes = b"k", start_ts: int = 5, **said: Any) -> dict[str, Any]:
    plain = {"kind": RowKind.PREWRITE, "op": Op.PUT, "commit_ts": 0, "generation": 0, "value": b"v", "old_value": None}
    return {**plain, "expire_ts": 0, "flags": 0, "key": key, "start_ts": start_ts, **said}


def rows(*said: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(said), schema=ROWS)


def test_other_contents_of_one_lock() -> None:
    for other in ({"value": b"w"}, {"op": Op.DELETE, "value": None}, {"old_value": b"o"}, {"generation": 2}):
        seen = OpeningPrewrites()
        assert not seen.contradicts(rows(row()))
        assert seen.contradicts(rows(row(key=b"other"), row(**other)))


def test_within_one_event() -> None:
    assert OpeningPrewrites().contradicts(rows(row(), row(key=b"a"), row(value=b"w")))


def test_what_is_harmless() -> None:
    seen = OpeningPrewrites()
    assert not seen.contradicts(rows(row(), row()))
    assert not seen.contradicts(rows(row(start_ts=6, value=b"w"), row(key=b"l", value=b"w")))
    assert not seen.contradicts(rows(row(value=b"")))
    assert not seen.contradicts(rows(row(kind=RowKind.COMMITTED, commit_ts=9, value=b"w")))
    assert not seen.contradicts(rows(row(kind=RowKind.ROLLBACK, op=Op.NONE, value=None)))
    assert not seen.contradicts(rows())


events = st.lists(
    st.lists(
        st.builds(
            row, key=st.sampled_from([b"a", b"b"]), start_ts=st.integers(1, 40), value=st.sampled_from([b"", b"v"])
        ),
        max_size=6,
    ),
    max_size=12,
)


@given(events, st.data())
def test_as_a_dict_would(said: list[list[dict[str, Any]]], data: st.DataObject) -> None:
    flat = [r for event in said for r in event]
    altered: bool = data.draw(st.booleans()) if flat else False
    if altered:
        data.draw(st.sampled_from(flat))["value"] = b"w"
    first_values: dict[tuple[bytes, int], bytes] = {}
    seen = OpeningPrewrites()
    for event in said:
        expected = any(
            r["value"] and first_values.setdefault((r["key"], r["start_ts"]), r["value"]) != r["value"] for r in event
        )
        assert seen.contradicts(rows(*event)) == expected
        if expected:
            break
