"""Tenants besides the judged one: one whose objects or tasks are harmed, and some that are being activated.

    neighbour   its own store writes a file with each tick, a row for each data task, complete and in order. In the
                middle of the run an object or a step of one of its tasks is harmed
    hostile     tenants with an unusable schema snapshot
    late        tenants with a good one, registered after them: they must be activated

Only what is harmed may stop. So the neighbour's other tasks are written out to the end and equal what was committed,
the judged tenant is served, no process ends, and some service names what has stopped.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import zstandard

from simulator.dst.aspect import Aspect
from simulator.dst.database import SimCatalog
from simulator.dst.harm import HarmKind
from simulator.dst.mutants import replaced
from simulator.dst.running import Running
from simulator.dst.store import put_at_last
from simulator.hostile import HOSTILE
from sorter.core.task_core import TaskCore
from sorter.worker.runner import TaskRunner
from tistream.catalog.log.committed import find_segments
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.rows.tenants import TaskKind
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.catalog.work import reshape
from tistream.catalog.work.stores import issue_incarnation
from tistream.catalog.work.tasks import list_tasks
from tistream.codec.batch_file import encode_batch_file
from tistream.codec.committed_file import decode_committed_segment
from tistream.errors import ErrorKind, InvalidInput, TiStreamError
from tistream.ids import Tenant
from tistream.model.change import REGIONS, ROWS, Op, RowKind
from tistream.objectstore.layout import BatchKey, SchemaSnapKey

if TYPE_CHECKING:
    from simulator.dst.world import World

NEIGHBOUR = Tenant(1, 2)
STORE = 9
HOSTILE_FROM, LATE_FROM = 10, 20
TICK_S = 0.5

#: in which a task's step fails: class, method
STEPS: Mapping[str, tuple[type, str]] = {
    "load": (TaskRunner, "load"),
    "take in": (TaskCore, "handle"),
    "write": (TaskCore, "take"),
    "save": (TaskCore, "snapshot"),
    "act": (TaskRunner, "act"),
}
OBJECT_HARMS = [kind for kind in HarmKind if kind is not HarmKind.UNDELETABLE]
FILE_HARMS = [kind for kind in OBJECT_HARMS if kind is not HarmKind.UNREADABLE]

Row = tuple[int, int, bytes, bytes]  # commit_ts, start_ts, key, value


class OtherTenants(Aspect):
    """Their state in one run."""

    def __init__(self, world: World) -> None:
        self._world, self._bucket = world, world.bucket
        self._rand = random.Random(f"{world.seed}/neighbours")
        self._committed: list[Row] = []
        self._harm_text = ""
        self._names: tuple[str, ...] = ()  # of the harmed object or task: one must be named once something has stopped
        self._victims: frozenset[int] = frozenset()  # tasks that may stop
        self._fails = ""  # the step of the victims that fails
        self._fails_in_merge = ""  # the step that fails once a victim waits at the place where it is to be merged
        self._quiet = False  # nothing is committed any more
        self._newest = (0, 0)  # incarnation and seq of the newest file
        self._merges_after_s: tuple[float, ...] = ()  # the harm: when a merge of its data tasks is requested

    # -- hooks

    def roles(self) -> Mapping[str, Callable[[Running], None]]:
        return {"neighbour": self._push}

    def begin(self, catalog: SimCatalog) -> None:
        """The neighbour, a few hostile tenants and as many late ones."""
        schema, start_ts = self._world.workload.schema_snapshot(), self._world.start_ts
        self._put_schema(NEIGHBOUR, schema, start_ts)
        register_tenant(catalog, NEIGHBOUR)
        for n, name in enumerate(self._rand.sample(sorted(HOSTILE), 3)):
            bad, good = Tenant(1, HOSTILE_FROM + n), Tenant(1, LATE_FROM + n)
            said = HOSTILE[name](schema)
            ts = int(said["ts"]) if isinstance(said, dict) else start_ts
            self._put_schema(bad, said, ts if ts < 1 << 63 else start_ts)
            self._put_schema(good, schema, start_ts)
            register_tenant(catalog, bad)
            register_tenant(catalog, good)
            self._world.tell(f"tenant {bad} has a schema snapshot with {name}")

    def _put_schema(self, tenant: Tenant, schema: object, ts: int) -> None:
        data = zstandard.compress(json.dumps(schema).encode())
        self._bucket.objects[str(SchemaSnapKey(tenant=tenant, ts=ts))] = (data, self._bucket.unix_ms())

    def start(self) -> None:
        """Harm the neighbour as soon as something exists to harm, and restart the owners: what is in memory needs no
        object. In half of the runs a merge of its tasks is under way."""
        world = self._world
        world.start("neighbour", "neighbour-1")

        def merge() -> None:
            if not world.resting:
                world.spawn(self._ask_for_merge, "a merge of the neighbour")

        def harm() -> None:
            if world.resting:
                return
            if not self._do_harm():
                world.scheduler.call_at(world.scheduler.now + 0.5, harm)
                return
            for delay_s in self._merges_after_s:
                world.scheduler.call_at(world.scheduler.now + delay_s, merge)
            world.crash(("sorter", "dispatcher", "neighbour"), 0.5)

        world.scheduler.call_at(world.scheduler.now + 3.0 + self._rand.random() * 4.0, harm)

    def settle(self) -> None:
        """After a restart of the neighbour's pusher, whatever may not stop is written out and what has stopped is
        named."""
        world, what = self._world, f"isolation: {self._harm_text}"
        if world.is_over():
            return
        self._quiet = True
        world.crash(("neighbour",), 0.5)
        world.until(lambda: not self._unwritten() - self._victims, f"{what}: its other tasks stop")
        world.until(self._is_named, f"{what}: no problem names it")
        world.until(self._late_are_active, "isolation: a tenant after hostile ones is not activated")
        results: list[str] = []
        world.spawn(lambda: results.append(self._check_log(SimCatalog(world.database))), "the neighbour's log")
        world.until(lambda: bool(results), "isolation: the neighbour's log cannot be read")
        if results and results[0]:
            world.oracle.violated(f"{what}: the neighbour's log: {results[0]}")

    # -- the neighbour's store

    def _push(self, running: Running) -> None:
        """One incarnation of the neighbour's pusher: its subscription begins at the frontier, with what was committed
        above it."""
        catalog, stopping = running.catalog, running.stopping
        tasks = self._data_tasks(catalog)
        while not tasks and not stopping.wait(TICK_S):
            tasks = self._data_tasks(catalog)
        incarnation, _ = issue_incarnation(catalog, NEIGHBOUR, STORE)
        open_ts = self._world.tso()
        checkpoint = min(row.durable_ts for row in list_tasks(catalog, NEIGHBOUR))
        rows = [row for row in self._committed if row[0] > checkpoint]
        seq = 0
        while not stopping.wait(TICK_S):
            for task in () if self._quiet else tasks:
                start_ts, row_key = self._world.tso(), task.range.start + b"_r%08d" % len(self._committed)
                rows.append((self._world.tso(), start_ts, row_key, b"of %d" % task.task_id))
                self._committed.append(rows[-1])
            seq += 1
            key = BatchKey(tenant=NEIGHBOUR, store_id=STORE, incarnation=incarnation, seq=seq)
            data = file_of(key, rows, checkpoint, open_ts, self._world.tso())
            while not put_at_last(running.store, str(key), data):
                if stopping.wait(TICK_S):
                    return
            self._newest = incarnation, seq
            rows = []

    def _data_tasks(self, catalog: SimCatalog) -> list[TaskRow]:
        try:
            return [row for row in list_tasks(catalog, NEIGHBOUR) if row.kind is TaskKind.DATA]
        except TiStreamError as e:
            if e.kind is not ErrorKind.RETRY:
                raise
            return []

    # -- rules

    def _unwritten(self) -> set[int]:
        """The neighbour's tasks that have not been written out up to the end."""
        last = self._committed[-1][0] if self._committed else 0
        query = "SELECT task_id FROM tasks WHERE cluster_id = 1 AND tenant_id = 2 AND durable_ts < ?"
        return {task_id for (task_id,) in self._world.database.query(query, last)}

    def _is_named(self) -> bool:
        """Whether a service names what has stopped."""
        if not self._unwritten() & self._victims:
            return True
        errors = self._world.database.query("SELECT task_id, error FROM tasks WHERE error IS NOT NULL")
        named = [*self._world.problems(), *(f"task {task_id}: {error}" for task_id, error in errors)]
        return any(name in text for name in self._names for text in named)

    def _late_are_active(self) -> bool:
        """Whether every tenant that was registered after hostile ones is active."""
        states = self._world.database.query("SELECT state FROM tenants WHERE tenant_id >= ?", LATE_FROM)
        return {state for (state,) in states} == {"ACTIVE"}

    def _check_log(self, catalog: SimCatalog) -> str:
        """The errors in the neighbour's committed log; empty when there are none. Reads the true objects."""
        rows = [row for row in list_tasks(catalog, NEIGHBOUR) if row.kind is TaskKind.DATA]
        got: list[Row] = []
        for s in find_segments(catalog, NEIGHBOUR, after_ts=0, upto_ts=1 << 62, limit=100_000):
            data = self._bucket.objects[s.object_key][0][s.offset : s.offset + s.length]
            table = decode_committed_segment(s.object_key, s.number, data, crc=s.crc, rows=s.rows)
            got += [(r["commit_ts"], r["start_ts"], r["key"], r["value"]) for r in table.to_pylist()]
        want = [c for c in self._committed if any(c[2] in row.range and c[0] <= row.durable_ts for row in rows)]
        if sorted(got) == sorted(want):
            return ""
        missing, wrong = sorted(set(want) - set(got)), sorted(set(got) - set(want))
        return f"missing {missing[:3]} wrong {wrong[:3]}, {len(got)} rows instead of {len(want)}"

    # -- the harm

    def _ask_for_merge(self) -> None:
        """Request a merge of the first two data tasks, as an operator may at any time."""
        catalog = SimCatalog(self._world.database)
        try:
            rows = sorted(self._data_tasks(catalog), key=lambda row: row.range)[:2]
            if len(rows) == 2:
                (left, right), epochs = (row.task_id for row in rows), (rows[0].epoch, rows[1].epoch)
                merges = reshape.request_merge(catalog, left, right, seen_epochs=epochs)
                self._world.tell(f"tasks {left} and {right} {'are to merge' if merges else 'do not merge'}")
        except InvalidInput as e:
            self._world.tell(f"no merge: {e}")  # one of them has stopped already
        except TiStreamError as e:
            if e.kind is not ErrorKind.RETRY:
                raise

    def _do_harm(self) -> bool:
        """Harm something until the end of the run. False while there is nothing that could be harmed."""
        held = self._world.database.query(
            "SELECT task_id, snapshot_key FROM tasks WHERE cluster_id = 1 AND tenant_id = 2 AND kind = ? "
            "AND snapshot_key IS NOT NULL",
            str(TaskKind.DATA),
        )
        if not held or self._newest[1] < 3:
            return False
        if self._rand.random() < 0.5:
            self._merges_after_s = (0.0, 0.6, 2.5, 5.0)
        in_merge = ("half",) * 4 if self._merges_after_s else ()
        what = self._rand.choice(("state", "state", "rows", "file", "file", "step", "deletion", *in_merge))
        task_id, state = self._rand.choice(held)
        match what:
            case "state" | "rows":
                folder = state.rpartition("/")[0] + "/"
                keys = [state] if what == "state" else [k for k in self._bucket.objects if k.startswith(folder)]
                self._harm(self._rand.choice(OBJECT_HARMS), keys)
                self._victims, self._names = frozenset({task_id}), (*keys, f"task {task_id}")
            case "file":
                incarnation, seq = self._newest
                seq -= self._rand.randrange(3)
                key = str(BatchKey(tenant=NEIGHBOUR, store_id=STORE, incarnation=incarnation, seq=seq))
                self._harm(self._rand.choice(FILE_HARMS), [key])
                self._names = (key,)
            case "step":
                self._fails = self._rand.choice(sorted(STEPS))
                self._victims, self._names = frozenset({task_id}), (f"task {task_id}", f"/{task_id}")
                self._harm_text = f"the step '{self._fails}' of task {task_id} fails"
            case "half":
                self._fails_in_merge = self._rand.choice(("take in", "act", "save"))
                self._victims, self._names = frozenset({task_id}), (f"task {task_id}", f"/{task_id}")
                self._harm_text = f"the step '{self._fails_in_merge}' of task {task_id} fails from its merge on"
            case "deletion":
                self._bucket.harms.undeletable = tuple(
                    f"{folder}/cluster-1/tenant-2/" for folder in ("data_change_buffer", "snapshots", "committed")
                )
                self._harm_text = "nothing of the neighbour can be deleted"
                self._names = ("tenant-2", "1/2")
        self._world.tell(f"harm: {self._harm_text}")
        return True

    def _harm(self, kind: HarmKind, keys: list[str]) -> None:
        self._bucket.harms.kinds |= dict.fromkeys(keys, kind)
        self._harm_text = f"{kind}: {', '.join(keys)}"

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Make the chosen step of the victims fail, with an unexpected error."""
        waits = TaskRunner.stop_at

        def stop_at(runner: TaskRunner, *args: Any) -> None:
            if runner.task_id in self._victims and self._fails_in_merge:
                self._fails = self._fails_in_merge
            waits(runner, *args)

        with ExitStack() as stack:
            for step, (owner, method) in STEPS.items():
                stack.enter_context(replaced(owner, method, self._guarded(step, vars(owner)[method])))
            stack.enter_context(replaced(TaskRunner, "stop_at", stop_at))
            yield

    def _guarded(self, step: str, whole: Any) -> Any:
        function = whole.__func__ if isinstance(whole, classmethod | staticmethod) else whole

        def guarded(first: Any, *args: Any, **named: Any) -> Any:
            named_by = args[0] if isinstance(first, type) else first  # a class method begins with its class
            task_id = getattr(named_by, "task_id", None)
            if self._fails == step and task_id in self._victims:
                raise ValueError(f"the step '{step}' of task {task_id} fails")
            return function(first, *args, **named)

        if isinstance(whole, classmethod):
            return classmethod(guarded)
        if isinstance(whole, staticmethod):
            return staticmethod(guarded)
        return guarded


def file_of(key: BatchKey, rows: list[Row], checkpoint: int, open_ts: int, cut_ts: int) -> bytes:
    n = len(rows)
    columns: dict[str, list[Any]] = {
        "kind": [RowKind.COMMITTED] * n,
        "op": [Op.PUT] * n,
        "key": [row[2] for row in rows],
        "start_ts": [row[1] for row in rows],
        "commit_ts": [row[0] for row in rows],
        "generation": [0] * n,
        "value": [row[3] for row in rows],
        "old_value": [None] * n,
        "expire_ts": [0] * n,
        "flags": [0] * n,
    }
    region = {
        "region_id": 1,
        "version": 1,
        "start_key": b"",
        "end_key": b"",
        "subscription_open_ts": open_ts,
        "subscription_ready_ts": open_ts,
        "checkpoint_ts": checkpoint,
        "resolved_ts": cut_ts,
        "row_offset": 0,
        "row_count": n,
    }
    made = pa.RecordBatch.from_pydict(columns, schema=ROWS)
    regions = pa.RecordBatch.from_pylist([region], schema=REGIONS)
    return encode_batch_file(key, cut_ts=cut_ts, rows=made, regions=regions, write_id=f"w{key.incarnation}-{key.seq}")
