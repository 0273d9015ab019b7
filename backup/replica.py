"""Compares a keyspace with the destination of its changefeed while both are written.

    source as of the checkpoint  ──┐
                                   ├─> keys that differ ──> those that show a later version of the log are right
    a scan of the destination    ──┘

A changefeed promises that a key shows a version no older than its newest at the checkpoint. The scan ends later than
the checkpoint, so a key may show any version above it, up to what the lanes had attempted by then. A key of a lane that
is catching up may show an older one. So what is left is looked at once more, key by key, after the checkpoint has
passed what was attempted.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from backup.core.compare import Comparison, Difference, Fault, compare, value_hash
from tistream.clock import Clock
from tistream.errors import InvalidInput
from tistream.keyrange import KeyRange

DIFFERENCES_MAX = 100_000
LOOKED_AT_MAX = 1_000  #: keys that are looked at once more
PATIENCE_S = 30.0
PAUSE_S = 0.5
_EXPIRY_TOLERANCE_S = 2

#: writes in the log; a null value is a deletion, `expire_ts` is in Unix seconds, 0 or null = never
VERSIONS = pa.schema([pa.field("key", pa.binary()), pa.field("value", pa.binary()), pa.field("expire_ts", pa.uint64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """What is compared."""

    source: Callable[[int, KeyRange], Iterator[pa.Table]]  #: pairs as of a timestamp, by key (schema PAIRS)
    versions: Callable[[int, int, KeyRange], Iterator[pa.Table]]  #: writes above one, up to another (schema VERSIONS)
    destination: Callable[[KeyRange], Iterator[pa.Table]]  #: pairs by key (schema FOUND)
    bounds: Callable[[], tuple[int, int]]  #: the changefeed's checkpoint_ts, and the highest attempted_ts of its lanes
    now_s: Callable[[], int]  #: Unix time at the destination


def verify_replica(
    sides: Sides, range_: KeyRange, *, clock: Clock, patience_s: float = PATIENCE_S
) -> tuple[int, Comparison]:
    """(timestamp of the comparison, what it found). InvalidInput when more than DIFFERENCES_MAX keys differ."""
    as_of, _ = sides.bounds()
    scanned = sides.source(as_of, range_), sides.destination(range_)
    comparison = compare(*scanned, now_s=sides.now_s, shown_max=DIFFERENCES_MAX + 1)
    left = _wrong(sides, as_of, comparison.differences)
    if len(left) > DIFFERENCES_MAX:
        raise InvalidInput(f"More than {DIFFERENCES_MAX} keys differ; the first: 0x{left[0].key.hex()}.", ts=as_of)
    if 0 < len(left) <= LOOKED_AT_MAX:
        _await_passed(sides, clock, patience_s)
        left = [again for each in left for again in _look(sides, each)]
    counts = Counter(each.fault for each in left)
    return as_of, replace(comparison, differences=left, faults={fault: counts[fault] for fault in Fault})


def _wrong(sides: Sides, as_of: int, differences: Sequence[Difference]) -> list[Difference]:
    """The keys that show no later version either."""
    _, attempted_ts = sides.bounds()
    left = {each.key: each for each in differences}
    if left and attempted_ts > as_of:
        keys, ended_s = pa.array(left, pa.binary()), sides.now_s() + _EXPIRY_TOLERANCE_S
        for written in sides.versions(as_of, attempted_ts, KeyRange(min(left), max(left) + b"\0")):
            rows = written.filter(pc.is_in(written["key"], keys))
            for key, value, expire_ts in zip(*(rows[name].to_pylist() for name in VERSIONS.names), strict=True):
                ended = 0 < (expire_ts or 0) <= ended_s
                if key in left and left[key].destination in (value_hash(value), *((None,) if ended else ())):
                    del left[key]
    return list(left.values())


def _await_passed(sides: Sides, clock: Clock, patience_s: float) -> None:
    """Until the checkpoint has passed what is attempted now, if it does within `patience_s`."""
    stop, until = threading.Event(), clock.monotonic() + patience_s
    _, attempted_ts = sides.bounds()
    while sides.bounds()[0] < attempted_ts and clock.monotonic() < until:
        clock.wait(stop, PAUSE_S)


def _look(sides: Sides, known: Difference) -> list[Difference]:
    """The difference of a key as it is now, if there is one."""
    as_of, _ = sides.bounds()
    key = KeyRange(known.key, known.key + b"\0")
    again = compare(sides.source(as_of, key), sides.destination(key), now_s=sides.now_s)
    return _wrong(sides, as_of, again.differences)
