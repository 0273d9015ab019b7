"""Start positions in every form, and cursors: they round-trip, and refuse what they were not made for."""

from __future__ import annotations

import base64

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reading.pages import member_page
from reading.pages.request import PullAnswer
from reading.rows.scope import Scope
from reading.served import position
from reading.served.consumer_cursor import parse_consumer_cursor
from reading.served.position import check_start, parse_ts
from simulator.dst.all_mutants import MUTANTS
from tistream import ts as tso
from tistream.catalog.tenancy.core.consumer_group import Partition
from tistream.errors import CursorInvalid, InvalidInput, TsExpired, TsOutOfRange
from tistream.ids import Tenant

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", 100),
        ("latest", 900),
        ("443852055297916932", 443852055297916932),
        ("-15m", tso.compose(NOW_MS - 15 * 60 * 1000)),
        ("-2h", tso.compose(NOW_MS - 2 * 3600 * 1000)),
        ("-250ms", tso.compose(NOW_MS - 250)),
        ("2023-08-27T18:33:41.687Z", 443852055297916928),
        ("2023-08-27T20:33:41.687+02:00", 443852055297916928),
        ("2023-08-27 18:33:41.687", 443852055297916928),
    ],
)
def test_forms(text: str, expected: int) -> None:
    assert parse_ts(text, earliest=100, latest=900, now_ms=NOW_MS) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "-5y", "12.5", "-1", str(1 << 63), "١٢٣x"])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_ts(text, earliest=1, latest=2, now_ms=NOW_MS)


def test_below_the_log_names_the_earliest() -> None:
    with pytest.raises(TsExpired) as e:
        check_start(99, earliest=100, resolved_ts=900, now_ms=NOW_MS)
    assert e.value.facts["earliest_ts"] == "100"


def test_the_future_is_refused_and_now_is_not() -> None:
    now = tso.compose(NOW_MS)
    check_start(now, earliest=100, resolved_ts=900, now_ms=NOW_MS)
    check_start(now + 5, earliest=100, resolved_ts=now + 5, now_ms=0)
    with pytest.raises(TsOutOfRange):
        check_start(tso.compose(NOW_MS + 60_000), earliest=100, resolved_ts=900, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9999-12-31T23:59:59Z", (1 << 63) - 1),
        ("0001-01-01", 0),
        ("1969-12-31T23:59:59Z", 0),
        ("-999999999999999999d", 0),
    ],
)
def test_a_time_that_no_tso_holds_is_the_nearest_and_can_be_given_again(text: str, expected: int) -> None:
    assert parse_ts(text, earliest=1, latest=2, now_ms=3) == expected
    assert parse_ts(str(expected), earliest=1, latest=2, now_ms=3) == expected


@pytest.mark.parametrize("text", ["9" * 5000, "٣", "-٣m", f"-{'9' * 5000}m", str(1 << 63)])
def test_numbers_of_any_length_and_script_are_refused_as_such(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a timestamp"):
        parse_ts(text, earliest=1, latest=2, now_ms=3)


SCOPES = st.builds(
    Scope,
    tenant=st.builds(Tenant, st.integers(0, 1 << 40), st.integers(0, 1 << 40)),
    database=st.none() | st.text(min_size=1),
    table=st.none() | st.text(min_size=1),
)


@given(scope=SCOPES, ts=st.integers(0, (1 << 63) - 1))
def test_round_trip(scope: Scope, ts: int) -> None:
    text = position.encode_cursor(scope, ts)
    assert position.decode_cursor(text, scope) == ts
    assert text.replace("-", "").replace("_", "").isalnum()


@given(place=st.integers(0, 200), flip=st.integers(1, 255))
def test_damage_is_refused(place: int, flip: int) -> None:
    scope = Scope(tenant=Tenant(1, 2), database="shop")
    raw = bytearray(base64.urlsafe_b64decode(position.encode_cursor(scope, 77) + "=="))
    raw[place % len(raw)] ^= flip
    with pytest.raises(CursorInvalid):
        position.decode_cursor(base64.urlsafe_b64encode(bytes(raw)).decode().rstrip("="), scope)


@pytest.mark.parametrize("text", ["", "abc", "!!!", "MQ", "é", "A" * 300])
def test_foreign_text_is_refused(text: str) -> None:
    with pytest.raises(CursorInvalid):
        position.decode_cursor(text, Scope(tenant=Tenant(1, 1)))


def test_a_cursor_of_another_tenant_is_refused() -> None:
    text = position.encode_cursor(Scope(tenant=Tenant(1, 1)), 5)
    with pytest.raises(CursorInvalid, match="another scope"):
        position.decode_cursor(text, Scope(tenant=Tenant(1, 2)))
    with pytest.raises(CursorInvalid, match="another scope"):
        position.decode_cursor(text, Scope(tenant=Tenant(1, 1), database="shop"))


HELD = Partition(number=2, checkpoint_ts=10, member="a", epoch=7)
PAGE = PullAnswer(
    content=pa.py_buffer(b""),
    next_cursor="",
    resolved_ts=90,
    has_more=True,
    quarantined=0,
    waits=False,
    after=10,
    end=40,
)


def acknowledged() -> tuple[int, int, int]:
    text = member_page.member_cursor(Tenant(1, 2), "feed", HELD, PAGE).text()
    cursor = parse_consumer_cursor(text, Tenant(1, 2), "feed")
    return cursor.partition, cursor.epoch, cursor.ts


def test_an_acknowledgement_ends_where_its_page_ends() -> None:
    assert acknowledged() == (2, 7, 40)


def test_one_that_goes_beyond_the_page_is_noticed() -> None:
    with MUTANTS["acknowledged-beyond-page"].patch(), pytest.raises(AssertionError):
        test_an_acknowledgement_ends_where_its_page_ends()
