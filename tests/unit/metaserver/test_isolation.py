"""One tenant fails in one role of the meta server, in each way, and harms no other.

The others are served in the same round and after a restart, the problem and the catalog's stops name the tenant, and it
is served once the cause is gone."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog
import zstandard

from metaserver import activation, collect, deletion, retention
from metaserver.loop import MetaOptions, MetaWorker
from schemas.registry import log_start
from tests.kit.catalog_cases import activate, new_catalog
from tests.kit.hostile_bytes import real_schema
from tests.kit.log_builder import LogBuilder
from tests.kit.manual_clock import ManualClock
from tests.kit.recording import RECORDING
from tests.kit.waiting import eventually
from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.tenants import TenantState
from tistream.catalog.tenancy.tenants import get_tenant, look_up_tenant, register_tenant, set_retention
from tistream.catalog.work.deletion import delete_tenant
from tistream.catalog.work.stopped_items import list_stopped_items, resume_stopped_item
from tistream.clock import SystemClock
from tistream.errors import CorruptObject, StoreRefused, StoreUnavailable, TiStreamError
from tistream.ids import Tenant
from tistream.limits import SNAPSHOT_SMALL_BYTES
from tistream.model.problem import Problem
from tistream.objectstore.layout import BatchKey, CommittedKey, SchemaSnapKey
from tistream.objectstore.memory import MemoryStore
from tistream.objectstore.protocol import Admit, ObjectInfo
from tistream.runtime.containment import STOPPED_MAX_S

BAD, GOOD, LATER = Tenant(7, 5), (Tenant(7, 4), Tenant(7, 6)), Tenant(7, 7)
_WHOLE = orjson.loads((RECORDING / "schema_snapshot.json").read_bytes())
SNAPSHOT = orjson.dumps({**_WHOLE, "tables": [t for t in _WHOLE["tables"] if t["info"]["id"] > 110]})
TS = int(_WHOLE["ts"])
ERRORS = [
    StoreUnavailable(key="k"),
    StoreRefused(key="k"),
    CorruptObject("damaged", object="schema/x"),
    TiStreamError("refused by the database"),
    KeyError("dbs"),
    RecursionError("deep"),
]


class Bucket(MemoryStore):
    """Objects of 1970, of which one tenant's cannot be used in one way."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: tuple[str, Exception] | None = None  #: operation, error
        self.listed: set[Tenant] = set()

    def _check(self, operation: str, key: str) -> None:
        if self.fails is not None and self.fails[0] == operation and f"/tenant-{BAD.tenant_id}/" in key:
            raise self.fails[1]

    def get(self, key: str, admit: Admit | None = None) -> bytes:
        self._check("get", key)
        return super().get(key, admit)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        self._check("list", prefix)
        self.listed |= {tenant for tenant in (BAD, *GOOD, LATER) if f"/tenant-{tenant.tenant_id}/" in prefix}
        for info in super().list(prefix, after):
            yield ObjectInfo(key=info.key, size=info.size, modified_ms=0)

    def delete(self, key: str) -> None:
        self._check("delete", key)
        super().delete(key)


@dataclass
class World:
    """A deployment with one meta server."""

    catalog: Catalog
    bucket: Bucket
    clock: ManualClock

    def start(self) -> MetaWorker:
        options = MetaOptions(retention_hours=0, audit_interval_s=0, grace_ms=0)
        worker = MetaWorker(self.catalog, self.bucket, self.clock, "m1", options)
        worker.assign()
        return worker


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Tracebacks of the injected errors are long to write."""
    with structlog.testing.capture_logs():
        yield


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    catalog = new_catalog(tmp_path)
    yield World(catalog, Bucket(), ManualClock())
    catalog.close()


@dataclass(frozen=True)
class Role:
    """What is to be done for a tenant, and how it can fail."""

    run: Callable[[MetaWorker], None]
    prepare: Callable[[World, Tenant], None]
    is_done: Callable[[World, Tenant], bool]
    operations: tuple[str, ...]  #: of the bucket
    patched: tuple[Any, str] | None = None  #: module and function of the catalog that is called for each tenant


def _push(world: World, tenant: Tenant) -> None:
    register_tenant(world.catalog, tenant)
    world.bucket.put(str(SchemaSnapKey(tenant=tenant, ts=TS)), zstandard.compress(SNAPSHOT))


def _leave_orphan(world: World, tenant: Tenant) -> None:
    activate(world.catalog, tenant)
    world.bucket.put(_orphan(tenant), b"x")


def _orphan(tenant: Tenant) -> str:
    return str(CommittedKey(tenant=tenant, sorter="s", incarnation=1, seq=1))


def _give_up(world: World, tenant: Tenant) -> None:
    _leave_orphan(world, tenant)
    world.bucket.put(str(BatchKey(tenant=tenant, store_id=1, incarnation=1, seq=1)), b"x")
    assert delete_tenant(world.catalog, tenant, seen=TenantState.ACTIVE)


def _register(world: World, tenant: Tenant) -> None:
    register_tenant(world.catalog, tenant)


def _is_listed(world: World, tenant: Tenant) -> bool:
    return tenant in world.bucket.listed


ROLES = {
    "activation": Role(
        run=MetaWorker.activate,
        prepare=_push,
        is_done=lambda w, t: get_tenant(w.catalog, t).state is TenantState.ACTIVE,
        operations=("list", "get"),
        patched=(activation, "activate_tenant"),
    ),
    "collection": Role(
        run=MetaWorker.collect,
        prepare=_leave_orphan,
        is_done=lambda w, t: _orphan(t) not in {info.key for info in MemoryStore.list(w.bucket, "")},
        operations=("list", "delete"),
        patched=(collect, "tombstone"),
    ),
    "deletion": Role(
        run=MetaWorker.collect,
        prepare=_give_up,
        is_done=lambda w, t: look_up_tenant(w.catalog, t).state is TenantState.DELETED,
        operations=("list", "delete"),
        patched=(deletion, "finish_deletion"),
    ),
    "audit": Role(run=MetaWorker.audit, prepare=_register, is_done=_is_listed, operations=("list",)),
}
CASES = [
    pytest.param(name, where, error, id=f"{name}-{where}-{type(error).__name__}")
    for name, role in ROLES.items()
    for where in (*role.operations, *(("catalog",) if role.patched else ()))
    for error in (ERRORS if where == "catalog" else ERRORS[:5:2])
]


def break_it(world: World, role: Role, where: str, error: Exception, patch: pytest.MonkeyPatch) -> None:
    if where != "catalog":
        world.bucket.fails = where, error
        return
    assert role.patched is not None
    module, name = role.patched
    whole = getattr(module, name)

    def broken(catalog: Catalog, tenant: Tenant, *more: Any, **named: Any) -> Any:
        if tenant == BAD:
            raise error
        return whole(catalog, tenant, *more, **named)

    patch.setattr(module, name, broken)


def of_bad(worker: MetaWorker) -> list[Problem]:
    return [problem for problem in worker.problems() if problem.source.endswith(f"/{BAD}")]


@pytest.mark.parametrize(("name", "where", "error"), CASES)
def test_one_tenant_that_fails_harms_no_other(
    world: World, name: str, where: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    role, worker = ROLES[name], world.start()
    for tenant in (*GOOD, BAD):
        role.prepare(world, tenant)
    with monkeypatch.context() as patch:
        break_it(world, role, where, error, patch)
        role.run(worker)
        assert all(role.is_done(world, tenant) for tenant in GOOD)
        assert not role.is_done(world, BAD)
        (problem,) = of_bad(worker)
        assert not problem.ends_process
        rows = list_stopped_items(world.catalog)
        assert [row.stopped.tenant for row in rows] == [BAD] * problem.fatal
        assert problem.fatal or isinstance(error, StoreUnavailable)
        if isinstance(error, CorruptObject):
            assert [row.stopped.object for row in rows] == ["schema/x"]
        worker = world.start()  # another process
        role.prepare(world, LATER)
        for _ in range(3):
            role.run(worker)
            world.clock.advance(60)
        assert role.is_done(world, LATER)
        assert of_bad(worker)
    world.bucket.fails = None
    world.clock.advance(2 * STOPPED_MAX_S)
    role.run(worker)
    assert role.is_done(world, BAD)
    assert (of_bad(worker), list_stopped_items(world.catalog)) == ([], [])


@pytest.mark.parametrize(
    "damage",
    [{"dbs": [None]}, {"schema_version": "x"}, {"ts": str(1 << 63)}, {"ts": (1 << 64) - 1}, {"tables": []}],
    ids=str,
)
def test_a_hostile_snapshot_keeps_only_its_own_tenant_waiting(world: World, damage: dict[str, Any]) -> None:
    document = {**orjson.loads(SNAPSHOT), **damage}
    key = SchemaSnapKey(tenant=BAD, ts=int(document["ts"]))
    for tenant in (*GOOD, LATER):
        _push(world, tenant)
    register_tenant(world.catalog, BAD)
    world.bucket.put(str(key), zstandard.compress(orjson.dumps(document)))
    for _ in range(2):  # a process, and another one after it
        worker = world.start()
        worker.activate()
        assert all(get_tenant(world.catalog, t).state is TenantState.ACTIVE for t in (*GOOD, LATER))
        assert get_tenant(world.catalog, BAD).state is TenantState.AWAITING_SNAPSHOT
        (problem,) = of_bad(worker)
        assert problem.contained
        (row,) = list_stopped_items(world.catalog, BAD)
        assert (row.stopped.role, row.stopped.object) == ("activation", str(key))
        assert row.stopped.code == CorruptObject.code
    later = {**orjson.loads(SNAPSHOT), "ts": str(TS + 5)}
    world.bucket.put(str(SchemaSnapKey(tenant=BAD, ts=TS + 5)), zstandard.compress(orjson.dumps(later)))
    world.clock.advance(10)
    worker.activate()
    assert get_tenant(world.catalog, BAD).state is TenantState.ACTIVE
    assert (of_bad(worker), list_stopped_items(world.catalog)) == ([], [])


def test_large_snapshots_are_parsed_aside_one_after_the_other(world: World) -> None:
    large, broken = real_schema(1000), zstandard.compress(b" " * (SNAPSHOT_SMALL_BYTES + 1))
    register_tenant(world.catalog, BAD)
    for ts, data in ((1, broken), (2, broken), (TS, large)):
        world.bucket.put(str(SchemaSnapKey(tenant=BAD, ts=ts)), data)
    _push(world, LATER)
    worker = world.start()
    worker.activate()
    assert get_tenant(world.catalog, LATER).state is TenantState.ACTIVE, "it does not wait for the others"

    def activated() -> bool:
        world.clock.advance(1)
        worker.activate()
        return get_tenant(world.catalog, BAD).state is TenantState.ACTIVE

    eventually(activated)
    assert get_tenant(world.catalog, BAD).start_ts == TS


def test_a_resumed_tenant_is_tried_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    role, worker = ROLES["collection"], world.start()
    role.prepare(world, BAD)
    with monkeypatch.context() as patch:
        break_it(world, role, "catalog", KeyError("x"), patch)
        role.run(worker)
    role.run(worker)
    assert not role.is_done(world, BAD), "it waits"
    (row,) = list_stopped_items(world.catalog)
    assert resume_stopped_item(world.catalog, row.item_id)
    world.clock.advance(1.5)
    worker.assign()
    role.run(worker)
    assert role.is_done(world, BAD)
    assert list_stopped_items(world.catalog) == []


def test_one_object_that_cannot_be_deleted_keeps_no_other(world: World) -> None:
    activate(world.catalog, BAD)
    keys = [str(CommittedKey(tenant=BAD, sorter="s", incarnation=1, seq=seq)) for seq in range(1, 30)]
    for key in keys:
        world.bucket.put(key, b"x")
    undeletable = keys[:12]
    world.bucket._check = lambda operation, key: _refuse(operation, key, undeletable)  # type: ignore[method-assign]
    worker = world.start()
    worker.collect()
    assert [info.key for info in MemoryStore.list(world.bucket, "")] == undeletable
    (problem,) = of_bad(worker)
    assert problem.facts["object"] == undeletable[0]
    assert "12 objects" in problem.message


def _refuse(operation: str, key: str, undeletable: list[str]) -> None:
    if operation == "delete" and key in undeletable:
        raise StoreRefused(key=key)


def test_an_owner_that_lost_its_place_shows_nothing_that_is_not_its_own(world: World) -> None:
    role, worker = ROLES["collection"], world.start()
    role.prepare(world, BAD)
    world.bucket.fails = "list", KeyError("x")
    role.run(worker)
    assert of_bad(worker)
    with world.catalog.transaction() as conn:
        conn.exec_driver_sql("UPDATE leader SET name = 'm2', epoch = epoch + 1")
    worker.assign()
    assert worker.leader_epoch is None
    assert of_bad(worker) == []
    assert [row.stopped.tenant for row in list_stopped_items(world.catalog)] == [BAD]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Bucket]:
    """Tenants with a log, of which each keeps a second."""
    path, bucket = tmp_path_factory.mktemp("built") / "catalog.db", Bucket()
    catalog = Catalog(f"sqlite:///{path}")
    catalog.migrate()
    for tenant in (GOOD[0], BAD, LATER):
        LogBuilder(catalog, bucket, tenant=tenant).build(3)
        set_retention(catalog, tenant, 1)
    catalog.close()
    return path, bucket


@pytest.mark.parametrize("where", ["get", "raise_floor", "retire_below_floor", "list_seeds"])
@pytest.mark.parametrize("error", [ERRORS[0], ERRORS[4]], ids=lambda e: type(e).__name__)
def test_one_tenant_whose_log_cannot_be_given_up_harms_no_other(
    built: tuple[Path, Bucket], tmp_path: Path, where: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(built[0], tmp_path / "catalog.db")
    bucket = Bucket()
    for info in built[1].list(""):
        bucket.put(info.key, built[1].get(info.key))
    world = World(Catalog(f"sqlite:///{tmp_path}/catalog.db"), bucket, ManualClock(SystemClock().unix_ms()))

    def floors() -> dict[Tenant, bool]:
        return {t: get_tenant(world.catalog, t).floor_ts > 0 for t in (GOOD[0], BAD, LATER)}

    module = log_start if where == "list_seeds" else retention
    role = Role(run=MetaWorker.retain, prepare=_push, is_done=_is_listed, operations=(), patched=(module, where))
    worker = world.start()
    with monkeypatch.context() as patch:
        break_it(world, role, "get" if where == "get" else "catalog", error, patch)
        worker.retain()
        assert {t for t, raised in floors().items() if raised} >= {GOOD[0], LATER}
        (problem,) = of_bad(worker)
        assert [row.stopped.tenant for row in list_stopped_items(world.catalog)] == [BAD] * problem.fatal
    bucket.fails = None
    world.clock.advance(STOPPED_MAX_S)
    worker.retain()
    assert all(floors().values())
    assert (of_bad(worker), list_stopped_items(world.catalog)) == ([], [])
    world.catalog.close()
