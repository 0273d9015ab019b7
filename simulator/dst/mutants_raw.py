"""Mutants of RawKV: timestamps of stores, resolved timestamps, and what a row of the log has of a write."""

from __future__ import annotations

from simulator.dst.mutants import broken

broken(
    "cache-kept-on-transfer (rawkv): a store that gets a leader keeps its cached timestamps",
    ("simulator.core.causal:TsoCache.led_elsewhere", lambda self, region_max_ts: None),
)
broken(
    "clock-kept-on-transfer (rawkv): a store that gets a leader does not advance its hybrid clock",
    ("simulator.core.causal:Hlc.led_elsewhere", lambda self, region_max_ts: None),
)
broken(
    "region-ts-dropped-on-merge (rawkv): a merged region has the Region-Max-TS of its right half",
    (
        "simulator.core.raw_writes:RawWrites.merge",
        "self._raise(target_id, self._max_ts.pop(source_id, 0))",
        "self._max_ts.pop(source_id, 0)",
    ),
)
broken(
    "region-ts-not-copied-on-split (rawkv): new regions of a split have no Region-Max-TS",
    ("simulator.core.raw_writes:RawWrites.split", "for part in parts:", "for part in parts[-1:]:"),
)
broken(
    "flights-not-resolved (rawkv): a resolved ts passes RawKV writes in flight",
    (
        "simulator.core.raw_writes:RawWrites.resolved",
        "min([now_ts, *(write.ts - 1 for write in flights or ())])",
        "now_ts",
    ),
)
broken(
    "delete-flag-lost (rawkv): a RawKV delete is taken for a put of nothing",
    (
        "simulator.push.model_source:raw_rows",
        "changed = {",
        'changed = {"op": pa.array(np.ones(rows.num_rows, np.uint8)), '
        '"value": pc.fill_null(rows.column("value"), pa.scalar(b"", pa.binary())),',
    ),
)
broken(
    "expiry-dropped (rawkv): a RawKV write loses its expiry",
    (
        "simulator.push.model_source:raw_rows",
        "changed = {",
        'changed = {"expire_ts": pa.array(np.zeros(rows.num_rows, np.uint64)),',
    ),
)
broken(
    "interval-not-recorded (rawkv): rows of an opening scan have no mark, as if nothing could be missing before them",
    ("simulator.push.model_source:raw_rows", "if scanned_from is not None:", "if False:"),
)
broken(
    "marked-once-ready (rawkv): rows that come with INITIALIZED have no mark",
    (
        "simulator.push.model_source:ModelSource._sent",
        "if subscription_id in self._opening else None",
        "if subscription_id in self._opening and not subscription.initialized else None",
    ),
)
