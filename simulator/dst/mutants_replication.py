"""Mutants of changefeeds that the service writes: leases, attempts, checkpoints, lanes, and entries.

`tests/properties/test_replication.py` notices them too, and the two of DDL statements, which a keyspace does not have.
"""

from __future__ import annotations

import pyarrow as pa

from destinations.protocol import DestinationUnavailable, Plan
from replicator.core.lane import Finish
from replicator.lane_run import LaneRun
from simulator.dst.mutants import broken

_CORE = "replicator.core.lane:LaneCore"
_RUN = "replicator.lane_run:LaneRun"
_RECOVERY = "simulator.dst.recovery"
_CHECKED = "invariant(covers(ranges, range_),"
_PART = "KeyRange(start, end)"
_write = LaneRun._write


def _written_or_not(run: LaneRun, plan: Plan | None) -> Finish:
    try:
        return _write(run, plan)
    except DestinationUnavailable:
        return run.core.written()


def _every_row(keys: pa.ChunkedArray) -> pa.Array:
    return pa.array(range(len(keys)))


broken(
    "checkpoint-of-a-failed-batch (replication): the checkpoint moves although a request has failed",
    (f"{_RUN}._write", _written_or_not),
)
broken(
    "passed-without-letter (letters): the checkpoint passes a refused change that has no dead letter",
    (f"{_RUN}._keep", "self._letters.keep(", "(lambda letters, allowed: None)("),
)
broken(
    "attempted-too-late (replication): `attempted_ts` rises with the checkpoint, after the write",
    (
        f"{_RUN}._plan",
        "attempt_stretch(self._services.catalog, self.lane, wanted.upto, wanted.record, again=again)",
        "pass",
    ),
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
    ("replicator.worker:ReplicationWorker._look", "if released is not None and", "if False and"),
)
broken(
    "hold-ignored (replication): the log is given up above the checkpoint of a changefeed that holds it",
    ("tistream.catalog.log.retention:_lowest", "CHANGEFEEDS.lowest, ", ""),
)
broken(
    "continues-at-the-floor (replication): a changefeed that comes back too late continues where the log begins",
    (
        "replicator.stretch:LaneReader.read",
        "after = wanted.after or served.row.start_ts",
        "after = max(wanted.after, served.row.earliest_ts)",
    ),
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
    (f"{_RECOVERY}:cut_ranges", _PART, r'KeyRange(start if start == range_.start else start + b"\0", end)'),
    ("destinations.opening:cut_lanes", _CHECKED, "invariant(True,"),
    ("apiserver.control.changefeed_control:cut_lanes", _CHECKED, "invariant(True,"),
)
broken(
    "lanes-that-overlap (replication): the key at the border of two lanes is in both",
    (f"{_RECOVERY}:cut_ranges", _PART, r'KeyRange(start, end if end == range_.end else end + b"\0")'),
    ("destinations.opening:cut_lanes", _CHECKED, "invariant(True,"),
    ("apiserver.control.changefeed_control:cut_lanes", _CHECKED, "invariant(True,"),
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
    ("destinations.tikv.core.writes:newest_rows", _every_row),
)
broken(
    "ttl-by-the-host (replication): what remains of an entry is computed by the clock of the worker's host",
    (f"{_RECOVERY}:SimRecovery.write", "self.cluster.ask_time()", "self.clock.unix_ms()"),
)
broken(
    "expired-for-ever (replication): an expired entry is written with a TTL of 0",
    ("tistream.tikv.core.raw_messages:remaining", "np.uint64(0)), expired", "np.uint64(0)), expired & False"),
)
broken(
    "retried-before-deadline (replication): a request without a reply is sent again while it may still be applied",
    (f"{_RECOVERY}:SimRecovery._send", "s.sleep(max(0.0, request.deadline_s - s.now))", "pass"),
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
