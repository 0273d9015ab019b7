"""Mutants of what is durable: flushes, snapshots, epochs, reclaim and collection, the feed's order, the served log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simulator.dst.mutants import broken, register, replaced, reworded

broken(
    "no-durable-watermark-guard (replies): a flush moves `durable_ts` from any value",
    ("tistream.catalog.log.committed:_advancing", 'tasks.c.durable_ts == bindparam("seen_durable_ts"),', ""),
    ("tistream.catalog.log.committed:_is_as_seen", "and row.durable_ts == a.seen_durable_ts", ""),
)
broken(
    "no-epoch-guard (zombies): a flush moves `durable_ts` for an owner that was replaced",
    ("tistream.catalog.log.committed:_advancing", 'tasks.c.epoch == bindparam("my_epoch"),', ""),
    ("tistream.catalog.log.committed:_is_as_seen", "and row.epoch == a.epoch", ""),
)
broken(
    "stale-snapshot (zombies): an owner that was replaced may still switch the snapshot",
    (
        "tistream.catalog.log.snapshots:_switching",
        'tasks.c.epoch == bindparam("my_epoch"),',
        "",
        'tasks.c.snapshot_no < bindparam("new_n"),',
        "",
        'tasks.c.snapshot_no.between(bindparam("lowest_n"), bindparam("highest_n")),',
        "",
    ),
)


@register("torn-snapshot (reclaim): positions are switched in a transaction before the snapshot pointer")
def _torn_snapshot() -> Iterator[None]:
    from sorter.worker import runner
    from tistream.catalog.log import snapshots

    whole = snapshots.switch_snapshot

    def apart(catalog: Any, task_id: int, epoch: int, new: Any) -> bool:
        with catalog.transaction() as conn:
            snapshots.drop_positions(conn, task_id)
            snapshots.add_positions(conn, task_id, new.positions)
        return whole(catalog, task_id, epoch, new)

    with replaced(runner, "switch_snapshot", apart):
        yield


broken(
    "let-go-too-early (reclaim): an object is replaced although the snapshot still refers to it",
    ("tistream.catalog.log.snapshots:switch_in", "referred.difference(new.keeps)", "referred"),
)
broken(
    "never-let-go (reclaim): objects to which no snapshot refers any more stay",
    ("tistream.catalog.log.snapshots:release", lambda conn, task_id, keys: None),
)
broken(
    "objects-not-kept (reclaim): a snapshot does not record the older objects it refers to",
    ("sorter.state.saving:Save.objects", "self.keeps = frozenset(group.object_key for group in kept)", "pass"),
)


@register("flags-of-later (reclaim): the alive flags of a snapshot are newer than its positions")
def _flags_of_later() -> Iterator[None]:
    from dataclasses import replace

    from sorter.core.task_core import TaskCore

    whole, before = TaskCore.snapshot, dict[int, Any]()

    def snapshot(self: Any) -> Any:
        now = whole(self)
        saved = before.setdefault(id(self), (self, now))[1]
        before[id(self)] = self, now
        late = {
            kind: tuple(replace(state, alive=state.run.alive.copy()) for state in getattr(saved, kind))
            for kind in ("open", "commits", "ready")
        }
        return replace(saved, **late)

    with replaced(TaskCore, "snapshot", snapshot):
        yield


@register("kept-unheard (replies): the objects of a failed save count as saved, unchecked")
def _kept_unheard() -> Iterator[None]:
    from sorter.state.saving import Save
    from tistream.catalog.log import snapshots

    whole = Save.objects

    def objects(self: Any) -> Iterator[tuple[str, bytes]]:
        yield from whole(self)
        self.done()

    with (
        replaced(Save, "objects", objects),
        reworded(snapshots, "switch_in", ("if not referred.issuperset(new.keeps):", "if False:")),
    ):
        yield


broken(
    "register-keeps-epochs (owners): a worker's new incarnation does not raise the epochs of its tasks",
    ("tistream.catalog.work.workers:_fencing_tasks", "epoch=tasks.c.epoch + 1", "epoch=tasks.c.epoch"),
)
broken(
    "assignment-keeps-epoch (owners): a task changes its owner without a new epoch",
    ("tistream.catalog.work.tasks:_assigning", "epoch=tasks.c.epoch + 1", "epoch=tasks.c.epoch"),
)
broken(
    "never-read-back (replies): a flush whose reply was lost counts as not done",
    ("sorter.worker.publisher:Publisher._read_back", lambda self, unsure: frozenset()),
)
broken(
    "own-file-deleted (replies): a committed file is deleted when the reply to its transaction was lost",
    (
        "sorter.worker.publisher:Publisher._publish",
        "    except Fenced as e:",
        (
            "    except CatalogUnavailable:\n"
            "        for key in flush.objects: self._store.delete(key)\n        raise\n    except Fenced as e:"
        ),
    ),
)
broken(
    "commit-before-put (usual): a committed file becomes visible before it is there",
    (
        "sorter.worker.publisher:Publisher._write",
        "self._store.put(key, data)",
        "vars(self).setdefault('late', {})[key] = data",
    ),
    (
        "sorter.worker.publisher:Publisher._publish",
        "    return self._conclude(",
        (
            "    for key, data in vars(self).pop('late', {}).items():\n"
            "        self._store.put(key, data)\n    return self._conclude("
        ),
    ),
)
broken(
    "first-object-only (pieces): of the objects of a flush only the first becomes visible",
    (
        "tistream.catalog.log.committed:flush_in",
        "for s in a.segments]\n",
        "for s in a.segments if s.object_key == min(sizes)]\n",
    ),
)
broken(
    "later-puts-not-checked (pieces): a flush continues although its second object was not written",
    (
        "sorter.worker.publisher:Publisher._write",
        "    self._store.put(key, data)\n",
        ("    try:\n        self._store.put(key, data)\n    except Exception:\n        if not flush.objects: raise\n"),
    ),
)


@register("reclaim-from-memory (reclaim): batch files go once every subscriber has received them")
def _reclaim_from_memory() -> Iterator[None]:
    from dispatcher import reclaim
    from dispatcher.subscription import Subscription
    from tistream.catalog.log.snapshots import durable_floor

    whole, received = Subscription._batch, dict[int, dict[int, dict[int, int]]]()

    def batch(self: Any, file: Any) -> Any:
        of_task = received.setdefault(file.key.store_id, {}).setdefault(self._request.task_id, {})
        of_task[file.key.incarnation] = max(file.key.seq, of_task.get(file.key.incarnation, 0))
        return whole(self, file)

    def floor(catalog: Any, tenant: Any, store_id: int) -> dict[int, int]:
        of_tasks = received.get(store_id, {}).values()
        floor_in_memory = durable_floor(catalog, tenant, store_id)
        return {i: max(at, min((t.get(i, 0) for t in of_tasks), default=0)) for i, at in floor_in_memory.items()}

    with replaced(Subscription, "_batch", batch), replaced(reclaim, "durable_floor", floor):
        yield


broken(
    "floor-forgets-tasks (reclaim): a task without a position does not hold the files it has yet to read",
    ("tistream.catalog.log.snapshots:_floors", "func.coalesce(p.seq, 0)", "func.coalesce(p.seq, ALL_CONSUMED)"),
)
broken(
    "deleted-before-given-up (reclaim): batch files are deleted before the catalog records it",
    (
        "dispatcher.reclaim:Reclaimer.reclaim",
        "if not self._record(row, part):",
        "self._delete(row.tenant, self._keys(row, part))\n        if not self._record(row, part):",
    ),
)


@register("collected-without-tombstone (owners): an orphan is deleted and nothing keeps its row from coming")
def _collected_without_tombstone() -> Iterator[None]:
    from metaserver import collect
    from tistream.catalog.log.objects import ObjectState, object_states

    def looked(catalog: Any, tenant: Any, key: str) -> bool:
        return object_states(catalog, [key]).get(key) != ObjectState.LIVE

    with replaced(collect, "tombstone", looked):
        yield


_SKIP = (
    "dispatcher.subscription:Subscription._step",
    "if not final:",
    "after = self._tail.poll(incarnation, position.seq + 2)\n"
    "                if isinstance(after, Found): return self._batch(after.file)\n"
    "                if not final:",
)
broken(
    "look-connects (usual): the thread that looks at all subscriptions connects them itself",
    (
        "tistream.feed.flight:FlightStream._connected",
        "self._attempt = self._feed.begin(request, self._wake)",
        "self._attempt = Attempt(request, self._wake, 0.0)\n            self._attempt.run(self._feed.subscribe)",
    ),
)
broken("gap-skipped (order): the dispatcher passes over a file that is missing and takes a later one", _SKIP)
broken(
    "gap-accepted (order): dispatcher, stream and sorter all pass over a file that is missing",
    _SKIP,
    ("tistream.feed.flight:FlightStream._deliver", "not before.closed and batch.seq == expected", "not before.closed"),
    ("sorter.core.task_core:TaskCore._is_next", "at.closed or batch.seq > expected", "at.closed"),
)
broken(
    "closed-goes-on (order): an incarnation that ended at a gap continues after it",
    (
        "dispatcher.subscription:Subscription._step",
        "if not final:",
        (
            "if final and later:\n                    behind = int(later[-16:-4]) - 1\n"
            "                    self._positions[incarnation] = Position(seq=behind)\n"
            "                    return None, 0.0\n                if not final:"
        ),
    ),
    ("sorter.core.task_core:TaskCore._is_next", "at.closed or batch.seq > expected", "at.closed"),
)

broken(
    "cursor-cuts-commit (usual): a page ends in the middle of a commit_ts",
    (
        "reading.core.merge:cut",
        'return int(np.searchsorted(commit_ts, end, side="right")), int(end)',
        "return rows, int(end)",
    ),
)
broken(
    "deletes-of-nothing (usual): the delete of a row that never was is delivered",
    ("reading.core.page_rows:deletes_nothing", "return mask & known", "return mask & ~known"),
)
broken(
    "served-by-the-highest (upstream): the served watermark is that of the task that is furthest",
    ("tistream.catalog.tenancy.served:edge_columns", "func.min(c.ts)", "func.max(c.ts)"),
)
broken(
    "served-without-schemas (schemas): the served watermark takes no account of the DDL tasks and the history",
    (
        "tistream.catalog.work.tasks:served_edge",
        "of_tasks=of_tenant(tasks, tenant)",
        "of_tasks=and_(of_tenant(tasks, tenant), tasks.c.kind == TaskKind.DATA)",
    ),
    ("reading.served.services:Services.served", "min(edge.ts, history.resolved_ts)", "edge.ts"),
)
broken(
    "schema-at-commit (schemas): a row is read with the schema of its commit_ts, not of commit_ts - 1",
    ("schemas.timeline:VersionIntervals.index", 'side="left"', 'side="right"'),
)
