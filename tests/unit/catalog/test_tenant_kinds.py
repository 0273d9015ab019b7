"""Tenants that are keyspaces: registration, binding and where a recording begins."""

from __future__ import annotations

import pytest

from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.kinds import Keyspace, TenantKind
from tistream.catalog.rows.tenants import TenantState
from tistream.catalog.tenancy.tenants import begin_tenant, register_tenant
from tistream.catalog.work.stores import issue_incarnation
from tistream.catalog.work.tasks import frontier, list_tasks
from tistream.errors import InvalidInput, StateForbids
from tistream.ids import Tenant
from tistream.keyrange import KeyRange

A = Tenant(1, 1)


def test_a_keyspace_with_an_id_is_active_at_once(catalog: Catalog) -> None:
    row = register_tenant(catalog, A, kind=TenantKind.RAW, keyspace=Keyspace(id=1))
    assert (row.state, row.start_ts) == (TenantState.ACTIVE, 0)
    assert row.range == KeyRange(b"r\0\0\1", b"r\0\0\2")
    (entry,) = frontier(catalog, A)
    assert (entry.range, entry.durable_ts) == (row.range, 0)
    assert register_tenant(catalog, A, kind=TenantKind.RAW, keyspace=Keyspace(id=1)) == row
    assert len(list_tasks(catalog, A)) == 1


def test_a_range_of_the_keys_of_transactions(catalog: Catalog) -> None:
    row = register_tenant(
        catalog, A, kind=TenantKind.TXN, keyspace=Keyspace(id=0xFFFFFF), user_keys=KeyRange(b"a", b"b")
    )
    assert row.range == KeyRange(b"x\xff\xff\xffa", b"x\xff\xff\xffb")
    whole = register_tenant(catalog, Tenant(1, 2), kind=TenantKind.TXN, keyspace=Keyspace(id=0xFFFFFF))
    assert whole.range == KeyRange(b"x\xff\xff\xff", b"y")


def test_a_name_is_bound_by_the_first_contact(catalog: Catalog) -> None:
    terms = {"kind": TenantKind.RAW, "keyspace": Keyspace(name="app"), "user_keys": KeyRange(b"a")}
    row = register_tenant(catalog, A, **terms)  # type: ignore[arg-type]
    assert (row.state, row.keyspace.id) == (TenantState.AWAITING_SNAPSHOT, None)
    bound = begin_tenant(catalog, A, 7)
    assert (bound.state, bound.keyspace, bound.start_ts) == (TenantState.ACTIVE, Keyspace(id=7, name="app"), 0)
    assert bound.range == KeyRange(b"r\0\0\7a", b"r\0\0\x08")
    assert begin_tenant(catalog, A, 7) == bound == register_tenant(catalog, A, **terms)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="keyspace 7, and its pusher has keyspace 8"):
        begin_tenant(catalog, A, 8)


def test_a_recording_moves_the_start_before_anything_is_pushed(catalog: Catalog) -> None:
    register_tenant(catalog, A, kind=TenantKind.RAW, keyspace=Keyspace(id=0))
    epoch = list_tasks(catalog, A)[0].epoch
    assert begin_tenant(catalog, A, 0, start_ts=500).start_ts == 500
    (task,) = list_tasks(catalog, A)
    assert (task.start_ts, task.durable_ts) == (500, 500)
    assert task.epoch == epoch + 1, "a sorter that owns it already must load it again"
    assert begin_tenant(catalog, A, 0, start_ts=900).start_ts == 500


def test_the_start_stays_once_a_pusher_has_an_incarnation(catalog: Catalog) -> None:
    register_tenant(catalog, A, kind=TenantKind.RAW, keyspace=Keyspace(id=0))
    issue_incarnation(catalog, A, 1)
    assert begin_tenant(catalog, A, 0, start_ts=500).start_ts == 0
    assert [task.durable_ts for task in list_tasks(catalog, A)] == [0]


def test_a_tenant_stays_what_it_is(catalog: Catalog) -> None:
    register_tenant(catalog, A, kind=TenantKind.RAW, keyspace=Keyspace(id=1))
    for kind, keyspace in ((TenantKind.RAW, Keyspace(id=2)), (TenantKind.TXN, Keyspace(id=1)), (TenantKind.TIDB, None)):
        with pytest.raises(StateForbids, match="kind raw, keyspace 1"):
            register_tenant(catalog, A, kind=kind, keyspace=keyspace or Keyspace())
    register_tenant(catalog, Tenant(1, 2))
    with pytest.raises(InvalidInput, match="schema snapshot"):
        begin_tenant(catalog, Tenant(1, 2), 1)
    with pytest.raises(InvalidInput, match="no keyspace"):
        register_tenant(catalog, Tenant(1, 3), keyspace=Keyspace(id=1))


def test_the_cluster_of_a_tenant_of_tidb_is_the_one_that_its_pusher_has_named_last(catalog: Catalog) -> None:
    before = register_tenant(catalog, A)
    assert before.upstream_id is None
    for upstream_id in (7, 7, 8):
        row = begin_tenant(catalog, A, None, 0, upstream_id)
        assert (row.upstream_id, row.state, row.range) == (upstream_id, before.state, before.range)
