"""Compares a keyspace with the destination of its changefeed while the changefeed writes.

    source as of the checkpoint  ──┐
                                   ├─> keys that differ ──> each is asked for again, at later checkpoints
    a scan of the destination    ──┘                        until it is equal, or PATIENCE_S is over

A scan takes time, and the destination may already have later changes. So a key that differs counts only if it still
differs at every later look: what the log has at the changefeed's checkpoint then, against what the destination has. A
key that is written all the time is equal at some look, because a checkpoint never passes what is not written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa

from backup.core.compare import Comparison, Difference, compare
from tistream.clock import Clock
from tistream.errors import InvalidInput
from tistream.keyrange import KeyRange

LOOKED_AT_MAX = 10_000  #: keys that are looked at again
PATIENCE_S = 30.0
PAUSE_S = 0.5

SourceAt = Callable[[int, KeyRange], Iterator[pa.Table]]
"""The pairs of a range as of a timestamp, by key (schema PAIRS)."""


def verify_replica(
    source: SourceAt,
    destination: Callable[[KeyRange], Iterator[pa.Table]],
    checkpoint: Callable[[], int],
    wanted: KeyRange,
    *,
    clock: Clock,
    now_s: Callable[[], int],
    patience_s: float = PATIENCE_S,
) -> tuple[int, Comparison]:
    """(timestamp of the comparison, what it found). `destination` gives pairs by key (schema FOUND), `now_s` the Unix
    time there. InvalidInput when more than LOOKED_AT_MAX keys differ."""
    as_of = checkpoint()
    found = compare(source(as_of, wanted), destination(wanted), now_s=now_s, shown_max=LOOKED_AT_MAX + 1)
    left = found.differences
    if len(left) > LOOKED_AT_MAX:
        raise InvalidInput(f"More than {LOOKED_AT_MAX} keys differ; the first: 0x{left[0].key.hex()}.", ts=as_of)
    stop = threading.Event()
    until, seen = clock.monotonic() + patience_s, as_of
    while left and clock.monotonic() < until:
        clock.wait(stop, PAUSE_S)
        at = checkpoint()
        looked = [_look(source, destination, at, each, now_s) for each in left]
        left = [each for each in looked if each is not None]
        if at == seen and clock.monotonic() > until - patience_s / 2:
            break  # the changefeed does not move: nothing will change
        seen = max(seen, at)
    faults = {fault: sum(each.fault is fault for each in left) for fault in found.faults}
    return as_of, replace(found, differences=left, faults=faults)


def _look(
    source: SourceAt,
    destination: Callable[[KeyRange], Iterator[pa.Table]],
    at: int,
    known: Difference,
    now_s: Callable[[], int],
) -> Difference | None:
    """How the key differs now; None when it does not."""
    key = KeyRange(known.key, known.key + b"\0")
    again = compare(source(at, key), destination(key), now_s=now_s)
    return again.differences[0] if again.differences else None
