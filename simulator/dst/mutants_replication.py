"""Mutants of changefeeds that the service writes: leases, attempts, checkpoints, lanes, and entries.

`tests/properties/test_replication.py` notices them too, and the two of DDL statements, which a keyspace does not have.
"""

from __future__ import annotations

from destinations.protocol import DestinationUnavailable, Plan, Stretch
from replicator.lane_run import LaneRun
from simulator.dst.mutants import broken
from simulator.dst.recovery import Entry, entry_of

_CORE = "replicator.core.lane:LaneCore"
_RUN = "replicator.lane_run:LaneRun"
_RECOVERY = "simulator.dst.recovery"
_CHECKED = "invariant(covers(ranges, wanted),"
_PAIRS = "zip([wanted.start, *cuts], [*cuts, wanted.end], strict=True)"
_write = LaneRun._write


def _written_or_not(run: LaneRun, plan: Plan) -> None:
    try:
        _write(run, plan)
    except DestinationUnavailable:
        run.core.written()


def _every_version(stretch: Stretch) -> list[Entry]:
    return [entry_of(row) for row in stretch.rows.to_pylist()]


broken(
    "checkpoint-of-a-failed-batch (replication): the checkpoint moves although a request has failed",
    (f"{_RUN}._write", _written_or_not),
)
broken(
    "attempted-too-late (replication): `attempted_ts` rises with the checkpoint, after the write",
    (f"{_RUN}._plan", "attempt_stretch(self._services.catalog, self.lane, wanted.upto, wanted.record)", "pass"),
)
broken(
    "attempt-not-repeated (replication): a failed stretch is tried again as far as is served by then, or less",
    (f"{_CORE}.next", "if self._record_ts:", "if self._record:"),
)
broken(
    "lane-lease-ignored (replication): an owner writes although its lease has ended",
    (f"{_CORE}.allowed_s", "self._until_s - now_s", "self._lease_s"),
)
broken(
    "owner-before-ignored (replication): a new owner does not wait until the one before can no longer write",
    (f"{_CORE}.waits", lambda self, now_s: False),
)
broken(
    "given-up-for-others (replication): an owner that gives a lane up lets the next one ignore those before",
    (
        "replicator.worker:give_up_lane",
        "conn.execute(_GIVE_UP, _mine(lane)).rowcount != 1 and not waited",
        "conn.execute(_GIVE_UP, _mine(lane))",
    ),
)
broken(
    "written-after-giving-up (replication): an owner that does not know whether it has given a lane up writes on",
    ("replicator.worker:ReplicationWorker._look", "if left is not None and", "if False and"),
)
broken(
    "rebalanced-ahead (replication): a new lane starts at the largest checkpoint that it covers",
    (
        "tistream.catalog.work.lanes:inherited",
        "return min(lane.checkpoint_ts for",
        "return max(lane.checkpoint_ts for",
    ),
)
broken(
    "lanes-with-a-hole (replication): the key at the border of two lanes is in neither",
    (
        f"{_RECOVERY}:SimRecovery.ranges",
        _PAIRS,
        _PAIRS.replace("[wanted.start, *cuts]", r'[wanted.start, *(cut + b"\0" for cut in cuts)]'),
    ),
    ("simulator.dst.replication:cut_lanes", _CHECKED, "invariant(True,"),
)
broken(
    "lanes-that-overlap (replication): the key at the border of two lanes is in both",
    (
        f"{_RECOVERY}:SimRecovery.ranges",
        _PAIRS,
        _PAIRS.replace("[*cuts, wanted.end]", r'[*(cut + b"\0" for cut in cuts), wanted.end]'),
    ),
    ("simulator.dst.replication:cut_lanes", _CHECKED, "invariant(True,"),
)
broken(
    "refused-key-in-two-lanes (replication): the lane of a refused key still has the key",
    (
        "tistream.catalog.work.core.lane_scope:KeyScope.isolate",
        "return replace(self, without=(*self.without, alone)),",
        "return self,",
    ),
)
broken(
    "versions-at-once (replication): two versions of a key are under way at the same time",
    (f"{_RECOVERY}:entries_of", _every_version),
)
broken(
    "ttl-by-the-host (replication): what remains of an entry is computed by the clock of the worker's host",
    (f"{_RECOVERY}:SimRecovery.write", "self.cluster.ask_time()", "self.clock.unix_ms()"),
)
broken(
    "expired-for-ever (replication): an entry of which nothing remains is written with a TTL of 0",
    (
        f"{_RECOVERY}:write_of",
        "return Write(entry=entry, value=None, ttl_s=0)",
        "return Write(entry=entry, value=entry.value, ttl_s=0)",
    ),
)
broken(
    "lanes-pass-statements (replication): a lane passes a DDL statement before the others are there",
    ("replicator.core.lane:Barriers.end_of", lambda self, checkpoint_ts: None),
)
broken(
    "statement-twice (replication): a DDL statement at which a stretch ends is in the next one as well",
    (
        "replicator.stretch:LaneReader.read",
        "history.events(max(after, history.start_ts), at)",
        "history.events(max(after - 1, history.start_ts), at)",
    ),
)
