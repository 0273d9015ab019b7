"""Other tenants beside the judged one: one whose objects or tasks are harmed, and some that are being activated.

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import zstandard

from simulator.dst.database import SimCatalog
from simulator.dst.harm import HarmKind
from simulator.dst.store import Bucket, SimStore, put_at_last
from simulator.hostile import HOSTILE
from sorter.worker.runner import TaskRunner
from tistream.catalog.log.committed import find_segments
from tistream.catalog.tenancy.tenants import TaskKind, register_tenant
from tistream.catalog.work import reshape
from tistream.catalog.work.stores import issue_incarnation
from tistream.catalog.work.tasks import TaskRow, list_tasks
from tistream.codec.batch_file import encode_batch_file
from tistream.codec.committed_file import decode_committed_segment
from tistream.errors import ErrorKind, InvalidInput, TiStreamError
from tistream.ids import Tenant
from tistream.model.change import REGIONS, ROWS, Op, RowKind
from tistream.objectstore.layout import BatchKey, SchemaSnapKey

NEIGHBOUR = Tenant(1, 2)
STORE = 9
HOSTILE_FROM, LATE_FROM = 10, 20
TICK_S = 0.5

#: in which a task's step fails: (module, class, method)
STEPS = {
    "load": ("sorter.worker.runner", "TaskRunner", "load"),
    "take in": ("sorter.core.task_core", "TaskCore", "handle"),
    "write": ("sorter.core.task_core", "TaskCore", "take"),
    "save": ("sorter.core.task_core", "TaskCore", "snapshot"),
    "act": ("sorter.worker.runner", "TaskRunner", "act"),
}
OBJECT_HARMS = [kind for kind in HarmKind if kind is not HarmKind.UNDELETABLE]
FILE_HARMS = [kind for kind in OBJECT_HARMS if kind is not HarmKind.UNREADABLE]

Row = tuple[int, int, bytes, bytes]  # commit_ts, start_ts, key, value


@dataclass(slots=True)
class Neighbours:
    """Their state in one run."""

    rand: random.Random
    bucket: Bucket
    tso: Callable[[], int]
    tell: Callable[[str], None]
    committed: list[Row] = field(default_factory=list)
    harm: str = ""  #: the harm, in words
    names: tuple[str, ...] = ()  #: of the harmed object or task: one must be named once something has stopped
    victims: frozenset[int] = frozenset()  #: tasks that may stop
    fails: str = ""  #: the step of the victims that fails
    fails_in_merge: str = ""  #: the step that fails once a victim waits at the place where it is to be merged
    quiet: bool = False  #: nothing is committed any more
    newest: tuple[int, int] = (0, 0)  #: incarnation and seq of the newest file
    merges_after_s: tuple[float, ...] = ()  #: the harm: when a merge of its data tasks is requested

    # -- their beginning

    def register(self, catalog: SimCatalog, schema: dict[str, Any], start_ts: int) -> None:
        """The neighbour, a few hostile tenants and as many late ones."""
        self._put_schema(NEIGHBOUR, schema, start_ts)
        register_tenant(catalog, NEIGHBOUR)
        for n, name in enumerate(self.rand.sample(sorted(HOSTILE), 3)):
            bad, good = Tenant(1, HOSTILE_FROM + n), Tenant(1, LATE_FROM + n)
            said = HOSTILE[name](schema)
            ts = int(said["ts"]) if isinstance(said, dict) else start_ts
            self._put_schema(bad, said, ts if ts < 1 << 63 else start_ts)
            self._put_schema(good, schema, start_ts)
            register_tenant(catalog, bad)
            register_tenant(catalog, good)
            self.tell(f"tenant {bad} has a schema snapshot with {name}")

    def _put_schema(self, tenant: Tenant, schema: object, ts: int) -> None:
        data = zstandard.compress(json.dumps(schema).encode())
        self.bucket.objects[str(SchemaSnapKey(tenant=tenant, ts=ts))] = (data, self.bucket.unix_ms())

    # -- the neighbour's store

    def push(self, catalog: SimCatalog, store: SimStore, stopping: Any) -> None:
        """One incarnation of the neighbour's pusher: its subscription begins at the frontier, with what was committed
        above it."""
        tasks = self._data_tasks(catalog)
        while not tasks and not stopping.wait(TICK_S):
            tasks = self._data_tasks(catalog)
        incarnation, _ = issue_incarnation(catalog, NEIGHBOUR, STORE)
        open_ts = self.tso()
        checkpoint = min(row.durable_ts for row in list_tasks(catalog, NEIGHBOUR))
        rows = [row for row in self.committed if row[0] > checkpoint]
        seq = 0
        while not stopping.wait(TICK_S):
            for task in () if self.quiet else tasks:
                row = (0, self.tso(), task.range.start + b"_r%08d" % len(self.committed), b"of %d" % task.task_id)
                rows.append((self.tso(), *row[1:]))
                self.committed.append(rows[-1])
            seq += 1
            key = BatchKey(tenant=NEIGHBOUR, store_id=STORE, incarnation=incarnation, seq=seq)
            data = _file(key, rows, checkpoint, open_ts, self.tso())
            while not put_at_last(store, str(key), data):
                if stopping.wait(TICK_S):
                    return
            self.newest = incarnation, seq
            rows = []

    def _data_tasks(self, catalog: SimCatalog) -> list[TaskRow]:
        try:
            return [row for row in list_tasks(catalog, NEIGHBOUR) if row.kind is TaskKind.DATA]
        except TiStreamError as e:
            if e.kind is not ErrorKind.RETRY:
                raise
            return []

    # -- the harm

    def ask_for_merge(self, catalog: SimCatalog) -> None:
        """Request a merge of the first two data tasks, as an operator may at any time."""
        try:
            rows = sorted(self._data_tasks(catalog), key=lambda row: row.range)[:2]
            if len(rows) == 2:
                left, right = rows
                asked = reshape.request_merge(
                    catalog, left.task_id, right.task_id, seen_epochs=(left.epoch, right.epoch)
                )
                self.tell(f"tasks {left.task_id} and {right.task_id} {'are to merge' if asked else 'do not merge'}")
        except InvalidInput as e:
            self.tell(f"no merge: {e}")  # one of them has stopped already
        except TiStreamError as e:
            if e.kind is not ErrorKind.RETRY:
                raise

    def do_harm(self, tasks: list[tuple[int, str, str | None]]) -> bool:
        """Harm something, for good. `tasks` are (id, kind, snapshot). False while there is nothing that could be."""
        held = [(task_id, key) for task_id, kind, key in tasks if kind == TaskKind.DATA and key is not None]
        if not held or self.newest[1] < 3:
            return False
        if self.rand.random() < 0.5:
            self.merges_after_s = (0.0, 0.6, 2.5, 5.0)
        in_merge = ("half",) * 4 if self.merges_after_s else ()
        what = self.rand.choice(("state", "state", "rows", "file", "file", "step", "deletion", *in_merge))
        task_id, state = self.rand.choice(held)
        match what:
            case "state" | "rows":
                folder = state.rpartition("/")[0] + "/"
                keys = [state] if what == "state" else [k for k in self.bucket.objects if k.startswith(folder)]
                self._harm(self.rand.choice(OBJECT_HARMS), keys)
                self.victims, self.names = frozenset({task_id}), (*keys, f"task {task_id}")
            case "file":
                incarnation, seq = self.newest
                seq -= self.rand.randrange(3)
                key = str(BatchKey(tenant=NEIGHBOUR, store_id=STORE, incarnation=incarnation, seq=seq))
                self._harm(self.rand.choice(FILE_HARMS), [key])
                self.names = (key,)
            case "step":
                self.fails = self.rand.choice(sorted(STEPS))
                self.victims, self.names = frozenset({task_id}), (f"task {task_id}", f"/{task_id}")
                self.harm = f"the step '{self.fails}' of task {task_id} fails"
            case "half":
                self.fails_in_merge = self.rand.choice(("take in", "act", "save"))
                self.victims, self.names = frozenset({task_id}), (f"task {task_id}", f"/{task_id}")
                self.harm = f"the step '{self.fails_in_merge}' of task {task_id} fails from its merge on"
            case "deletion":
                self.bucket.harms.undeletable = tuple(
                    f"{folder}/cluster-1/tenant-2/" for folder in ("data_change_buffer", "snapshots", "committed")
                )
                self.harm = "nothing of the neighbour can be deleted"
                self.names = ("tenant-2", "1/2")
        self.tell(f"harm: {self.harm}")
        return True

    def _harm(self, kind: HarmKind, keys: list[str]) -> None:
        self.bucket.harms.kinds |= dict.fromkeys(keys, kind)
        self.harm = f"{kind}: {', '.join(keys)}"

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Make the chosen step of the victims fail, with an unexpected error."""
        import importlib

        changed: list[tuple[type, str, Any]] = []
        for step, (module, class_name, method) in STEPS.items():
            owner = getattr(importlib.import_module(module), class_name)
            whole = vars(owner)[method]
            changed.append((owner, method, whole))
            setattr(owner, method, self._guarded(step, whole))
        waits = TaskRunner.stop_at
        changed.append((TaskRunner, "stop_at", waits))

        def stop_at(runner: TaskRunner, *args: Any) -> None:
            if runner.task_id in self.victims and self.fails_in_merge:
                self.fails = self.fails_in_merge
            waits(runner, *args)

        setattr(TaskRunner, "stop_at", stop_at)  # noqa: B010 - it is put back below
        try:
            yield
        finally:
            for owner, method, whole in reversed(changed):
                setattr(owner, method, whole)

    def _guarded(self, step: str, whole: Any) -> Any:
        function = whole.__func__ if isinstance(whole, classmethod | staticmethod) else whole

        def guarded(first: Any, *args: Any, **named: Any) -> Any:
            named_by = args[0] if isinstance(first, type) else first  # a class method begins with its class
            task_id = getattr(named_by, "task_id", None)
            if self.fails == step and task_id in self.victims:
                raise ValueError(f"the step '{step}' of task {task_id} fails")
            return function(first, *args, **named)

        if isinstance(whole, classmethod):
            return classmethod(guarded)
        if isinstance(whole, staticmethod):
            return staticmethod(guarded)
        return guarded

    # -- rules

    def behind(self, tasks: list[tuple[int, str, int]]) -> list[int]:
        """The tasks (id, kind, durable watermark) that may not stop and have not been written out up to the end."""
        return [task_id for task_id in self._unwritten(tasks) if task_id not in self.victims]

    def stopped(self, tasks: list[tuple[int, str, int]]) -> list[int]:
        """The victims that have not been written out up to the end."""
        return [task_id for task_id in self._unwritten(tasks) if task_id in self.victims]

    def _unwritten(self, tasks: list[tuple[int, str, int]]) -> list[int]:
        last = self.committed[-1][0] if self.committed else 0
        return [task_id for task_id, _, durable_ts in tasks if durable_ts < last]

    def check_log(self, catalog: SimCatalog) -> str:
        """The errors in the neighbour's committed log; empty when there are none. Reads the true objects."""
        rows = [row for row in list_tasks(catalog, NEIGHBOUR) if row.kind is TaskKind.DATA]
        got: list[Row] = []
        for s in find_segments(catalog, NEIGHBOUR, after_ts=0, upto_ts=1 << 62, limit=100_000):
            data = self.bucket.objects[s.object_key][0][s.offset : s.offset + s.length]
            table = decode_committed_segment(s.object_key, s.number, data, crc=s.crc, rows=s.rows)
            got += [(r["commit_ts"], r["start_ts"], r["key"], r["value"]) for r in table.to_pylist()]
        want = [c for c in self.committed if any(c[2] in row.range and c[0] <= row.durable_ts for row in rows)]
        if sorted(got) == sorted(want):
            return ""
        missing, wrong = sorted(set(want) - set(got)), sorted(set(got) - set(want))
        return f"missing {missing[:3]} wrong {wrong[:3]}, {len(got)} rows instead of {len(want)}"


def _file(key: BatchKey, rows: list[Row], checkpoint: int, open_ts: int, cut_ts: int) -> bytes:
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
        "tenure_open_ts": open_ts,
        "tenure_ready_ts": open_ts,
        "checkpoint_ts": checkpoint,
        "resolved_ts": cut_ts,
        "row_offset": 0,
        "row_count": n,
    }
    made = pa.RecordBatch.from_pydict(columns, schema=ROWS)
    regions = pa.RecordBatch.from_pylist([region], schema=REGIONS)
    return encode_batch_file(key, cut_ts=cut_ts, rows=made, regions=regions, write_id=f"w{key.incarnation}-{key.seq}")
