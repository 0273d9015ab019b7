"""The rules of every transaction, checked when it has committed, by comparing the rows before and after.

    epochs       a task's epoch never falls, and rises whenever its owner changes
    flushes      only an owner of the newest epoch advances `durable_ts`. New segments are in (old durable watermark,
                 new durable watermark] of their task, and written by the incarnation that owns it
    snapshots    only an owner of the newest epoch switches the pointer. Positions and referenced objects of a task are
                 always those of the snapshot that the pointer names
    objects      referenced objects are live, and no other snapshot object is live
    shapes       tasks that replace others: see `shape_rules`. A deleted tenant has none
    commits      each task has as many visible rows after a compaction commit as before it; fewer where a log has a
                 floor
    jobs         see `job_rules`
    consumers    see `member_rules`
    lanes        see `replication_rules`
    read leases  nothing is deleted that a live one may need, unless the database's clock jumps; a reader continues only
                 under a read lease that it renewed in time, or tried to renew

The rows must satisfy what the services' guards check, so a missing guard is noticed as soon as a transaction passes
that must not, even if it does no harm in the same run. A late transaction may land together with the next one of
another process: both show as one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from reading.log import read_leases
from simulator.dst.database import SimDatabase
from simulator.dst.job_rules import JobRules
from simulator.dst.mutants import replaced
from simulator.dst.scheduler import Process
from simulator.dst.shape_rules import Shape, wrong
from sorter.state.snapshot import objects_named_by
from sorter.worker import publisher
from tistream.catalog.log.committed import TaskAdvance
from tistream.codec.segment_file import SegmentFile
from tistream.keyrange import KeyRange
from tistream.objectstore.layout import CommittedKey, SnapshotKey, parse

_TASKS = (
    "SELECT task_id, owner, epoch, durable_ts, snapshot_key, start_key, end_key, kind, start_ts, resubscribe_id, "
    "tenant_id "
    "FROM tasks"
)
BEFORE = "past"  #: the writer of a log that was there when the run began
DELETED = "SELECT tenant_id FROM tenants WHERE state IN ('DELETING', 'DELETED')"
_LIVE_SNAPSHOTS = "SELECT object_key, tenant_id FROM objects WHERE kind = 'snapshot' AND state = 'live'"
_Positions = dict[tuple[int, int], tuple[int, bool]]  # (store, incarnation) -> (seq, closed)


@dataclass(frozen=True, slots=True)
class _Task:
    owner: str | None
    epoch: int
    durable_ts: int
    snapshot_key: str | None
    start_key: bytes
    end_key: bytes
    kind: str
    start_ts: int
    resubscribe_id: int
    tenant_id: int

    @property
    def shape(self) -> Shape:
        range_ = KeyRange(self.start_key, self.end_key)
        return Shape(range_, self.kind, self.start_ts, self.durable_ts, self.epoch, self.resubscribe_id)


class CatalogRules:
    """The rules of one run's catalog. `objects` is the bucket."""

    def __init__(
        self, database: SimDatabase, objects: Mapping[str, tuple[bytes, int]], violated: Callable[[str], None]
    ) -> None:
        self._objects, self._violated = objects, violated
        self.clock_jumps = False
        self.opened: Callable[[str, bytes], bytes] = lambda _, data: data  #: the content of an object
        self.more: list[Any] = []  #: rules of aspects, which look after these
        self._flushes: dict[Process, Sequence[TaskAdvance]] = {}  # under way
        self.jobs = JobRules(violated)
        self._know_nothing_of(database)

    def _know_nothing_of(self, database: SimDatabase) -> None:
        self._database = database
        self._tasks: dict[int, _Task] = {}
        self._positions: dict[int, _Positions] = {}
        self._refers: dict[int, set[str]] = {}
        self._pieces: set[tuple[int, str]] = set()  # (task, object) of the segments that were seen
        self._replacements = 0
        self._visible: dict[int, int] = {}  # task -> rows visible to readers
        self._deleted: set[int] = set()  # tasks that ended with their tenant
        self._superseded: dict[str, int] = {}  # object -> the replacement

    def begin_anew(self, database: SimDatabase) -> None:
        """The rules hold for another catalog from now on, from the state in which it is."""
        self._know_nothing_of(database)
        violated, self._violated = self._violated, lambda _: None
        by_lease, self.jobs = self.jobs.by_lease, JobRules(violated)
        self.jobs.by_lease = by_lease
        self.look()
        self._violated = violated

    @contextmanager
    def watching_flushes(self) -> Iterator[None]:
        """Record the owner of each flush."""
        commit_flush: Callable[..., frozenset[int]] = vars(publisher)["commit_flush"]

        def watched(*args: Any, advances: Sequence[TaskAdvance], **named: Any) -> frozenset[int]:
            task = self._database.scheduler.current
            if task is None:
                return commit_flush(*args, advances=advances, **named)
            self._flushes[task.process] = advances
            try:
                return commit_flush(*args, advances=advances, **named)
            finally:
                del self._flushes[task.process]

        with replaced(publisher, "commit_flush", watched):
            yield

    @contextmanager
    def watching_leases(self) -> Iterator[None]:
        """Check that readers renew in time. A reader that cannot reach the catalog has tried."""
        tried: list[int] = []
        renew = read_leases.ReadLease.renew
        asked: Callable[..., Any] = vars(read_leases)["renew_lease"]
        ttl_ms: int = vars(read_leases)["READ_LEASE_TTL_MS"]

        def asking(*args: Any) -> Any:
            tried.append(1)
            return asked(*args)

        def renewing(lease: read_leases.ReadLease) -> None:
            before = len(tried)
            renew(lease)
            if lease.lease_id is not None and lease.age_ms * 2 > ttl_ms and len(tried) == before:
                self._violated(
                    f"read leases: a reader continues under a lease that was last renewed {lease.age_ms:.0f} ms ago"
                )

        lease = read_leases.ReadLease
        with replaced(read_leases, "renew_lease", asking), replaced(lease, "renew", renewing):
            yield

    def look(self) -> None:
        """Check after a COMMIT."""
        query = self._database.query
        tasks = {task_id: _Task(*row) for task_id, *row in query(_TASKS)}
        for task_id, now in tasks.items():
            was = self._tasks.get(task_id)
            if was is not None and now != was:
                self._check_epoch(task_id, was, now)
        self._check_flush(tasks)
        self._check_segments(tasks)
        self._check_swap()
        self._check_burials()
        before = self._positions
        self._check_positions(tasks)
        self._check_shapes(tasks, before)
        self._check_objects(tasks)
        self.jobs.look(query, self._database.now_ms())
        for more in self.more:
            more.look(query)
        self._tasks = tasks

    def _check_shapes(self, tasks: Mapping[int, _Task], before: Mapping[int, _Positions]) -> None:
        deleted = {tenant_id for (tenant_id,) in self._database.query(DELETED)}
        if left := [task_id for task_id, task in tasks.items() if task.tenant_id in deleted]:
            self._violated(f"shapes: tasks {left} are of a deleted tenant")
        ended = {id_: self._tasks[id_] for id_ in self._tasks.keys() - tasks.keys()}
        self._deleted |= {task_id for task_id, task in ended.items() if task.tenant_id in deleted}
        self._visible = {task_id: rows for task_id, rows in self._visible.items() if task_id not in self._deleted}
        gone = {task_id: task.shape for task_id, task in ended.items() if task_id not in self._deleted}
        known = {task.tenant_id for task in self._tasks.values()}  # the others begin
        new = [task_id for task_id in tasks.keys() - self._tasks.keys() if tasks[task_id].tenant_id in known]
        come = {task_id: tasks[task_id].shape for task_id in new}
        if gone or come:
            for what in wrong(gone, come, self._database.moved_in_this_step(), (before, self._positions)):
                self._violated(what)

    def _check_epoch(self, task_id: int, was: _Task, now: _Task) -> None:
        if now.epoch < was.epoch or (now.owner != was.owner and now.epoch == was.epoch):
            self._violated(
                f"epoch: task {task_id} changed from {was.owner} at {was.epoch} to {now.owner} at {now.epoch}"
            )
        if now.snapshot_key != was.snapshot_key and now.snapshot_key is not None:
            key = parse(now.snapshot_key)
            if not isinstance(key, SnapshotKey) or not was.epoch <= key.epoch <= now.epoch:
                self._violated(f"fenced: task {task_id} at epoch {now.epoch} has the snapshot {now.snapshot_key}")

    def _check_flush(self, tasks: Mapping[int, _Task]) -> None:
        current = self._database.scheduler.current
        for a in self._flushes.get(current.process, ()) if current is not None else ():
            was, now = self._tasks.get(a.task_id), tasks.get(a.task_id)
            if was is None or now is None:
                continue
            if was.durable_ts != now.durable_ts == a.new_durable_ts and was.epoch > a.epoch:
                self._violated(f"fenced: task {a.task_id} is at epoch {was.epoch}, a flush of {a.epoch} moved it")

    def _check_segments(self, tasks: Mapping[int, _Task]) -> None:
        query = self._database.query
        every = query(
            "SELECT task_id, min(lo_ts), max(hi_ts), object_key, sum(row_count) FROM segments "
            "WHERE format = 'segment' GROUP BY task_id, object_key ORDER BY 1, 2"
        )
        # not by rowid: SQLite gives those of segments that a commit has deleted to others
        missing = [piece for piece in every if (piece[0], piece[3]) not in self._pieces]
        self._pieces |= {(piece[0], piece[3]) for piece in missing}
        for task_id, lo_ts, hi_ts, key, rows in missing:
            self._visible[task_id] = self._visible.get(task_id, 0) + rows
            was, now = self._tasks.get(task_id), tasks.get(task_id)
            if was is None:
                self._violated(f"segments: {key} is of task {task_id}, which has no owner")
                continue
            durable_ts = self._database.moved_in_this_step().get(task_id, was.durable_ts)
            # objects of one flush are ordered by table, not by timestamp
            if not was.durable_ts < lo_ts <= hi_ts <= durable_ts:
                self._violated(
                    f"segments: task {task_id}, from {was.durable_ts} to {durable_ts}: {key} has [{lo_ts}, {hi_ts}]"
                )
            if now is not None and was.epoch == now.epoch:
                self._check_author(task_id, now, key)

    def _check_swap(self) -> None:
        query = self._database.query
        ((replacements,),) = query("SELECT value FROM counters WHERE name = 'replacement'")
        if replacements == self._replacements:
            return
        self._replacements = replacements
        visible = dict(
            query(
                "SELECT task_id, sum(row_count) FROM segments JOIN objects USING (object_key) "
                "WHERE state = 'live' GROUP BY task_id"
            )
        )
        visible = {task_id: rows for task_id, rows in visible.items() if task_id not in self._deleted}
        ((floor_ts,),) = query("SELECT max(floor_ts) FROM tenants")
        fewer = all(rows <= self._visible.get(task_id, 0) for task_id, rows in visible.items())
        if floor_ts and fewer:  # retention and collection remove rows; reads as of a timestamp show which
            self._visible = visible
        if visible != self._visible:
            self._violated(f"compaction commit: {self._visible} rows were visible before, {visible} are now")
            self._visible = visible

    def _check_burials(self) -> None:
        query = self._database.query
        replaced = dict(
            query("SELECT object_key, replacement_no FROM objects WHERE state='superseded' AND replacement_no > 0")
        )
        for key in self._superseded.keys() - replaced.keys():
            held = query(
                "SELECT lease_id FROM read_leases WHERE replacements_seen < ? AND expires_ms > ?",
                self._superseded[key],
                self._database.now_ms(),
            )
            if held and not self.clock_jumps:
                self._violated(f"read leases: {key} is deleted, but the read lease {held[0][0]} may need it")
        self._superseded = replaced

    def _check_author(self, task_id: int, now: _Task, key: str) -> None:
        named = parse(key)
        if isinstance(named, CommittedKey) and named.sorter == BEFORE and (now.owner, now.epoch) == (None, 0):
            return  # of a log that was there when the run began
        if isinstance(named, CommittedKey) and named.sorter.startswith(f"replay-{task_id}-{now.epoch}-"):
            return  # by the replay that has taken the task under this epoch
        ((newest,),) = self._database.query("SELECT max(incarnation) FROM workers WHERE worker_id = ?", now.owner)
        if not isinstance(named, CommittedKey) or (named.sorter, named.incarnation) != (now.owner, newest):
            self._violated(f"fenced: {key} is of task {task_id}, which is {now.owner}'s in its incarnation {newest}")

    def _check_positions(self, tasks: Mapping[int, _Task]) -> None:
        positions: dict[int, _Positions] = {}
        for task_id, store, incarnation, seq, closed in self._database.query(
            "SELECT task_id, store_id, incarnation, seq, closed FROM snapshot_positions"
        ):
            positions.setdefault(task_id, {})[store, incarnation] = seq, bool(closed)
        for task_id, task in tasks.items():
            positions_now, was = positions.get(task_id, {}), self._tasks.get(task_id)
            switched = was is None or was.snapshot_key != task.snapshot_key
            if not switched and positions_now == self._positions.get(task_id, {}):
                continue
            if positions_now != self._of_snapshot(task.snapshot_key):
                self._violated(f"torn: the positions of task {task_id} are not those of {task.snapshot_key}")
        self._positions = positions

    def _check_objects(self, tasks: Mapping[int, _Task]) -> None:
        refers: dict[int, set[str]] = {}
        for task_id, key in self._database.query("SELECT task_id, object_key FROM snapshot_objects"):
            refers.setdefault(task_id, set()).add(key)
        deleted = self._database.query(DELETED)
        live = {key for key, tenant_id in self._database.query(_LIVE_SNAPSHOTS) if (tenant_id,) not in deleted}
        needed: set[str] = set().union(*refers.values())
        for key in sorted(needed - live):
            self._violated(f"let go: {key} is not live, and a snapshot refers to it")
        for key in sorted(live - needed):
            self._violated(f"leak: {key} is live, and no snapshot refers to it")
        for task_id, task in tasks.items():
            referred, key = refers.get(task_id, set()), task.snapshot_key
            if referred == self._refers.get(task_id) or key is None or key not in self._objects:
                continue
            named = objects_named_by(key, self.opened(key, self._objects[key][0])) | {key}
            if referred != named:
                self._violated(f"torn: task {task_id} refers to {sorted(referred)}, {key} to {sorted(named)}")
        self._refers = refers

    def _of_snapshot(self, key: str | None) -> _Positions:
        """The positions recorded in a snapshot."""
        if key is None or key not in self._objects:
            return {}
        positions = SegmentFile.open(key, self.opened(key, self._objects[key][0])).head["positions"]
        return {
            (int(store), int(incarnation)): (seq, bool(closed))
            for store, of_store in positions.items()
            for incarnation, (seq, closed) in of_store.items()
        }
