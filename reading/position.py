"""Where a pull starts: TSO, RFC 3339 time, `earliest`, `latest` or a span back from now such as `-15m`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from tistream import ts as tso
from tistream.catalog.log.retention import expired
from tistream.errors import InvalidInput, TsOutOfRange

_SPAN = re.compile(r"-(\d{1,18})(ms|s|m|h|d)", re.ASCII)
_SPAN_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER_MAX = (1 << 63) - 1
FORMS = "a TSO, an RFC 3339 time, 'earliest', 'latest', or a span such as '-15m'"


def parse_ts(text: str, *, earliest: int, latest: int, now_ms: int) -> int:
    """The TSO that `text` names. InvalidInput when it names none.

    `earliest` and `latest` are what those words stand for; `now_ms` is Unix milliseconds, for spans. A time outside of
    what a TSO of 63 bits holds (1970 to 3084) is the nearest such TSO.
    """
    word = text.strip()
    if word == "earliest":
        return earliest
    if word == "latest":
        return latest
    if word.isascii() and word.isdecimal():
        value = int(word) if len(word) <= len(str(_NUMBER_MAX)) else _NUMBER_MAX + 1
        if value > _NUMBER_MAX:
            raise InvalidInput(f"{word[:80]} is not a timestamp: it has more than 63 bits.")
        return value
    if m := _SPAN.fullmatch(word):
        return tso.compose(max(0, now_ms - int(m[1]) * _SPAN_MS[m[2]]))
    try:
        when = datetime.fromisoformat(word)
    except ValueError as e:
        raise InvalidInput(f"'{word[:80]}' is not a timestamp: give {FORMS}.") from e
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return min(max(0, tso.compose((when - _EPOCH) // timedelta(milliseconds=1))), _NUMBER_MAX)


def check_start(start_ts: int, *, earliest: int, resolved_ts: int, now_ms: int) -> None:
    """Refuse a start below what the log holds, or in the future. Both name the timestamps to use instead."""
    if start_ts < earliest:
        raise expired(start_ts, earliest)
    newest = max(resolved_ts, tso.compose(now_ms + 1))
    if start_ts > newest:
        raise TsOutOfRange(
            f"{start_ts} ({tso.to_text(start_ts) if start_ts < 1 << 62 else 'far'}) lies in the future.",
            latest_ts=str(resolved_ts),
        )
