"""The rule of watermarks: everything served at or below W is complete, final and in commit order.

A few transactions of one key each are prewritten, committed and rolled back in regions whose leaders move between two
stores. A store's pusher cuts its rows into files of rising numbers; it may die and come again as a new incarnation. The
task of a sorter takes the files of any store whenever it likes, the next number of an incarnation each time, flushes
what is final, saves its state, dies and continues from what it saved. Whatever is paused or late is an action that
happens later.

A file here is of one region, and a flush is one step (`epochs` takes it apart). Which of several prewrites of a
transaction a commit has committed is left to the product's `conflict_rule` and its scenarios.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tests.specs.explore import Spec, State, put

RULES = {
    # sorter.core.watermark.RangeWatermarkMap.apply, sorter.core.slots.Promises.admitted; without it recordings of TiKV
    # lose rows (tests/integration/test_real_tikv_streams.py)
    "admission": "a row raises W only if its checkpoint_ts is at most max(W, durable_ts), else it waits",
    # sorter.core.task_core.TaskCore.handle; mutant watermarks-before-data
    "rows_before_watermarks": "the rows of a file are taken before its watermark rows",
    # sorter.core.task_core.TaskCore._is_next, dispatcher.tail.Tail; mutant gap-accepted
    "files_in_sequence": "after file n of an incarnation comes n + 1",
    # sorter.core.task_core.TaskCore.watermark, RangeWatermarkMap.watermark
    "lowest_slice": "a task's watermark is the lowest W of its range",
    # tistream.catalog.tenancy.served.limits; mutant served-by-the-highest
    "lowest_task": "readers are served up to the lowest durable_ts of all tasks",
    # sorter.core.prewrite_buffer._past_cut; mutant dead-by-start-ts
    "dead_by_cut_ts": "a prewrite is dead by the cut_ts of its file, not by its start_ts",
    # sorter.core.prewrite_buffer._past_cut (strictly); mutant dead-at-cut-ts
    "dead_above_cut_ts": "a prewrite is dead when W is above that cut_ts, not when it is equal",
    # sorter.core.prewrite_buffer.PrewriteBuffer._drop_dead; mutant dead-while-commit-waits
    "waiting_commit_keeps": "a prewrite whose commit waits is not dead",
    # sorter.core.admission.add_commits; mutant early-commits-forgotten
    "early_commits_wait": "a commit that overtakes its prewrite waits",
    # sorter.core.admission.classify; mutant duplicates-not-merged
    "ready_rows_known": "a row that is ready already is a duplicate",
    # sorter.core.admission.classify; mutant written-rows-come-again
    "written_rows_known": "a row at or below durable_ts is a duplicate",
    # sorter.core.admission.take_in: `classify`, then `refuse_late_commits`; mutant promise-before-duplicates
    "duplicates_first": "a row is looked for among the known ones before it counts as late",
    # sorter.core.task_core.TaskCore.restore; mutant restore-lifts-w
    "restored_w_stays": "after a restart W is what was saved, not durable_ts",
    # sorter.core.sort_buffer.SortBuffer.restrict; mutant restore-keeps-written
    "restored_rows_leave": "after a restart ready rows at or below durable_ts leave",
    # sorter.core.prewrite_buffer.PrewriteBuffer.restrict; mutant restore-keeps-commits
    "restored_commits_leave": "after a restart waiting commits at or below durable_ts leave",
    # the store's resolver, pusher.tikv.core.marks.ResolvedMarks; mutant locks-not-resolved
    "locks_hold_resolved": "resolved_ts stays at or below the start_ts of every lock",
    # pusher.tikv.core.feed.StoreFeed.tick; mutant resolved-before-records
    "resolved_after_records": "resolved_ts covers only rows that are in the file or before",
    # pusher.core.batcher.Batcher._tick; mutant cut-before-records
    "cut_after_records": "cut_ts is a TSO fetched after the last row of the file",
    # the store's opening scan; mutant scan-without-prewrites
    "scan_sends_locks": "an opening scan sends the locks that it finds",
    # the store's opening scan; mutant scan-from-above
    "scan_from_checkpoint": "an opening scan sends everything committed above checkpoint_ts",
    # pusher.core.batcher._Marks.promised; mutant counts-before-ready
    "counts_when_ready": "a subscription promises nothing before its opening scan is in the files",
}

PREWRITE, COMMIT, COMMITTED, ROLLBACK = 8, 16, 24, 32  # a row is one of these plus the number of its transaction
NONE, OPEN, ROLLED_BACK, CHOSEN, DONE = 0, 32, 64, 96, 128  # a transaction is one of these plus its commit_ts
NAMES = {PREWRITE: "prewrite", COMMIT: "commit", COMMITTED: "committed", ROLLBACK: "rollback"}

#: bounds that show each rule, called by what they have more of
SIZES: dict[str, dict[str, Any]] = {
    "lives": {"deaths": 1},
    "moves": {"moves": 1},
    "restarts": {"tso_max": 3, "restarts": 1, "held_back": True},
    "slices": {"keys": (0, 1), "tasks": ((0, 1),)},
    "tasks": {"keys": (0, 1), "tasks": ((0,), (1,)), "files": 2},
}
LARGE = {"keys": (0, 0), "tso_max": 5, "moves": 2, "deaths": 1, "files": 4, "restarts": 1, "held_back": True}


Buffers = tuple[dict[int, int], set[int], list[int]]  #: prewrites with their cut_ts, commits, ready rows


class Led(NamedTuple):
    """A region with its subscription."""

    store: int  #: of the leader
    checkpoint: int
    resolved: int  #: the last that was promised
    scan: State  #: rows of the opening scan that are still to come, behind a 1; empty once it has ended
    rows: State  #: those that no file has yet


class Task(NamedTuple):
    """What a sorter has of a task."""

    positions: State  #: in the files of each incarnation
    w: State  #: of each key
    held: State  #: (prewrite, cut_ts of its file)
    commits: State  #: that wait
    ready: State
    waiting: State  #: watermark rows: (key, checkpoint_ts, resolved_ts)


class World(NamedTuple):
    """A state. Transactions are named by their numbers, in rows as well."""

    tso: int
    txns: State
    regions: tuple[Led, ...]
    left: State  #: rows of ended subscriptions that no file has yet: (store, key, rows)
    pushers: State  #: the incarnation of each store
    files: State  #: of each incarnation: (key, rows, promise, cut_ts)
    tasks: tuple[Task, ...]
    saved: tuple[Task, ...]
    logs: State  #: of each task: durable_ts, the rows written
    moves: int  #: how often this may still happen
    deaths: int
    cuts: int
    restarts: int
    stopped: int = 0  #: a task has stopped at this transaction, plus 1

    def commit_ts(self, n: int) -> int:
        """Of a transaction that has one."""
        return int(self.txns[n]) & 31


class Watermarks(Spec):
    """See the module."""

    rules_known = RULES

    def __init__(
        self, rules: Any = None, *, keys: Sequence[int] = (0,), tasks: Sequence[Sequence[int]] = ((0,),),
        tso_max: int = 4, moves: int = 0, deaths: int = 0, files: int = 3, restarts: int = 0, held_back: bool = False,
    ) -> None:  # fmt: skip
        """`keys`: of each transaction; its start_ts is its number plus 1. `tasks`: the keys of each. The others say how
        often leaders move, pushers die, files are cut and tasks restart. `held_back`: locks on other keys of a region
        may hold its resolved_ts back."""
        super().__init__(rules)
        self.keys, self.tasks, self.tso_max, self.held_back = keys, tasks, tso_max, held_back
        self.budget = (moves, deaths, files, restarts)

    def initial(self) -> World:
        """Store 0 leads everything, and nothing has happened."""
        regions = (Led(0, 0, 0, (), ()),) * (max(self.keys) + 1)
        tasks = tuple(Task((0, 0), (0,) * len(keys), (), (), (), ()) for keys in self.tasks)
        saved = tasks if self.budget[3] else ()
        logs = ((0, ()),) * len(tasks)
        tso = len(self.keys)
        return World(tso, (NONE,) * tso, regions, (), (0, 1), ((), ()), tasks, saved, logs, *self.budget)

    def violations(self, state: Any) -> list[str]:
        """What readers are served, compared with what was committed."""
        if state.stopped:
            return [f"a task stops at transaction {state.stopped - 1}, although no store broke a promise"]
        lowest = min if "lowest_task" in self.rules else max
        served = lowest(durable for durable, _ in state.logs)
        broken = []
        for keys, (_, rows) in zip(self.tasks, state.logs, strict=True):
            committed = [(state.commit_ts(n), n) for n, txn in enumerate(state.txns) if txn >= CHOSEN]
            truth = [n for ts, n in sorted(committed) if ts <= served and self.keys[n] in keys]
            shown = [n for n in rows if state.commit_ts(n) <= served]
            if shown != truth:
                broken.append(f"served up to {served}: the log of keys {keys} has {shown}, committed were {truth}")
        return broken

    def actions(self, state: Any) -> Iterator[tuple[str, World]]:
        """In the upstream, in pushers and in the sorter."""
        yield from self._transactions(state)
        if state.cuts:
            yield from self._cuts(state)
        yield from self._subscriptions(state)
        for t in range(len(state.tasks)):
            yield from self._takes(state, t)
            yield from self._flushes(state, t)
            yield from self._restarts(state, t)

    def _transactions(self, state: World) -> Iterator[tuple[str, World]]:
        now = state.tso + 1
        if now <= self.tso_max:
            yield f"TSO {now}", state._replace(tso=now)
        for n, (txn, key) in enumerate(zip(state.txns, self.keys, strict=True)):
            if txn == NONE and not self._locks(state, key):
                yield f"{n} prewrites", self._written(state, n, OPEN, PREWRITE)
            elif txn == OPEN:
                if now <= self.tso_max:
                    yield f"{n} gets commit_ts {now}", state._replace(tso=now, txns=put(state.txns, n, CHOSEN + now))
                yield f"{n} rolls back", self._written(state, n, ROLLED_BACK, ROLLBACK)
            elif CHOSEN < txn < DONE:
                yield f"{n} commits", self._written(state, n, txn - CHOSEN + DONE, COMMIT)

    def _written(self, state: World, n: int, txn: int, kind: int) -> World:
        led = state.regions[self.keys[n]]
        led = led._replace(rows=(*led.rows, kind + n))
        return state._replace(txns=put(state.txns, n, txn), regions=put(state.regions, self.keys[n], led))

    def _locks(self, state: World, key: int) -> list[int]:
        return [n + 1 for n, txn in enumerate(state.txns) if self.keys[n] == key and (txn & ~31) in (OPEN, CHOSEN)]

    def _cuts(self, state: World) -> Iterator[tuple[str, World]]:
        for store, key, rows in state.left[:1]:
            label = f"store {store} cuts the rows of an ended subscription, cut_ts {state.tso}"
            yield label, self._cut(state, store, (key, rows, (), state.tso))._replace(left=state.left[1:])
        for key, led in enumerate(state.regions):
            if any(led.store == store for store, *_ in state.left):
                continue  # they come first
            locks = self._locks(state, key) if "locks_hold_resolved" in self.rules else []
            top = max(led.resolved, min([state.tso, *locks]))
            cut_ts = state.tso if "cut_after_records" in self.rules else led.resolved
            for ts in range(led.resolved, top + 1) if self.held_back else (top,):
                counts = not led.scan or "counts_when_ready" not in self.rules
                promise = (led.checkpoint, ts) if counts and ts > led.checkpoint else ()
                if not led.rows and (not promise or ts == led.resolved):
                    continue
                is_early = promise and led.rows and "resolved_after_records" not in self.rules
                for end in (len(led.rows), len(led.rows) - 1) if is_early else (len(led.rows),):
                    left = led._replace(resolved=ts if promise else led.resolved, rows=led.rows[end:])
                    after = self._cut(state, led.store, (key, led.rows[:end], promise, cut_ts))
                    label = f"store {led.store} cuts {_named(led.rows[:end])} of key {key}, promise {promise}"
                    yield f"{label}, cut_ts {cut_ts}", after._replace(regions=put(state.regions, key, left))

    def _cut(self, state: World, store: int, file: State) -> World:
        at = state.pushers[store]
        return state._replace(files=put(state.files, at, (*state.files[at], file)), cuts=state.cuts - 1)

    def _subscriptions(self, state: World) -> Iterator[tuple[str, World]]:
        frontier = min(durable for durable, _ in state.logs)
        for key, led in enumerate(state.regions):
            if led.scan:
                ready = led._replace(scan=(), rows=led.rows + led.scan[1:])
                label = f"the opening scan of key {key} sends {_named(led.scan[1:])}"
                yield label, state._replace(regions=put(state.regions, key, ready))
            for ts in {frontier, state.tso} if state.moves else ():  # also above the frontier: then its rows wait
                regions = put(state.regions, key, self._opened(state, key, 1 - led.store, ts))
                left = (*state.left, (led.store, key, led.rows)) if led.rows else state.left
                label = f"store {1 - led.store} leads key {key}, checkpoint_ts {ts}"
                yield label, state._replace(regions=regions, left=left, moves=state.moves - 1)
        for store in (0, 1) if state.deaths else ():
            if any(led.store == store for led in state.regions) or any(one[0] == store for one in state.left):
                regions = tuple(
                    self._opened(state, key, store, frontier) if led.store == store else led
                    for key, led in enumerate(state.regions)
                )
                yield (
                    f"the pusher of store {store} dies and starts again, checkpoint_ts {frontier}",
                    state._replace(
                        regions=regions,
                        left=tuple(one for one in state.left if one[0] != store),
                        pushers=put(state.pushers, store, len(state.files)),
                        files=(*state.files, ()),
                        tasks=tuple(task._replace(positions=(*task.positions, 0)) for task in state.tasks),
                        saved=tuple(task._replace(positions=(*task.positions, 0)) for task in state.saved),
                        deaths=state.deaths - 1,
                    ),
                )

    def _opened(self, state: World, key: int, store: int, checkpoint: int) -> Led:
        """A new subscription, with what its opening scan finds."""
        above = checkpoint if "scan_from_checkpoint" in self.rules else checkpoint + 1
        scan = [1]
        for n, txn in enumerate(state.txns):
            if self.keys[n] == key and txn > DONE + above:
                scan.append(COMMITTED + n)
            elif self.keys[n] == key and (txn & ~31) in (OPEN, CHOSEN) and "scan_sends_locks" in self.rules:
                scan.append(PREWRITE + n)
        return Led(store, checkpoint, 0, tuple(scan), ())

    def _takes(self, state: World, t: int) -> Iterator[tuple[str, World]]:
        for source, (queue, position) in enumerate(zip(state.files, state.tasks[t].positions, strict=True)):
            for at in (position,) if "files_in_sequence" in self.rules else (position, position + 1):
                if at < len(queue):
                    task = state.tasks[t]
                    task = task._replace(positions=put(task.positions, source, at + 1))
                    stopped = 0
                    if queue[at][0] in self.tasks[t]:
                        task, stopped = self._take(state, task, t, queue[at])
                    label = f"task {t} takes file {at + 1} of incarnation {source}"
                    yield label, state._replace(tasks=put(state.tasks, t, task), stopped=stopped)

    def _flushes(self, state: World, t: int) -> Iterator[tuple[str, World]]:
        task, (durable, rows) = state.tasks[t], state.logs[t]
        lowest = min if "lowest_slice" in self.rules else max
        w = lowest(task.w)
        if w > durable:
            due = sorted((state.commit_ts(n), n) for n in task.ready if state.commit_ts(n) <= w)
            log = (w, rows + tuple(n for _, n in due))
            task = task._replace(ready=tuple(n for n in task.ready if state.commit_ts(n) > w))
            after = state._replace(tasks=put(state.tasks, t, task), logs=put(state.logs, t, log))
            yield f"task {t} flushes up to {w}", after

    def _restarts(self, state: World, t: int) -> Iterator[tuple[str, World]]:
        if not state.restarts:
            return
        if state.saved[t] != state.tasks[t]:
            yield f"task {t} saves", state._replace(saved=put(state.saved, t, state.tasks[t]))
        task, durable = state.saved[t], state.logs[t][0]
        if "restored_commits_leave" in self.rules:
            commits = tuple(n for n in task.commits if state.commit_ts(n) > durable)
            written = set(task.commits).difference(commits)
            task = task._replace(commits=commits, held=tuple(one for one in task.held if one[0] not in written))
        if "restored_rows_leave" in self.rules:
            task = task._replace(ready=tuple(n for n in task.ready if state.commit_ts(n) > durable))
        if "restored_w_stays" not in self.rules:
            task = task._replace(w=tuple(max(w, durable) for w in task.w))
        saved = state.saved if state.restarts > 1 else ()  # nothing is restored any more
        after = state._replace(tasks=put(state.tasks, t, task), saved=saved, restarts=state.restarts - 1)
        yield f"task {t} restarts", after

    def _take(self, state: World, task: Task, t: int, file: State) -> tuple[Task, int]:
        """(the task with a file, the number of the transaction at which it stops plus 1)."""
        key, _, promise, _ = file
        slot, durable = self.tasks[t].index(key), state.logs[t][0]
        waiting = {*task.waiting, (slot, *promise)} if promise else set(task.waiting)
        w = task.w[slot]
        raised = self._raised(waiting, slot, w, durable)
        held, commits, ready = dict(task.held), set(task.commits), list(task.ready)
        known_w = w if "rows_before_watermarks" in self.rules else raised
        stopped = self._admit(state, file, (held, commits, ready), known_w, durable)
        for n in sorted(commits):  # decide
            if self.keys[n] == key and state.commit_ts(n) <= raised:
                commits.discard(n)
                ready.append(n)
                stopped = stopped or (0 if n in held else n + 1)
                held.pop(n, None)
        for n, last_cut_ts in [*held.items()]:
            limit = last_cut_ts if "dead_by_cut_ts" in self.rules else n + 1
            is_dead = limit < raised or (limit == raised and "dead_above_cut_ts" not in self.rules)
            if is_dead and self.keys[n] == key and not (n in commits and "waiting_commit_keeps" in self.rules):
                del held[n]
        still = sorted(row for row in waiting if row[0] != slot or row[2] > raised)
        buffers = (tuple(sorted(held.items())), tuple(sorted(commits)), tuple(sorted(ready)))
        return Task(task.positions, put(task.w, slot, raised), *buffers, tuple(still)), stopped

    def _raised(self, waiting: set[State], slot: int, w: int, durable: int) -> int:
        """W with every promise that counts."""
        for at, checkpoint, resolved in sorted(waiting):  # by checkpoint_ts, so that one pass is enough
            if at == slot and (checkpoint <= max(w, durable) or "admission" not in self.rules):
                w = max(w, resolved)
        return w

    def _admit(self, state: World, file: State, buffers: Buffers, w: int, durable: int) -> int:
        """Take the rows of a file; the number of the transaction that contradicts W, plus 1."""
        _, rows, _, cut_ts = file
        held, commits, ready = buffers
        for row in rows:
            kind, n = row & ~7, row & 7
            ts = state.commit_ts(n)
            if kind == PREWRITE:
                held[n] = max(held.get(n, 0), cut_ts)
                continue
            if kind == ROLLBACK:
                held.pop(n, None)
                continue
            is_late = ts <= w and n not in (held if kind == COMMIT else commits)
            is_known = ts <= durable and "written_rows_known" in self.rules
            is_known = is_known or (n in ready and "ready_rows_known" in self.rules)
            if is_late and not (is_known and "duplicates_first" in self.rules):
                return int(n) + 1
            if is_known or kind == COMMITTED:
                held.pop(n, None)
                commits.discard(n)
            if not is_known and kind == COMMITTED:
                ready.append(n)
            elif not is_known and (n in held or "early_commits_wait" in self.rules):
                commits.add(n)
        return 0


def _named(rows: Sequence[int]) -> str:
    return ", ".join(f"{NAMES[row & ~7]} of {row & 7}" for row in rows) or "nothing"
