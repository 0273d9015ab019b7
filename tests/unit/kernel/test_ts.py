"""Timestamps of the oracle, against values whose UTC time the upstream's documentation shows."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tistream import ts

SHOWN = [
    (443852055297916932, "2023-08-27T18:33:41.687Z", 4),
    (429756372254195712, "2021-12-13T10:14:18.123Z", 0),
    (450456244814610433, "2024-06-14T08:36:45.378Z", 1),
    (467996279696261139, "2026-07-28T18:42:08.480Z", 19),
    (445644800000000005, "2023-11-14T22:13:20.000Z", 5),
]


@pytest.mark.parametrize(("tso", "text", "logical"), SHOWN)
def test_a_tso_is_utc_milliseconds_and_a_counter(tso: int, text: str, logical: int) -> None:
    assert ts.to_text(tso) == text
    assert ts.to_datetime(tso) == datetime.fromisoformat(text)
    assert ts.to_datetime(tso).tzinfo is UTC
    assert ts.logical(tso) == logical
    assert ts.compose(ts.physical_ms(tso), logical) == tso


def test_the_ends_of_the_scale() -> None:
    assert ts.compose(1_700_000_000_000, 5) == 445644800000000005
    assert ts.compose(2**46 - 1, 2**18 - 1) == ts.TS_MAX == 2**64 - 1
    assert ts.logical(ts.TS_MAX) == 262143
    assert ts.to_text(0) == "1970-01-01T00:00:00.000Z"


def test_the_year_10000_is_refused() -> None:
    with pytest.raises(ValueError):
        ts.to_text(ts.compose(253_402_300_800_000))
