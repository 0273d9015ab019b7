"""Keys as of a timestamp from a log whose opening scans dropped versions, against the histories that are possible.

The model has the true history of each key. A scan row (s, c) lets any versions of its key between s and c be missing. A
key's state at t is determined if no version that may be missing could change it: each such version is tried.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reading.kv.core.gaps import known_moments
from reading.kv.core.state import RangeState
from tests.kit.made_rows import log_row, log_table
from tistream.model import change

SECOND = 1000 << 18
LAST = 10  # of the model's moments
MOMENTS = range(1, LAST + 1)


@dataclass
class Key:
    """A key: its true history, and what the log has of it."""

    name: bytes
    unit: int
    truth: dict[int, tuple[bytes | None, int]]  #: timestamp -> (value, expire_ts)
    scans: dict[int, int] = field(default_factory=dict)  #: commit_ts -> start_ts
    lost: set[int] = field(default_factory=set)

    @property
    def log(self) -> dict[int, tuple[bytes | None, int]]:
        return {ts: version for ts, version in self.truth.items() if ts not in self.lost}

    def may_be_missing(self, ts: int) -> bool:
        return ts not in self.log and any(s < ts < c for c, s in self.scans.items())

    def is_determined(self, t: int) -> bool:
        newest = max((ts for ts in self.log if ts <= t), default=0)
        return not any(newest < ts <= t and self.may_be_missing(ts) for ts in moments(self.unit))

    def rows(self) -> list[dict[str, Any]]:
        logged = []
        for ts, (value, expire_ts) in self.log.items():
            flags = change.FLAG_OLD_VALUE_UNKNOWN | change.FLAG_SCANNED * (ts in self.scans)
            op = change.Op.DELETE if value is None else change.Op.PUT
            times = {"start_ts": self.scans.get(ts, ts), "expire_ts": expire_ts}
            logged.append(log_row(0, ts, self.name, op=op, value=value, flags=flags, **times))
        return logged


def moments(unit: int) -> list[int]:
    return sorted({n * unit + near for n in range(LAST + 2) for near in (-1, 0, 1)})


def shown_at(versions: dict[int, tuple[bytes | None, int]], t: int) -> tuple[bytes, int, int] | None:
    """(value, commit_ts, expire_ts) that a reader at t sees."""
    newest = max((ts for ts in versions if ts <= t), default=None)
    if newest is None:
        return None
    value, expire_ts = versions[newest]
    if value is None or (expire_ts != 0 and expire_ts * SECOND <= t // SECOND * SECOND):
        return None
    return value, newest, expire_ts


@st.composite
def keys(draw: st.DrawFn) -> list[Key]:
    unit = draw(st.sampled_from([1, SECOND]))
    values = st.one_of(st.none(), st.sampled_from([b"", b"v", b"w"]))
    drawn = []
    for n in range(draw(st.integers(1, 4))):
        versions = st.tuples(values, st.sampled_from([0, 0, 2, 5, 8, 99]))
        truth = {ts * unit: v for ts, v in draw(st.dictionaries(st.sampled_from(MOMENTS), versions)).items()}
        key = Key(b"k%d" % n, unit, truth)
        for ts in sorted(truth):
            if draw(st.booleans()):
                key.scans[ts] = draw(st.integers(0, ts // unit - 1)) * unit
        for ts in truth:
            if ts not in key.scans and key.scans and any(s < ts < c for c, s in key.scans.items()):
                key.lost |= {ts} if draw(st.booleans()) else set()
        drawn.append(key)
    return drawn


def table_of(keys_drawn: list[Key]) -> pa.Table:
    return log_table(*(row for key in keys_drawn for row in key.rows()))


def state_of(rows: pa.Table, t: int, order: list[int], limit: int) -> tuple[list[dict[str, Any]], list[bytes]]:
    """(all entries page by page, unknown keys), the rows added in this order in parts of three."""
    known_rows: list[dict[str, Any]] = []
    unknown: list[bytes] | None = None
    after = b""
    while True:
        state = RangeState(t, limit=limit, size=1 << 20)
        shuffled = rows.take(pa.array(order, pa.int64()))
        above = shuffled.filter(pa.array([key > after for key in shuffled["key"].to_pylist()], pa.bool_()))
        for at in range(0, above.num_rows, 3):
            state.add(above.slice(at, 3))
            if at % 2:
                state.entries()
        entries = state.entries()
        known_rows += entries.to_pylist()
        unknown = state.unknown_keys().to_pylist() if unknown is None else unknown
        if state.last_key is None:
            return known_rows, unknown
        assert entries.num_rows <= limit
        after = state.last_key


@settings(max_examples=150)
@given(drawn=keys(), data=st.data())
def test_what_is_called_known_is_true_and_the_rest_is_not_determined(drawn: list[Key], data: st.DataObject) -> None:
    rows = table_of(drawn)
    order = data.draw(st.permutations(range(rows.num_rows)))
    limit = data.draw(st.integers(1, 5))
    t = data.draw(st.sampled_from(moments(drawn[0].unit)[3:]))
    entries_found, unknown = state_of(rows, t, order, limit)
    assert unknown == [key.name for key in drawn if not key.is_determined(t)]
    entries = {entry["key"]: entry for entry in entries_found}
    assert list(entries) == sorted(entries)
    assert len(entries) == len(entries_found)
    assert not [entry for entry in entries_found if entry["known"] and entry["value"] is None]
    for key in drawn:
        entry = entries.get(key.name)
        shown = (
            None
            if entry is None or entry["value"] is None
            else (entry["value"], entry["commit_ts"], entry["expire_ts"])
        )
        assert shown == shown_at(key.log, t)
        assert (entry is not None and not entry["known"]) == (key.name in unknown)
        if key.name not in unknown:
            assert shown == shown_at(key.truth, t)


@settings(max_examples=150)
@given(drawn=keys(), data=st.data())
def test_the_nearest_known_moments_hold_for_all_keys(drawn: list[Key], data: st.DataObject) -> None:
    times = moments(drawn[0].unit)
    t = data.draw(st.sampled_from(times[3:]))
    earliest = data.draw(st.sampled_from([1, times[6]]))
    determined = [ts for ts in times if all(key.is_determined(ts) for key in drawn)]
    moments_found = known_moments(table_of(drawn), t, earliest=earliest)
    if t in determined:
        assert (moments_found.before, moments_found.after) == (t, t)
        return
    before = max((ts for ts in determined if ts < t), default=0)
    assert moments_found.before == (before if before >= earliest else None)
    assert moments_found.after == min((ts for ts in determined if ts > t), default=None)


def state(*rows: dict[str, Any], t: int) -> tuple[list[dict[str, object]], list[bytes]]:
    plain = {"flags": change.FLAG_OLD_VALUE_UNKNOWN}
    table = log_table(*(log_row(0, **{"start_ts": row["commit_ts"], **plain, **row}) for row in rows))
    return state_of(table, t, list(range(table.num_rows)), 10)


def test_a_flagged_row_further_up_leaves_a_key_unknown() -> None:
    """The row between came late from a store: those before it were below the watermark, and dropped."""
    rows: tuple[dict[str, Any], ...] = (
        {"commit_ts": 10, "value": b"old"},
        {"commit_ts": 50, "value": b"live"},
        {"commit_ts": 80, "value": b"new", "start_ts": 10, "flags": change.FLAG_SCANNED},
    )
    assert state(*rows, t=40)[1] == [b"k"]
    assert state(*rows, t=50)[1] == state(*rows, t=10)[1] == state(*rows, t=80)[1] == []


@pytest.mark.parametrize(("seconds", "shown"), [(0, True), (1, False), (9, False)])
def test_an_entry_expires_by_the_clock_of_the_read(seconds: int, shown: bool) -> None:
    at = 1_700_000_000 * SECOND
    entries, _ = state({"commit_ts": at, "value": b"v", "expire_ts": 1_700_000_001}, t=at + seconds * SECOND)
    assert [entry["expire_ts"] for entry in entries] == [1_700_000_001] * shown


def test_a_page_ends_at_its_bytes() -> None:
    drawn = [Key(b"k%d" % n, 1, {1: (b"x" * 100, 0)}) for n in range(5)]
    page = RangeState(5, limit=100, size=250)
    page.add(table_of(drawn))
    assert page.entries()["key"].to_pylist() == [b"k0", b"k1"]
    assert page.last_key == b"k1"
