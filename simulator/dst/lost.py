"""The catalog is lost, and restored from its newest export, while processes of the one before live.

    lost       the database is gone, and its processes find nothing at its address
    replaced   the same, and the restored database gets that address: what ran before reaches it while it is filled
    cut off    only operators have lost it: its processes go on with it until they see the new generation, which those
               that write to destinations do late

An operator restores into an empty database; at times a second one does so beside him. Either dies on the way at times,
and begins again with another empty database. Pushers and readers are clients: they come to the restored service a while
after it is there. Later the operator confirms it.

    generation   no process of an earlier generation writes to a restored catalog
    needed       what the restored catalog names is in the bucket
    epochs       no two processes act for a task under one epoch, before and after

Every other rule of a run holds, for readers across the restore.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from metaserver import loop
from simulator.dst.aspect import Aspect
from simulator.dst.database import SimCatalog, SimDatabase
from simulator.dst.mutants import replaced
from simulator.dst.oracle import LOWEST
from simulator.dst.running import TENANT, open_generation_of
from tistream.catalog.database.generation import CatalogMissing, RestoreUnfinished
from tistream.catalog.work.exports import confirm_restore, export_status
from tistream.errors import CatalogUnavailable, Fenced
from tistream.exports import restore as restoring
from tistream.exports.exporter import Exporter
from tistream.exports.pieces import Sealing
from tistream.exports.restore import Restored, restore
from tistream.objectstore import generations
from tistream.objectstore.generations import CatalogReplaced
from tistream.objectstore.layout import BatchKey, parse

if TYPE_CHECKING:
    from simulator.dst.running import Running
    from simulator.dst.world import World

HOW = ("lost", "replaced", "cut off")
_SERVICES = ("meta", "dispatcher", "sorter", "compactor", "replicator", "apiserver")
_LOOK_S = 0.4
_PAUSE_S = 2.4  # as much longer than _LOOK_S as those of a deployment
_EXPORT_S = (0.4, 2.0)  # between two exports, in a run
_SILENT_S = (0.0, 4.0)  # without an export before the loss, while sorters and pushers begin again
_LOST_AFTER = (0.3, 0.7)  # of the run


class Lost(Aspect):
    """The databases of one run, its operators, and the rules."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rand = rand = random.Random(f"{world.seed}/lost")
        self._how = rand.choice(HOW)
        self._export_s = rand.choice(_EXPORT_S)
        self._silent_s = rand.choice(_SILENT_S)
        self._exports = True
        self._operators = 1 if self._how == "replaced" else rand.choice((1, 1, 2))
        self._fresh: SimDatabase | None = None  # that was made before a restore
        self._attempts = 0
        self._generation = generations.FIRST
        self._is_confirmed = False
        self._address: SimDatabase = world.database

    # -- hooks

    def meta(self, running: Running) -> Mapping[str, Any]:
        assert running.watch is not None
        exporter = Exporter(running.catalog, running.store, running.watch, keep=3)
        return {"exporter": exporter, "export_interval_s": self._export_s}

    def enter(self, running: Running) -> None:
        if running.role in _SERVICES:
            running.catalog.generation = None
            running.catalog.lead_to(self._address)
            try:
                open_generation_of(running)
            except (RestoreUnfinished, CatalogMissing) as e:  # the supervisor starts it again
                raise Fenced(str(e)) from e

    def roles(self) -> Mapping[str, Callable[[Running], None]]:
        return {"operator": self._restore}

    @contextmanager
    def patched(self) -> Iterator[None]:
        """All times of exports and generations are short."""
        export = loop.MetaWorker.export

        def exporting(worker: loop.MetaWorker) -> None:
            if self._exports:
                export(worker)

        with ExitStack() as stack:
            for module, name, seconds in (
                (loop, "FEATURES_S", 0.5),
                (loop, "EXPORT_LOOK_S", 0.3),
                (generations, "LOOK_S", _LOOK_S),
                (restoring, "PAUSE_S", _PAUSE_S),
            ):
                stack.enter_context(replaced(module, name, seconds))
            stack.enter_context(replaced(loop.MetaWorker, "export", exporting))
            yield

    def start(self) -> None:
        world = self._world
        until = world.actions * world.profile.action_s
        world.scheduler.call_at(world.scheduler.now + until * self._rand.uniform(*_LOST_AFTER), self._lose_soon)

    def has_all(self, upto: int) -> bool:
        """Also, whether it is again where readers were with the one before."""
        del upto
        ((lowest,),) = self._world.database.query(LOWEST)
        return self._is_confirmed and lowest is not None and lowest >= self._world.oracle.served_max

    def due(self) -> list[str]:
        return [] if self._is_confirmed else ["the catalog is not restored"]

    def counts(self) -> dict[str, int]:
        restored = self._generation > generations.FIRST
        return {"restored": int(restored), "attempts": self._attempts, **{how: int(how == self._how) for how in HOW}}

    # -- the loss

    def _lose_soon(self) -> None:
        """Lose the catalog when there is an export: before the first one nothing would come back."""
        world = self._world
        if world.database.query("SELECT 1 FROM catalog_exports"):
            if self._silent_s:
                self._exports = False
                world.crash(("sorter", "pusher"), 0.3)
            world.scheduler.call_at(world.scheduler.now + self._silent_s, self._lose)
        else:
            world.scheduler.call_at(world.scheduler.now + 0.3, self._lose_soon)

    def _lose(self) -> None:
        world = self._world
        self._exports = True
        world.tell(f"the catalog is {self._how}")
        world.database.gone = self._how != "cut off"
        begin = world.scheduler.now + self._rand.random() ** 2 * 3
        if self._how == "replaced":  # a process that starts makes the tables
            world.scheduler.call_at(begin, self._make_anew)
        if self._how == "cut off" and "pause" not in world.without:
            self._pause_writers(begin)
        for number in range(self._operators):
            name = f"operator-{number + 1}"
            later = self._rand.random() * (3 if self._how == "replaced" else 1)
            world.scheduler.call_at(begin + later, partial(self._begin, name))

    def _pause_writers(self, begin: float) -> None:
        """Pause those that write to a destination from before the restore until about its end."""
        s = self._world.scheduler
        for process in (r.process for r in self._world.running if r.role == "replicator"):
            at = max(s.now, begin + self._rand.uniform(-0.3, 0.5))
            s.call_at(at, partial(s.pause, process))
            s.call_at(at + _PAUSE_S + 0.8 + self._rand.random() * 2, partial(s.unpause, process))

    def _make_anew(self) -> None:
        self._empty_database()

    def _begin(self, name: str) -> None:
        self._world.start("operator", name)

    # -- the operator

    def _restore(self, running: Running) -> None:
        """Restore, unless another operator has; then wait for the end of the run."""
        while self._generation == generations.FIRST:
            database = self._fresh or self._empty_database()
            self._fresh = None
            catalog = SimCatalog(database)
            catalog.generation = None
            try:
                made = restore(catalog, running.store, running.clock, sealing=Sealing(), by=running.name)
            except CatalogReplaced as e:
                self._world.tell(f"another operator is faster: {e}")
                running.stopping.wait(5.0)
                continue
            self._serve(database, made)
        running.stopping.wait(self._rand.uniform(0.5, 3.0))
        self._confirm(self._address)
        running.stopping.wait(1e9)

    def _empty_database(self) -> SimDatabase:
        world = self._world
        self._attempts += 1
        database = SimDatabase(
            world.scheduler, world.dice["catalog"], world.unix_ms, world.tell, number=len(world.databases)
        )
        database.boundaries = world.boundaries
        database.on_commit = lambda: self.look(database.query)
        world.databases.append(database)
        if self._how == "replaced":
            self._address = self._fresh = database
            for running in world.running:
                if running.role in _SERVICES and not running.process.dead:
                    running.catalog.lead_to(database)
        return database

    def _serve(self, database: SimDatabase, made: Restored) -> None:
        """The services that start from now on, and in a while the clients, use the restored catalog."""
        world = self._world
        self._generation = database.generation = made.generation
        self._is_confirmed = False
        self._address = database
        for aspect in world.aspects:
            aspect.restored(database, made)
        world.restored(database)
        for what in (*world.oracle.bijection(world.bucket.objects, leftovers=False), *self._missing_files(database)):
            world.oracle.violated(f"needed: {what}")
        world.oracle.rules.more.append(self)
        for running in world.running:
            if running.role not in (*_SERVICES, "operator"):
                moves = world.scheduler.now + self._rand.random()
                world.scheduler.call_at(moves, partial(self._move, running))

    def _missing_files(self, database: SimDatabase) -> Iterator[str]:
        """Batch files that a task has still to read, as its snapshot says, and that are gone although later ones are
        there. Upstreams may have collected what was in them."""
        there: dict[tuple[int, int], set[int]] = {}
        for key in map(parse, self._world.bucket.objects):
            if isinstance(key, BatchKey) and key.tenant == TENANT:
                there.setdefault((key.store_id, key.incarnation), set()).add(key.seq)
        for task_id, store, incarnation, seq, closed in database.query(
            "SELECT task_id, store_id, incarnation, seq, closed FROM snapshot_positions "
            "JOIN tasks USING (task_id) WHERE tenant_id = 1"
        ):
            seqs = there.get((store, incarnation), {0})
            if not closed and (gone := set(range(seq + 1, max(seqs))) - seqs):
                yield f"files {sorted(gone)} of store {store}, incarnation {incarnation}: task {task_id} is at {seq}"

    def _move(self, running: Running) -> None:
        running.catalog.lead_to(self._address)
        running.catalog.generation, running.catalog.identity = self._address.generation, self._address.identity

    def look(self, query: Callable[..., list[Any]]) -> None:
        """After a COMMIT to a catalog that is being restored, or was: as a rule."""
        current = self._world.scheduler.current
        who = next((r for r in self._world.running if current is not None and r.process is current.process), None)
        if who is None or who.role not in _SERVICES:
            return
        ((generation,),) = query("SELECT generation FROM catalog_release")
        if who.catalog.generation != generation:
            self._world.oracle.violated(f"generation: {who.name} of {who.catalog.generation} writes to {generation}")

    def _confirm(self, database: SimDatabase) -> None:
        catalog = SimCatalog(database)
        while not self._is_confirmed:
            try:
                if export_status(catalog).state != "ready":
                    confirm_restore(catalog, actor="operator")
                self._is_confirmed = True
                self._world.tell("the restore is confirmed")
            except CatalogUnavailable:
                self._world.scheduler.sleep(0.2)
