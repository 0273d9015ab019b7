"""Start positions in every form, and the two refusals."""

from __future__ import annotations

import pytest

from reading.position import check_start, parse_ts
from tistream import ts as tso
from tistream.errors import InvalidInput, TsExpired, TsOutOfRange

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
