"""Mutants of what is durable: flushes, snapshots, epochs, reclaim and collection, the feed's order, the served log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simulator.dst.mutants import register, replaced, reworded


@register("no-durable-watermark-guard", "a flush moves `durable_ts` wherever it stands", scenario="replies")
def _no_durable_ts_guard() -> Iterator[None]:
    from tistream.catalog.log import committed

    with (
        reworded(committed, "_advancing", ('tasks.c.durable_ts == bindparam("seen_durable_ts"),', "")),
        reworded(committed, "_is_as_seen", ("and row.durable_ts == a.seen_durable_ts", "")),
    ):
        yield


@register("no-epoch-guard", "a flush moves `durable_ts` for an owner that was replaced", scenario="zombies")
def _no_epoch_guard() -> Iterator[None]:
    from tistream.catalog.log import committed

    with (
        reworded(committed, "_advancing", ('tasks.c.epoch == bindparam("my_epoch"),', "")),
        reworded(committed, "_is_as_seen", ("and row.epoch == a.epoch", "")),
    ):
        yield


@register("stale-snapshot", "an owner that was replaced may still switch the snapshot", scenario="zombies")
def _stale_snapshot() -> Iterator[None]:
    from tistream.catalog.log import snapshots

    epoch, number = 'tasks.c.epoch == bindparam("my_epoch"),', 'tasks.c.snapshot_n < bindparam("new_n"),'
    seen = 'tasks.c.snapshot_n.between(bindparam("lowest_n"), bindparam("highest_n")),'
    with reworded(snapshots, "_switching", (epoch, ""), (number, ""), (seen, "")):
        yield


@register("torn-snapshot", "positions are switched in a transaction before the snapshot pointer", scenario="reclaim")
def _torn_snapshot() -> Iterator[None]:
    from sorter.worker import runner
    from tistream.catalog.database.tables import positions as table
    from tistream.catalog.log import snapshots

    whole = snapshots.switch_snapshot

    def apart(catalog: Any, task_id: int, *, positions: Any, **rest: Any) -> bool:
        rows = [
            {"task_id": task_id, "store_id": store, "incarnation": i, "seq": p.seq, "closed": p.closed}
            for store, lives in positions.items()
            for i, p in lives.items()
        ]
        with catalog.transaction() as conn:
            conn.execute(table.delete().where(table.c.task_id == task_id))
            if rows:
                conn.execute(table.insert(), rows)
        return whole(catalog, task_id, positions=positions, **rest)

    with replaced(runner, "switch_snapshot", apart):
        yield


@register("let-go-too-early", "an object is replaced although the snapshot still refers to it", scenario="reclaim")
def _let_go_too_early() -> Iterator[None]:
    from tistream.catalog.log import snapshots

    with reworded(snapshots, "switch_in", ("referred.difference(new.keeps)", "referred")):
        yield


@register("never-let-go", "objects to which no snapshot refers any more stay", scenario="reclaim")
def _never_let_go() -> Iterator[None]:
    from tistream.catalog.log import snapshots

    with replaced(snapshots, "release", lambda conn, task_id, keys: None):
        yield


@register("objects-not-kept", "a snapshot does not say to which older objects it refers", scenario="reclaim")
def _objects_not_kept() -> Iterator[None]:
    from sorter.state.saving import Save

    keep = "self.keeps = frozenset(group.object_key for group in kept)"
    with reworded(Save, "objects", (keep, "pass")):
        yield


@register("flags-of-later", "a snapshot has the alive flags of a later moment than its positions", scenario="reclaim")
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


@register("kept-unheard", "what a failed save wrote counts as saved, and nobody objects", scenario="replies")
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


@register("register-keeps-epochs", "a new life of a worker does not raise the epochs of what its name owns", "owners")
def _register_keeps_epochs() -> Iterator[None]:
    from tistream.catalog.work import workers

    with reworded(workers, "_fencing_tasks", ("epoch=tasks.c.epoch + 1", "epoch=tasks.c.epoch")):
        yield


@register("assignment-keeps-epoch", "a task changes its owner without a new epoch", scenario="owners")
def _assignment_keeps_epoch() -> Iterator[None]:
    from tistream.catalog.work import tasks

    with reworded(tasks, "_assigning", ("epoch=tasks.c.epoch + 1", "epoch=tasks.c.epoch")):
        yield


@register("never-read-back", "a flush whose reply was lost counts as not done", scenario="replies")
def _never_read_back() -> Iterator[None]:
    from sorter.worker.publisher import Publisher

    with replaced(Publisher, "_settle", lambda self, unsure: frozenset()):
        yield


@register("own-file-deleted", "a committed file is deleted when the reply to its transaction was lost", "replies")
def _own_file_deleted() -> Iterator[None]:
    from sorter.worker.publisher import Publisher

    old = "except CatalogUnavailable as e:"
    with reworded(Publisher, "_publish", (old, f"{old}\n        for key in flush.objects: self._store.delete(key)")):
        yield


@register("commit-before-put", "a committed file becomes visible before it is there", scenario="usual")
def _commit_before_put() -> Iterator[None]:
    from sorter.worker.publisher import Publisher

    late = "for key, data in vars(self).pop('late', {}).items():\n        self._store.put(key, data)"
    old = "    return self._conclude("
    with (
        reworded(Publisher, "_write", ("self._store.put(key, data)", "vars(self).setdefault('late', {})[key] = data")),
        reworded(Publisher, "_publish", (old, f"    {late}\n{old}")),
    ):
        yield


@register("first-object-only", "of the objects of a flush only the first becomes visible", scenario="pieces")
def _first_object_only() -> Iterator[None]:
    from tistream.catalog.log import committed

    first = ("for s in a.segments])", "for s in a.segments if s.object_key == min(sizes)])")
    with reworded(committed, "flush_in", first):
        yield


@register("later-puts-not-checked", "a flush goes on although its second object was not written", scenario="pieces")
def _later_puts_not_checked() -> Iterator[None]:
    from sorter.worker.publisher import Publisher

    put = "    self._store.put(key, data)\n"
    blind = f"    try:\n    {put}    except Exception:\n        if not flush.objects: raise\n"
    with reworded(Publisher, "_write", (put, blind)):
        yield


@register("reclaim-from-memory", "batch files go once every subscriber has received them", scenario="reclaim")
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
        found = durable_floor(catalog, tenant, store_id)
        return {i: max(at, min((t.get(i, 0) for t in of_tasks), default=0)) for i, at in found.items()}

    with replaced(Subscription, "_batch", batch), replaced(reclaim, "durable_floor", floor):
        yield


@register("floor-forgets-tasks", "a task without a position does not hold the files it has yet to read", "reclaim")
def _floor_forgets_tasks() -> Iterator[None]:
    from tistream.catalog.log import snapshots

    with reworded(snapshots, "_floors", ("func.coalesce(p.seq, 0)", "func.coalesce(p.seq, ALL_CONSUMED)")):
        yield


@register("deleted-before-given-up", "batch files are deleted before the catalog says so", scenario="reclaim")
def _deleted_before_given_up() -> Iterator[None]:
    from dispatcher.reclaim import Reclaimer

    early = "self._delete(self._keys(row, part))"
    old = "if not self._record(row, part):"
    with reworded(Reclaimer, "reclaim", (old, f"{early}\n        {old}")):
        yield


@register("collected-without-tombstone", "an orphan is deleted and nothing keeps its row from coming", "owners")
def _collected_without_tombstone() -> Iterator[None]:
    from metaserver import collect
    from tistream.catalog.log.objects import ObjectState, object_states

    def looked(catalog: Any, tenant: Any, key: str) -> bool:
        return object_states(catalog, [key]).get(key) != ObjectState.LIVE

    with replaced(collect, "tombstone", looked):
        yield


@register("gap-skipped", "the dispatcher passes over a file that is missing and takes a later one", scenario="order")
def _gap_skipped() -> Iterator[None]:
    from dispatcher.subscription import Subscription

    with reworded(Subscription, "_step", _SKIP):
        yield


@register("gap-accepted", "dispatcher, stream and sorter all pass over a file that is missing", scenario="order")
def _gap_accepted() -> Iterator[None]:
    from dispatcher.subscription import Subscription
    from simulator.dst.network import SimStream
    from sorter.core.task_core import TaskCore

    with (
        reworded(Subscription, "_step", _SKIP),
        reworded(SimStream, "_handed_out", ("known.closed or not follows", "known.closed")),
        reworded(TaskCore, "_is_next", ("at.closed or batch.seq > expected", "at.closed")),
    ):
        yield


@register("closed-goes-on", "an incarnation that ended at a gap goes on behind it", scenario="order")
def _closed_goes_on() -> Iterator[None]:
    from dispatcher.subscription import Subscription
    from sorter.core.task_core import TaskCore

    jump = (
        "if final and later:\n"
        "                    behind = int(later[-16:-4]) - 1\n"
        "                    self._positions[incarnation] = Position(seq=behind)\n"
        "                    return None, 0.0\n"
        "                if not final:"
    )
    with (
        reworded(Subscription, "_step", ("if not final:", jump)),
        reworded(TaskCore, "_is_next", ("at.closed or batch.seq > expected", "at.closed")),
    ):
        yield


_SKIP = (
    "if not final:",
    "after = self._tail.poll(incarnation, position.seq + 2)\n"
    "                if isinstance(after, Found): return self._batch(after.file)\n"
    "                if not final:",
)


@register("cursor-cuts-commit", "a page ends in the middle of a commit_ts")
def _cursor_cuts_commit() -> Iterator[None]:
    from reading.core import merge

    old = 'return int(np.searchsorted(commit_ts, end, side="right")), int(end)'
    with reworded(merge, "cut", (old, "return rows, int(end)")):
        yield


@register("served-by-the-highest", "the served watermark is that of the task that is furthest", scenario="upstream")
def _served_by_the_highest() -> Iterator[None]:
    from tistream.catalog.work import tasks

    with reworded(tasks, "served_watermark", ("func.min(tasks.c.durable_ts)", "func.max(tasks.c.durable_ts)")):
        yield


@register("served-without-schemas", "the served watermark takes no account of the DDL tasks and the history", "schemas")
def _served_without_schemas() -> Iterator[None]:
    from reading.deps import Services
    from tistream.catalog.work import tasks

    with (
        reworded(
            tasks,
            "served_watermark",
            ("or_(tasks.c.kind == TaskKind.DDL, _intersects(wanted))", "is_data, _intersects(wanted)"),
        ),
        reworded(Services, "served", ("min(resolved, history.resolved_ts)", "resolved")),
    ):
        yield


@register("schema-at-commit", "a row is read with the schema of its commit_ts, not of the moment before", "schemas")
def _schema_at_commit() -> Iterator[None]:
    from schemas.timeline import VersionIntervals

    with reworded(VersionIntervals, "index", ('side="left"', 'side="right"')):
        yield
