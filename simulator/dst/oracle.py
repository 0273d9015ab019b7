"""The rules of a run, checked while it runs and once it has settled.

upstream commits    above everything that was served before                                    (P2)
every pull          its rows are the truth in (cursor, next cursor], once and in order         (P1, P3); nothing is
                    served that some task, of data or of DDL, has not written yet
every watermark     a slice rises exactly as far as the admission rule lets it, and never falls
every flush         at or below the watermark of the task; `durable_ts` never falls, frontier and W neither, and is
                    never further ahead of the database's clock than is allowed
every held file     is further ahead than that
every owner         one incarnation of one worker for each epoch of a task
every quarantine    nothing above its `good_ts` is served while it is undecided; see `contradictions`
every feed          file n + 1 right after file n; a look at it takes no time
every transaction   see `catalog_rules`
every deletion      of what is not needed: no live object, none without a tombstone, no file above reclaimed_seq
at rest             all is served, no task stopped, nothing missing, nothing left over
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pyarrow as pa

from dispatcher.subscription import Subscription
from simulator.dst.catalog_rules import DELETED, CatalogRules
from simulator.dst.database import SimDatabase
from simulator.dst.mutants import replaced
from simulator.dst.scheduler import Process
from simulator.transactions import CommittedRow
from sorter.core.task_core import TaskCore
from sorter.core.watermark import RangeWatermarkMap
from sorter.worker.runner import TaskRunner
from tistream import ts as tso
from tistream.catalog.rows.tasks import TaskRow
from tistream.codec.table_key import SYSTEM_IDS_FROM
from tistream.errors import AheadOfTime
from tistream.feed.flight import FlightStream
from tistream.feed.protocol import FeedBatch, FeedRequest, NoBatch
from tistream.ids import Position
from tistream.keyrange import end_before
from tistream.objectstore.layout import BaseKey, BatchKey, CommittedKey, CompactedKey, SnapshotKey, parse
from tistream.runtime.service_time import ServiceTime

COLUMNS = ("commit_ts", "start_ts", "key", "op", "value", "old_value")  #: of a page, as in the truth
_VIOLATIONS_MAX = 5
_LATE_MS = 1500  # a read of the database's clock may take this long
LOWEST = "SELECT min(durable_ts) FROM tasks WHERE tenant_id = 1"  #: of the tenant that is pulled
JUDGED_FOLDER = "/tenant-1/"


class Oracle:
    """Collects violations; `committed` is the upstream's truth, growing."""

    def __init__(
        self,
        committed: Sequence[CommittedRow],
        database: SimDatabase,
        tell: Callable[[str], None],
        shows: Callable[[CommittedRow], bool] = lambda row: True,
    ) -> None:
        """`shows`: whether a committed row is a change of some table, and not a copy."""
        self.committed, self.database, self.tell, self._shows = committed, database, tell, shows
        self.violations: list[str] = []
        self.rules = CatalogRules(database, {}, self.violated)
        self.skew_ms = 0
        self.served_max = 0
        self.pulls = self.rows = 0
        self._below = 0  # true rows at or below the served timestamp
        self._given_up: set[str] = set()  # objects that a restored catalog began without
        self._durable_timestamps: dict[int, int] = {}
        self._frontier = 0
        self._promises: dict[int, _Promises] = {}
        self._owners: dict[tuple[int, int], Process | None] = {}  # (task, epoch) -> who acts under it

    def violated(self, what: str) -> None:
        """Something that must hold does not."""
        if len(self.violations) < _VIOLATIONS_MAX and what not in self.violations:
            self.violations.append(what)
            self.tell(f"VIOLATION: {what}")

    def restored(self, database: SimDatabase) -> None:
        """A catalog that was restored counts from now on. Its state may be older; what readers were given stays."""
        self.database = database
        query = "SELECT object_key FROM objects WHERE state <> 'live'"
        self._given_up = {key for (key,) in database.query(query)}
        self._durable_timestamps.clear()
        self._frontier = 0
        self.rules.begin_anew(database)

    def upstream_moved(self) -> None:
        """After an upstream action: nothing that it committed is at or below what had been served."""
        served = bisect_right(self.committed, self.served_max, key=_commit_ts)
        if served > self._below:
            newest = self.committed[served - 1]
            self.violated(
                f"final: {served - self._below} rows up to {_show(newest)} after {self.served_max} was served"
            )
        self._below = served

    def truth(self, after: int, upto: int) -> list[CommittedRow]:
        """The rows in (after, upto], in the order of a pull."""
        lo = bisect_right(self.committed, after, key=_commit_ts)
        hi = bisect_right(self.committed, upto, key=_commit_ts)
        return [row for row in self.committed[lo:hi] if _delivered(row.key) and self._shows(row)]

    def pulled(self, who: str, rows: pa.Table, after: int, upto: int, resolved: int, seen: int, lowest: int) -> None:
        """A pull has delivered (after, upto] and reported `resolved`. `seen` is the largest that any reader had been
        given when this pull began: concurrent pulls may end in any order. `lowest`: up to where each task has
        written."""
        if resolved > lowest:
            self.violated(f"served: {who} got {resolved}, but a task has written only up to {lowest}")
        if resolved < seen and who.startswith("final"):
            self.violated(f"served: {resolved} after {seen}")
        self.served(max(resolved, upto), rows.num_rows)
        pulled_rows = list(zip(*(rows.column(name).to_pylist() for name in COLUMNS), strict=True))
        got = [CommittedRow(*row) for row in pulled_rows]
        commit_ts = [row.commit_ts for row in got]
        if commit_ts != sorted(commit_ts):
            self.violated(f"order: {who} got {commit_ts}")
        want = self.truth(after, upto)
        if sorted(got) != want:
            missing = [_show(r) for r in want if r not in got]
            extra = [_show(r) for r in got if r not in want]
            twice = sorted({_show(r) for r in got if got.count(r) > 1})
            self.violated(f"pull: {who} in ({after}, {upto}]: missing {missing} wrong {extra} twice {twice}")

    def served(self, upto: int, rows: int) -> None:
        """A reader was given `rows` rows, and that there is nothing new up to `upto`."""
        self.pulls += 1
        self.rows += rows
        self.served_max = max(self.served_max, upto)
        self._below = bisect_right(self.committed, self.served_max, key=_commit_ts)

    def good_ts(self) -> int | None:
        """The last timestamp known to be good, while a store is quarantined."""
        query = "SELECT min(good_ts) FROM quarantines WHERE tenant_id = 1 AND state = 'quarantined'"
        ((good_ts,),) = self.database.query(query)
        return None if good_ts is None else int(good_ts)

    def held(self, who: str, upto: int, good_ts: int | None) -> None:
        """A pull has given `upto`; `good_ts` as of when it began."""
        now = self.good_ts()
        if good_ts is not None and now is not None and upto > max(good_ts, now):
            self.violated(f"quarantine: {who} got {upto}, only {good_ts} is known to be good")

    def durable_ts_moved(self, task_id: int, old: int, new: int) -> None:
        """A transaction moved `durable_ts`."""
        if new < old or old != self._durable_timestamps.get(task_id, old):
            self.violated(
                f"durable_ts: task {task_id} went from {old} to {new}, "
                f"last seen {self._durable_timestamps.get(task_id)}"
            )
        if (ahead_ms := tso.physical_ms(new) - self.database.now_ms()) > self.skew_ms:
            self.violated(f"ahead: durable_ts of task {task_id} is {ahead_ms} ms ahead of the database's clock")
        self._durable_timestamps[task_id] = new
        ((frontier,),) = self.database.query(LOWEST)
        if frontier < self._frontier:
            self.violated(f"frontier: fell from {self._frontier} to {frontier}")
        self._frontier = frontier

    def deleting(self, key: str) -> None:
        """A DELETE of an existing object arrives."""
        match parse(key):
            case CommittedKey() | SnapshotKey() | CompactedKey() | BaseKey():
                if key in self._given_up:  # the deletion of a process of before may be on its way
                    return
                states = self.database.query("SELECT state FROM objects WHERE object_key = ?", key)
                if states != [("dead",)]:
                    self.violated(f"deleted: {key} while it was {states[0][0] if states else 'without a tombstone'}")
            case BatchKey(tenant=tenant, store_id=store_id, incarnation=incarnation, seq=seq):
                if (tenant.tenant_id,) in self.database.query(DELETED):
                    return
                incarnations = self.database.query(
                    "SELECT incarnation, reclaimed_seq FROM store_incarnations WHERE tenant_id = ? AND store_id = ?",
                    tenant.tenant_id,
                    store_id,
                )
                reclaimed = dict(incarnations).get(incarnation, 0)
                if seq > reclaimed and incarnation >= min(incarnations)[0]:  # older ones are gone, with all files
                    self.violated(f"deleted: {key} above reclaimed_seq {reclaimed}")

    def left_over(self, objects: dict[str, tuple[bytes, int]]) -> list[str]:
        """What is wrong once everything that is not needed must be gone."""
        return self.bijection(objects, leftovers=True)

    def bijection(self, objects: dict[str, tuple[bytes, int]], *, leftovers: bool) -> list[str]:
        """The differences between catalog and bucket. `leftovers`: also existing objects that nothing needs."""
        rows = dict(self.database.query("SELECT object_key, state FROM objects"))
        rows = {key: state for key, state in rows.items() if JUDGED_FOLDER in key}
        wrong = [f"missing object {key}" for key, state in rows.items() if state == "live" and key not in objects]
        if leftovers:
            for key in (key for key in objects if JUDGED_FOLDER in key):
                named = parse(key)
                if isinstance(named, BatchKey) or (
                    isinstance(named, CommittedKey | SnapshotKey | CompactedKey | BaseKey) and rows.get(key) != "live"
                ):
                    wrong.append(f"left over {key} ({rows.get(key)})")
        return wrong

    def loaded(self, task_id: int, epoch: int) -> None:
        """The running process has taken up a task under an epoch."""
        current = self.database.scheduler.current
        process = current.process if current is not None else None
        first = self._owners.setdefault((task_id, epoch), process)
        if first is not process:
            self.violated(f"owners: {first} and {process} both act for task {task_id} under epoch {epoch}")

    def delivered(self, request: FeedRequest, handed: dict[int, int], batch: FeedBatch) -> None:
        """A dispatcher gives out the next batch of a stream; `handed` is where the stream was."""
        was = handed.get(batch.incarnation, request.positions.get(batch.incarnation, Position(seq=0)).seq)
        if batch.seq != was + (not batch.closes):
            self.violated(
                f"gap: task {request.task_id} was given file {batch.incarnation}/{batch.seq} of store "
                f"{request.store_id} after {was}"
            )
        handed[batch.incarnation] = batch.seq

    def _at_once(self, look: Callable[[], FeedBatch | NoBatch]) -> FeedBatch | NoBatch:
        """A thread looks at one of its subscriptions: it must not wait meanwhile, because of the others."""
        s = self.database.scheduler
        assert s.current is not None
        process, began = s.current.process, s.now
        pauses = process.pauses
        try:
            return look()
        finally:
            if s.now != began and process.pauses == pauses:
                self.violated(f"look: {process} took {s.now - began:.2f} s to look at a subscription")

    @contextmanager
    def watching_cores(self) -> Iterator[None]:
        """Compare every watermark map with the rule itself, and every flush with its map."""
        apply, take, withdraw = RangeWatermarkMap.apply, TaskCore.take, RangeWatermarkMap.withdraw
        load, looks, held = TaskRunner.load, (Subscription.look, FlightStream.look), ServiceTime.ahead

        def watched(self_: RangeWatermarkMap, regions: Any, store_id: int, incarnation: int, seq: int) -> bool:
            known = self._promises.get(id(self_))
            if known is None:
                known = self._promises[id(self_)] = _Promises(self_, self_.start_ts)
            known.rows += _counting(regions)
            moved = apply(self_, regions, store_id, incarnation, seq)
            self._compare(known)
            return moved

        def withdrawn(self_: RangeWatermarkMap, store_id: int, incarnation: int, floor_ts: int) -> None:
            withdraw(self_, store_id, incarnation, floor_ts)
            known = self._promises[id(self_)] = _Promises(self_, int(self_._slots.floor))
            known.rows += [r for newest in self_._newest.values() for r in _counting(newest.regions)]

        def taken(self_: TaskCore, w: int) -> pa.Table:
            lowest = self_._watermarks.watermark()
            if lowest is None or w > lowest:
                self.violated(f"flush: task {self_.task_id} wrote up to {w}, its watermark is {lowest}")
            return take(self_, w)

        def loaded(row: TaskRow, catalog: Any, store: Any) -> TaskRunner:
            runner = load(row, catalog, store)
            self.loaded(row.task_id, row.epoch)
            watermarks = runner.core._watermarks
            self._promises[id(watermarks)] = _Promises(watermarks, row.durable_ts)
            return runner

        def ahead(self_: ServiceTime, ts: int, what: str, **facts: object) -> AheadOfTime | None:
            result = held(self_, ts, what, **facts)
            early_ms = self.database.now_ms() + self.skew_ms - tso.physical_ms(ts)
            if result is not None and early_ms > _LATE_MS and not self.rules.clock_jumps:
                self.violated(f"held: {result} although it has counted for {early_ms} ms")
            return result

        def served(self_: Subscription) -> FeedBatch | NoBatch:
            looked = self._at_once(partial(looks[0], self_))
            if isinstance(looked, FeedBatch):
                self.delivered(self_._request, handed.setdefault(self_, {}), looked)
            return looked

        def received(self_: FlightStream) -> FeedBatch | NoBatch:
            return self._at_once(partial(looks[1], self_))

        handed: dict[Subscription, dict[int, int]] = {}
        with ExitStack() as stack:
            for owner, name, instead in (
                (RangeWatermarkMap, "apply", watched),
                (RangeWatermarkMap, "withdraw", withdrawn),
                (TaskCore, "take", taken),
                (TaskRunner, "load", staticmethod(loaded)),
                (Subscription, "look", served),
                (FlightStream, "look", received),
                (ServiceTime, "ahead", ahead),
            ):
                stack.enter_context(replaced(owner, name, instead))
            stack.enter_context(self.rules.watching_flushes())
            stack.enter_context(self.rules.watching_leases())
            yield

    def _compare(self, known: _Promises) -> None:
        before, after, rows = known.steps, _steps(known.map), known.rows
        known.steps = after
        for at in sorted({key for key, _ in before} | {key for key, _ in after}):
            old, new = _at(before, at), _at(after, at)
            here = [r for r in rows if r["start_key"] <= at and end_before(at, r["end_key"])]
            want, last = old, -1
            while want != last:
                last = want
                want = max(
                    [want, *(r["resolved_ts"] for r in here if r["checkpoint_ts"] <= max(want, known.durable_ts))]
                )
            if new != want:
                name = "admission" if new > want else "watermark"
                self.violated(f"{name}: W({at.hex()}) changed from {old} to {new}, the rule gives {want}")
        lowest = min(w for _, w in after)
        rows[:] = [r for r in rows if r["resolved_ts"] > lowest]


class _Promises:
    """The last seen state of one map, and the watermark rows it was given that may still raise something; keeps the
    map, so that its id is not reused."""

    def __init__(self, map_: RangeWatermarkMap, durable_ts: int) -> None:
        self.map = map_
        self.durable_ts = (
            durable_ts  #: of the task when it was loaded: a subscription from at or below it omits nothing
        )
        self.steps = _steps(map_)
        self.rows: list[dict[str, Any]] = list(map_.snapshot()[1].to_pylist())


def _counting(regions: pa.RecordBatch) -> list[dict[str, Any]]:
    """The watermark rows of subscriptions that are ready."""
    return [r for r in regions.to_pylist() if r["subscription_ready_ts"] and r["resolved_ts"]]


def _steps(map_: RangeWatermarkMap) -> list[tuple[bytes, int]]:
    return [(where.start, map_.start_ts if w is None else w) for where, w in map_.slices()]


def _at(steps: list[tuple[bytes, int]], key: bytes) -> int:
    return [w for start, w in steps if start <= key][-1]


def _commit_ts(row: CommittedRow) -> int:
    return row.commit_ts


def _delivered(key: bytes) -> bool:
    """Whether a pull delivers rows of this key: records of user tables."""
    return key[:1] == b"t" and key[9:11] == b"_r" and int.from_bytes(key[1:9], "big") - (1 << 63) < SYSTEM_IDS_FROM


def _show(row: CommittedRow) -> str:
    if not _delivered(row.key):
        return str(row)
    table, handle = int.from_bytes(row.key[1:9], "big") & 0xFFFF, int.from_bytes(row.key[11:19], "big") & 0xFFFF
    return f"t{table}/r{handle} {row.start_ts}..{row.commit_ts} = {row.value!r} (was {row.old_value!r})"
