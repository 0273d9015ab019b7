"""Epochs and the ordered commit: with stale owners and late requests, each change is in the log once, no state is lost.

A task reads files 1, 2, 3, ... File n brings change n and makes those before it final. Its owner flushes final changes
and saves its state; both are a PUT and then a transaction, each a request that arrives when it likes, or never, also
after its sender was replaced. An owner learns what became of a transaction only by reading the catalog. Meanwhile
another one is assigned and continues from the saved state, batch files are reclaimed, and a collector deletes objects
that the catalog does not show.

Files may be taken again after a restart; how that makes no second row is in `watermarks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.specs.explore import Spec, State, put

RULES = {
    # tistream.catalog.log.committed._advancing, snapshots._switching; mutants no-epoch-guard, stale-snapshot. Without
    # it the log stays complete here, because every owner computes the same rows; the catalog just names a wrong owner
    "epoch_guard": "a transaction moves the task only under the newest epoch",
    # tistream.catalog.log.committed._advancing; mutant no-durable-watermark-guard
    "durable_guard": "a flush moves durable_ts only from the value that its owner has seen",
    # tistream.catalog.work.tasks._assigning; mutants assignment-keeps-epoch, register-keeps-epochs
    "new_epoch": "an assignment raises the epoch",
    # tistream.objectstore.protocol.ObjectStore.put
    "created_once": "a PUT creates an object and never replaces one",
    # sorter.worker.publisher.Publisher._write, then _publish; mutant commit-before-put
    "bytes_first": "an object is in the bucket before a transaction shows it",
    # sorter.worker.publisher.Publisher._read_back (deletes nothing); mutant own-file-deleted
    "own_files_stay": "an owner never deletes what it wrote: the transaction without a reply may still come",
    # sorter.core.sort_buffer.SortBuffer.flushed; mutant taken-rows-leave
    "taken_rows_stay": "rows leave the buffer when they are durable, not when they are handed to a flush",
    # metaserver.collect.Collector._bury, tistream.catalog.log.objects.tombstone; mutant collected-without-tombstone
    "tombstone_first": "an object is deleted only once its row keeps every transaction from showing it",
    # tistream.catalog.log.snapshots.switch_in; mutant torn-snapshot
    "together": "pointer, positions and objects of a saved state switch in one transaction",
    # tistream.catalog.log.snapshots._switching (`seen_n`)
    "in_turn": "a saved state replaces the one that its owner knows, no other",
    # tistream.catalog.log.snapshots.switch_in (`keeps`), sorter.state.saving; mutant kept-unheard
    "kept_is_known": "rows of an earlier save are kept only if the catalog's state refers to their object",
    # tistream.catalog.log.snapshots.switch_in, objects.release; mutant let-go-too-early
    "referred_stays": "an object is released when the task's state refers to it no more",
    # tistream.catalog.log.snapshots.durable_floor, dispatcher.core.ack.reclaimable; mutant reclaim-from-memory
    "reclaimed_by_saved": "batch files go up to the saved position, not up to what a sorter has taken",
}

IDLE, PUTTING, FLUSHING, STORING, SAVING = range(5)
FLUSH, SAVE, TORN = range(3)

#: bounds that show each rule
SIZES: dict[str, dict[str, Any]] = {
    "owners": {"owners": 2, "files": 2, "writes": 2, "reloads": 0},
    "retries": {"owners": 1, "files": 2, "writes": 3},
}
LARGE = {"owners": 2, "files": 3, "writes": 3, "reloads": 1}


class Owner(NamedTuple):
    """A process that believes to own the task. The first has number 0."""

    epoch: int
    position: int  #: of the last file taken
    held: State  #: changes taken and not known to be durable
    durable: int  #: as it knows it
    attempted: State  #: every end of a flush that it tried
    seen_n: int  #: number of the saved state that it knows
    kept: State  #: objects that it takes for saved: (key, changes)
    doing: State  #: IDLE, or what it waits for with the key and what it will mean
    written: int  #: objects so far: the next key


class World(NamedTuple):
    """A state. A key is (epoch, number)."""

    epoch: int
    durable: int
    shown: State  #: keys of the log's objects
    saved: State  #: the task's state: number, position, keys
    dead: State  #: keys with a tombstone
    bucket: State  #: (key, changes)
    puts: State  #: requests on their way: (key, changes)
    commits: State  #: (kind, owner, what the transaction says)
    owners: tuple[Owner, ...]
    sweep: State  #: the collector: the key that it judged, and whether it may delete it
    reclaimed: int  #: batch files up to here are deleted
    reloads: int
    usurped: int = 0  #: a former owner has moved the task


class Epochs(Spec):
    """See the module."""

    rules_known = RULES

    def __init__(self, rules: Any = None, *, owners: int, files: int, writes: int, reloads: int = 1) -> None:
        """How many owners there are, one after the other, files, numbers of objects, and restarts of owners."""
        super().__init__(rules)
        self.owners, self.files, self.writes, self.reloads = owners, files, writes, reloads

    def initial(self) -> World:
        """One owner, and nothing taken."""
        owner = Owner(1, 0, (), 0, (), 0, (), (IDLE,), 0)
        return World(1, 0, (), (0, 0, ()), (), (), (), (), (owner,), (), 0, self.reloads)

    def violations(self, state: Any) -> list[str]:
        """What is visible, compared with what was read."""
        bucket = dict(state.bucket)
        lost = [key for key in (*state.shown, *state.saved[2]) if key not in bucket]
        if lost:
            return [f"the objects {lost} are visible and not there"]
        broken = ["a former owner has moved the task"] if state.usurped else []
        log = sorted(change for key in state.shown for change in bucket[key])
        if log != list(range(1, state.durable + 1)):
            broken.append(f"durable up to {state.durable}, and the log has {log}")
        _, position, keys = state.saved
        missing = {*range(state.durable + 1, position + 1)}.difference(*(bucket[key] for key in keys))
        if missing:
            broken.append(f"the saved state at file {position} lacks the changes {sorted(missing)}")
        if state.reclaimed > position:
            broken.append(f"file {state.reclaimed} is deleted, and the saved state is at file {position}")
        return broken

    def actions(self, state: Any) -> Iterator[tuple[str, World]]:
        """Of the owners, of requests on their way, and of who cleans up."""
        if len(state.owners) < self.owners:
            epoch = state.epoch + ("new_epoch" in self.rules)
            owner = self._loaded(state, epoch)
            yield f"owner {len(state.owners)} is assigned", state._replace(epoch=epoch, owners=(*state.owners, owner))
        for n, owner in enumerate(state.owners):
            if owner:
                for label, after in self._owner(state, n, owner):
                    yield f"owner {n} {label}", after
        yield from self._arrivals(state)
        yield from self._collector(state)
        floor = state.saved[1]
        if "reclaimed_by_saved" not in self.rules:
            floor = max([floor, *(owner.position for owner in state.owners if owner)])
        if state.reclaimed < floor:
            yield f"files up to {floor} are reclaimed", state._replace(reclaimed=floor)

    def _loaded(self, state: World, epoch: int) -> Owner:
        """A new owner, or one that begins anew: it may use a key again for which an earlier request is on its way."""
        number, position, keys = state.saved
        files = tuple((key, changes) for key, changes in state.bucket if key in keys)
        pending = tuple(sorted({change for _, changes in files for change in changes if change > state.durable}))
        return Owner(epoch, position, pending, state.durable, (), number, files, (IDLE,), number)

    def _owner(self, state: World, n: int, owner: Owner) -> Iterator[tuple[str, World]]:
        def to(owner: Owner | tuple[()], **others: Any) -> World:
            return state._replace(owners=put(state.owners, n, owner), **others)

        stage, *facts = owner.doing
        if state.reloads and state.epoch == owner.epoch:
            again = to(self._loaded(state, owner.epoch), reloads=state.reloads - 1)
            yield "begins anew from the saved state", again
        if stage == IDLE:
            yield from self._next_step(state, owner, to)
            return
        key = (owner.epoch, owner.written)
        if stage in (PUTTING, STORING):
            next_try = owner._replace(doing=(IDLE,), written=owner.written + 1)
            yield "hears nothing good of its PUT", to(next_try)
            if dict(state.bucket).get(key) == facts[-1] or "bytes_first" not in self.rules:
                kind, doing = (FLUSH, FLUSHING) if stage == PUTTING else (SAVE, SAVING)
                commit = (kind, n, owner.epoch, key, *facts)
                sent = owner._replace(doing=(doing, *facts))
                if kind == FLUSH:
                    sent = sent._replace(attempted=tuple(sorted({*owner.attempted, facts[1]})))
                elif "kept_is_known" not in self.rules:
                    sent = sent._replace(kept=self._after_save(owner, key, facts)[1])
                yield "sends its transaction", to(sent, commits=tuple(sorted((*state.commits, commit))))
            return
        idle = owner._replace(doing=(IDLE,), written=owner.written + 1)
        label = "reads what became of its transaction"
        if stage == FLUSHING and state.epoch == owner.epoch and state.durable in owner.attempted:
            later = tuple(end for end in owner.attempted if end > state.durable)
            pending = tuple(change for change in owner.held if change > state.durable)
            yield f"{label}: durable", to(idle._replace(durable=state.durable, held=pending, attempted=later))
        elif stage == SAVING and state.epoch == owner.epoch and key in state.saved[2]:
            seen_n, files = self._after_save(owner, key, facts)
            yield f"{label}: saved", to(idle._replace(seen_n=seen_n, kept=files))
        elif state.epoch == owner.epoch and state.durable == owner.durable:
            bucket = state.bucket
            if "own_files_stay" not in self.rules:
                bucket = tuple(one for one in bucket if one[0] != key)
            yield f"{label}: not done", to(idle, bucket=bucket)
        else:
            yield f"{label}: it was replaced", to(())

    def _next_step(self, state: World, owner: Owner, to: Any) -> Iterator[tuple[str, World]]:
        file = owner.position + 1
        if file <= self.files and file > state.reclaimed:
            yield f"takes file {file}", to(owner._replace(position=file, held=(*owner.held, file)))
        if owner.written == self.writes:
            return
        key, end = (owner.epoch, owner.written), owner.position - 1
        if end > owner.durable:
            rows = tuple(change for change in owner.held if owner.durable < change <= end)
            flushing = owner._replace(doing=(PUTTING, owner.durable, end, rows))
            if "taken_rows_stay" not in self.rules:
                flushing = flushing._replace(held=tuple(change for change in owner.held if change > end))
            yield f"flushes {rows}", to(flushing, puts=tuple(sorted((*state.puts, (key, rows)))))
        if owner.position > 0:
            files = tuple(one for one in owner.kept if set(one[1]) & set(owner.held))
            new = tuple(sorted(set(owner.held).difference(*(changes for _, changes in files))))
            keys = tuple(one[0] for one in files)
            saving = owner._replace(doing=(STORING, owner.seen_n, owner.position, keys, new))
            yield f"saves {new} at file {owner.position}", to(saving, puts=tuple(sorted((*state.puts, (key, new)))))

    @staticmethod
    def _after_save(owner: Owner, key: State, facts: Any) -> tuple[int, State]:
        """(number of the saved state, its objects) once a save has succeeded."""
        _, _, keys, new = facts
        return key[1] + 1, (*(one for one in owner.kept if one[0] in keys), (key, new))

    def _arrivals(self, state: World) -> Iterator[tuple[str, World]]:
        for n, (key, changes) in enumerate(state.puts):
            bucket = dict(state.bucket)
            if key not in bucket or "created_once" not in self.rules:
                bucket[key] = changes
            puts = state.puts[:n] + state.puts[n + 1 :]
            yield f"the PUT of {key} arrives", state._replace(bucket=tuple(sorted(bucket.items())), puts=puts)
        for n, commit in enumerate(state.commits):
            kind, owner, epoch, key, *facts = commit
            rest = state._replace(commits=state.commits[:n] + state.commits[n + 1 :])
            after = self._committed(rest, kind, owner, epoch, key, facts)
            label = f"the transaction of owner {owner} about {key}"
            yield (f"{label} is refused", rest) if after is None else (f"{label} commits", after)

    def _committed(self, state: World, kind: int, owner: int, epoch: int, key: State, facts: list[Any]) -> World | None:
        """The catalog after a transaction; None when a guard refuses it."""
        if "epoch_guard" in self.rules and epoch != state.epoch and kind != TORN:
            return None
        usurped = int(owner != len(state.owners) - 1)
        if key in state.dead or key in state.shown or key in state.saved[2]:
            return None
        if kind == FLUSH:
            seen, end, _ = facts
            if "durable_guard" in self.rules and seen != state.durable:
                return None
            shown = tuple(sorted((*state.shown, key)))
            return state._replace(durable=max(end, state.durable), shown=shown, usurped=usurped)
        seen_n, position, keys, _ = facts
        number = state.saved[0]
        if key[1] < number or ("in_turn" in self.rules and seen_n != number):
            return None
        if "kept_is_known" in self.rules and not {*keys} <= {*state.saved[2]}:
            return None
        if kind == SAVE and "together" not in self.rules:
            rest = tuple(sorted((*state.commits, (TORN, owner, epoch, key, *facts))))
            return state._replace(saved=(number, position, state.saved[2]), commits=rest)
        return state._replace(saved=(key[1] + 1, position, (*keys, key)), usurped=usurped)

    def _collector(self, state: World) -> Iterator[tuple[str, World]]:
        if not state.sweep:
            for key, _ in state.bucket:
                if self._may_go(state, key):
                    yield f"the collector finds {key}", state._replace(sweep=(key, 0))
            return
        key, may_delete = state.sweep
        if may_delete or "tombstone_first" not in self.rules:
            bucket = tuple(one for one in state.bucket if one[0] != key)
            yield f"the collector deletes {key}", state._replace(bucket=bucket, sweep=())
        elif self._may_go(state, key):
            dead = tuple(sorted({*state.dead, key}))
            yield f"the collector buries {key}", state._replace(dead=dead, sweep=(key, 1))
        else:
            yield f"the collector leaves {key}", state._replace(sweep=())

    def _may_go(self, state: World, key: State) -> bool:
        referred = state.saved[2] if "referred_stays" in self.rules else state.saved[2][-1:]
        return key not in state.shown and key not in referred
