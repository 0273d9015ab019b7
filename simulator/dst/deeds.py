"""An API server that does for an owner what a restore of the catalog must not lose, while the catalog may be lost.

It registers tenants, creates and revokes keys, and deletes tenants, by the functions that the routes call, with the
journal of production (`tistream.exports.journal`). It dies anywhere, often between a transaction and its entry; an
owner without an answer asks again. What was answered is acknowledged. It lasts once its entry is in the journal; where
no entry could be put, once an export has it.

    revoked      a key that was acknowledged as revoked is never valid again
    made         a tenant or key that was acknowledged is there
    deleted      a tenant that was acknowledged as deleted stays deleted, without tasks
    untouched    a tenant or key whose end was never asked for lives, and such a tenant has tasks if its log has begun

Checked when a restore has ended, and at rest.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from simulator.dst.aspect import Aspect
from simulator.dst.database import SimDatabase
from simulator.dst.running import Running, serve
from tistream.admin.actions import delete
from tistream.admin.views import Sources
from tistream.catalog.rows.journal import JournalEntry
from tistream.catalog.rows.kinds import Keyspace, TenantKind
from tistream.catalog.rows.tenants import TenantRow
from tistream.catalog.tenancy.keys import revoke_key
from tistream.catalog.tenancy.tenants import GIVEN_UP, register_tenant
from tistream.errors import ErrorKind, TiStreamError
from tistream.exports.journal import Journal
from tistream.exports.pieces import Sealing
from tistream.exports.restore import Restored
from tistream.http.auth.core.roles import Role
from tistream.http.auth.issue import IssuedKey, issue_key
from tistream.ids import Tenant
from tistream.runtime.service import Repeating

if TYPE_CHECKING:
    from simulator.dst.world import World

T = TypeVar("T")
_TENANTS = [Tenant(1, 40 + n) for n in range(5)]
_DEEDS = ("register", "register", "key", "key", "revoke", "revoke", "revoke", "delete")
_EVERY_S = 0.25
_DIES = 0.15  # of the deeds, within a few requests
_ASKS_AGAIN = 0.7  # of owners without an answer
_REFUSED = (ErrorKind.RETRY, ErrorKind.INVALID, ErrorKind.NOT_FOUND)
_BEGUN = "SELECT generation, exports_begun FROM catalog_release"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """A deed was acknowledged."""

    place: tuple[int, int]  #: generation, and exports that had begun: an export of a higher number has the deed
    is_kept: bool  #: the journal has it


@dataclass(slots=True, kw_only=True)
class _Item:
    """A tenant or key, as its owner knows it."""

    tenant: Tenant | None
    made: list[_Answer] = field(default_factory=list)
    ended: list[_Answer] = field(default_factory=list)  #: it was revoked or deleted
    may_end: bool = False  #: its end was asked for


class _NotedJournal(Journal):
    """The journal of production, which notes that an export was asked for instead."""

    asked = False

    def _ask(self, entry: JournalEntry, error: TiStreamError) -> None:
        self.asked = True
        super()._ask(entry, error)


class Deeds(Aspect):
    """The owner's deeds in one run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rand = random.Random(f"{world.seed}/deeds")
        self._tenants = {tenant: _Item(tenant=tenant) for tenant in _TENANTS}
        self._keys: dict[str, _Item] = {}
        self._again: tuple[str, float] | None = None  # a deed, and what it is about as a share of all
        self._export = (0, 0)  # generation and number of the restored one
        self._generation = 0  # that counts
        self._done = {"register": 0, "key": 0, "revoke": 0, "delete": 0}

    # -- hooks

    def roles(self) -> Mapping[str, Callable[[Running], None]]:
        return {"apiserver": self._run}

    def processes(self) -> Iterable[tuple[str, str]]:
        return [("apiserver", "apiserver-1")]

    def restored(self, database: SimDatabase, made: Restored) -> None:
        self._export, self._generation = (made.export.generation, made.export.export_no), made.generation
        self._check("restored", database.query)

    def at_rest(self) -> None:
        self._check("at rest", self._world.database.query)

    def counts(self) -> dict[str, int]:
        return {f"deeds: {what}": number for what, number in self._done.items()}

    # -- the API server

    def _run(self, running: Running) -> None:
        assert running.watch is not None
        journal = _NotedJournal(running.catalog, running.store, running.watch, Sealing())
        running.catalog.journal = journal

        def step() -> None:
            if not self._world.resting:
                self._do(running, journal)

        serve(running, Repeating("deeds", step, interval_s=_EVERY_S, clock=running.clock))

    def _do(self, running: Running, journal: _NotedJournal) -> None:
        """The next deed, or the one that had no answer."""
        what, which = self._again or (self._rand.choice(_DEEDS), self._rand.random())
        self._again = (what, which) if self._rand.random() < _ASKS_AGAIN else None
        if self._rand.random() < _DIES and "crash_io" not in self._world.without:
            running.process.crash_in = self._rand.randint(1, 9)
        tenant, keys = _TENANTS[int(which * len(_TENANTS))], list(self._keys)
        try:
            match what:
                case "register":
                    self._register(running, journal, tenant)
                case "key":
                    self._issue(running, journal, Role.OPERATOR, None)
                case "revoke" if keys:
                    self._revoke(running, journal, keys[int(which * len(keys))])
                case "delete":
                    self._delete(running, journal, tenant)
        except TiStreamError as e:
            self._world.tell(f"no answer to {what}: {e}")
            if e.kind is not ErrorKind.RETRY:
                self._again = None
            if e.kind not in _REFUSED:
                raise
        else:
            self._again = None

    def _register(self, running: Running, journal: _NotedJournal, tenant: Tenant) -> None:
        of = _kind_of(tenant)

        def register() -> TenantRow:
            return register_tenant(running.catalog, tenant, **of, actor="owner")

        _, answer = self._acknowledged("register", str(tenant), running, journal, register)
        self._tenants[tenant].made.append(answer)
        self._issue(running, journal, Role.PUSHER, tenant)

    def _issue(self, running: Running, journal: _NotedJournal, role: Role, tenant: Tenant | None) -> None:
        def issue() -> IssuedKey:
            return issue_key(running.catalog, name="a key", role=role, tenant=tenant)

        issued, answer = self._acknowledged("key", str(role), running, journal, issue)
        self._keys[issued.row.key_id] = _Item(tenant=tenant, made=[answer])

    def _revoke(self, running: Running, journal: _NotedJournal, key_id: str) -> None:
        item = self._keys[key_id]
        item.may_end = True

        def revoke() -> bool:
            return revoke_key(running.catalog, key_id, actor="owner")

        item.ended.append(self._acknowledged("revoke", key_id, running, journal, revoke)[1])

    def _delete(self, running: Running, journal: _NotedJournal, tenant: Tenant) -> None:
        item, sources = self._tenants[tenant], Sources(catalog=running.catalog, clock=running.clock)
        item.may_end = True

        def delete_it() -> dict[str, Any]:
            return delete(sources, tenant, reason="", dry_run=False, actor="owner")

        item.ended.append(self._acknowledged("delete", str(tenant), running, journal, delete_it)[1])

    def _acknowledged(
        self, what: str, item: str, running: Running, journal: _NotedJournal, do: Callable[[], T]
    ) -> tuple[T, _Answer]:
        """Do it, and note its answer. An export that has begun since the transaction counts as one without the deed."""
        journal.asked = False
        done = do()
        ((generation, begun),) = running.catalog.query(_BEGUN)
        self._done[what] += 1
        self._world.tell(f"acknowledged: {what} {item}" + (", an export is asked for" if journal.asked else ""))
        return done, _Answer(place=(generation, begun), is_kept=not journal.asked and begun > 0)

    # -- rules

    def _lasts(self, answers: Iterable[_Answer]) -> bool:
        """Whether the catalog that counts must have the deed."""
        return any(a.is_kept or a.place < self._export or a.place[0] >= self._generation for a in answers)

    def _check(self, when: str, query: Callable[..., list[Any]]) -> None:
        for tenant, item in self._tenants.items():
            states = [state for (state,) in query("SELECT state FROM tenants WHERE tenant_id = ?", tenant.tenant_id)]
            ((tasks,),) = query("SELECT count(*) FROM tasks WHERE tenant_id = ?", tenant.tenant_id)
            is_deleted, now = bool(set(states) & set(GIVEN_UP)), f"is {states} with {tasks} tasks"
            lacks_tasks = _kind_of(tenant)["kind"] is TenantKind.RAW and not tasks
            if self._lasts(item.ended) and (not is_deleted or tasks):
                self._violated(when, f"tenant {tenant} was deleted, and {now}")
            if self._lasts(item.made) and not states:
                self._violated(when, f"tenant {tenant} was registered, and {now}")
            if self._lasts(item.made) and not item.may_end and (is_deleted or lacks_tasks):
                self._violated(when, f"tenant {tenant} {now}, its end was never asked for")
        for key_id, item in self._keys.items():
            revoked = [ms > 0 for (ms,) in query("SELECT revoked_ms FROM api_keys WHERE key_id = ?", key_id)]
            may_end = item.may_end or (item.tenant is not None and self._tenants[item.tenant].may_end)
            if self._lasts(item.ended) and revoked == [False]:
                self._violated(when, f"key {key_id} was revoked, and is valid again")
            if self._lasts(item.made) and not revoked:
                self._violated(when, f"key {key_id} was created, and is not there")
            if not may_end and revoked == [True]:
                self._violated(when, f"key {key_id} is revoked, its end was never asked for")

    def _violated(self, when: str, what: str) -> None:
        self._world.oracle.violated(f"journal: {when}: {what}")


def _kind_of(tenant: Tenant) -> dict[str, Any]:
    """What it is registered as: a keyspace, whose log begins at once, or tables, which await a schema snapshot."""
    if tenant.tenant_id % 2:
        return {"kind": TenantKind.TIDB}
    return {"kind": TenantKind.RAW, "keyspace": Keyspace(id=tenant.tenant_id)}
