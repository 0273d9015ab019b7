"""Mutants of garbage collection in the log of a RawKV tenant, and of the floor that it follows."""

from __future__ import annotations

from simulator.dst.mutants import broken

broken(
    "newest-collected (floors): the newest version of a key goes if it has a value",
    ("compactor.task:ended", "before: Mask = gone &", "before: Mask = ~gone &"),
)
broken(
    "older-brought-back (floors): a deletion goes before older versions of its key are looked for",
    (
        "compactor.task:_merged",
        "_since(store, row)):\n        yield part.filter",
        '(t.filter(t["value"].is_valid()) for t in _since(store, row))):\n        yield part.filter',
    ),
)
broken(
    "expired-by-now (floors): an expiry counts by a time after that of the base",
    ("compactor.core.collection:expired", "tso.physical_ms(ts) // 1000", "tso.physical_ms(ts) // 1000 + 30"),
)
broken(
    "floor-above-the-base (floors): the floor of a tenant without tables does not stop at a base",
    ("simulator.dst.raw_floors:floor_of_keys", "return Floor(ts=ts, ", "return Floor(ts=at, "),
    (
        "tistream.catalog.log.retention:_can_begin",
        "return conn.execute(_BASE_OF_KEYS, parameters).first() is not None",
        "return True",
    ),
)
broken(
    "collected-above-the-floor (floors): a merge removes obsolete versions above the floor as well",
    ("compactor.core.collection:_at_or_below", "<= np.uint64(safe_ts)", "<= np.uint64(safe_ts + (1 << 31))"),
)
