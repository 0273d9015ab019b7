"""Which clusters and keys a keyspace is replicated to, over HTTP: two tenants with one recovery cluster, and clusters
from which transactions are captured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import httpx2
import pytest

from simulator.serve.served import CLUSTER_ID
from tests.kit.auth_site import MINE, Site, auth_site
from tests.kit.lane_feed import keyspaces
from tistream.catalog.rows.kinds import Keyspace, TenantKind
from tistream.catalog.tenancy.targets import allow_target
from tistream.catalog.tenancy.tenants import get_tenant, register_tenant
from tistream.http.auth.core.roles import Role
from tistream.ids import Tenant
from tistream.tikv.core.api_versions import Api

HERS, HIS = Tenant(31, 1), Tenant(47, 1)


def path_of(tenant: Tenant, rest: str = "changefeeds") -> str:
    return f"/v1/clusters/{tenant.cluster_id}/tenants/{tenant.tenant_id}/{rest}"


def first_contact(site: Site, tenant: Tenant, keyspace_id: int | None, upstream_id: int) -> None:
    """What a pusher says when it begins."""
    said = {"keyspace_id": keyspace_id, "upstream_id": str(upstream_id)}
    site.ask("POST", path_of(tenant, "push:begin"), site.key(Role.OWNER), json=said).raise_for_status()


def test_the_keys_of_another_tenant_are_not_written_and_its_name_is_not_told(tmp_path: Path) -> None:
    with auth_site(tmp_path) as site, keyspaces(app=1) as recovery:
        for tenant in (HERS, HIS):
            register_tenant(site.parts.catalog, tenant, kind=TenantKind.RAW, keyspace=Keyspace(id=1))
            allow_target(site.parts.catalog, tenant, "tikv://127.0.0.1")
        hers, his = (site.key(Role.TENANT_ADMIN, tenant) for tenant in (HERS, HIS))

        def create(tenant: Tenant, key: str, name: str, **keys: str) -> httpx2.Response:
            new = {"changefeed_id": name, "sink_uri": f"tikv://{recovery.pd_address}", "keys": keys}
            return site.ask("POST", path_of(tenant), key, json=new)

        made = create(HERS, hers, "dr-of-hers", end_key="6d")
        assert made.status_code == 201, made.text
        refused = create(HIS, his, "dr", start_key="6c", end_key="70")
        assert refused.status_code == 400, refused.text
        assert "A changefeed of another tenant writes to some of the same keys" in refused.json()["detail"]
        assert not any(word in refused.text for word in ("dr-of-hers", str(HERS), "31"))
        named = create(HIS, site.key(Role.OWNER), "dr")
        assert f"Changefeed dr-of-hers of tenant {HERS} writes" in named.json()["detail"]
        made = create(HIS, his, "dr", start_key="6d")
        assert made.status_code == 201, made.text
        mine = create(HIS, his, "again", start_key="7a")
        assert "Changefeed dr writes" in mine.json()["detail"]


@pytest.mark.parametrize("api", [Api.V1, Api.V2])
def test_a_cluster_of_which_tidb_is_captured_is_refused_when_created_and_when_updated(tmp_path: Path, api: Api) -> None:
    """Its id decides: the same address was another cluster's before. With API V1 the keys would lie among TiDB's."""
    with (
        auth_site(tmp_path) as site,
        keyspaces(api=api, app=1) as there,
        keyspaces(CLUSTER_ID + 1, api=api, app=1) as free,
    ):
        owner = site.key(Role.OWNER)
        register_tenant(site.parts.catalog, HERS, kind=TenantKind.RAW, keyspace=Keyspace(id=1))

        def refusal(method: str, path: str, body: Mapping[str, object]) -> str:
            answer = site.ask(method, path, owner, json=body)
            assert (answer.status_code, answer.json()["code"]) == (400, "TS-1106"), answer.text
            assert answer.json()["facts"]["option"] == "sink-uri"
            return str(answer.json()["detail"])

        to_there = {"changefeed_id": "dr", "sink_uri": f"tikv://{there.pd_address}"}
        first_contact(site, MINE, None, CLUSTER_ID)
        detail = refusal("POST", path_of(HERS), to_there)
        assert str(CLUSTER_ID) in detail, "it names the cluster"
        assert f"tenant {MINE} of TiDB" in detail, "and the cause"
        made = site.ask("POST", path_of(HERS), owner, json={**to_there, "sink_uri": f"tikv://{free.pd_address}"})
        assert made.status_code == 201, made.text
        site.ask("POST", path_of(HERS, "changefeeds/dr:pause"), owner).raise_for_status()
        detail = refusal("POST", path_of(HERS, "changefeeds/dr:update"), {"sink_uri": to_there["sink_uri"]})
        assert str(CLUSTER_ID) in detail
        first_contact(site, MINE, None, CLUSTER_ID + 1)
        detail = refusal("POST", path_of(HERS, "changefeeds/dr:update"), {"target_ts": "0"})
        assert str(CLUSTER_ID + 1) in detail, "captured since then"


def test_a_keyspace_of_transactions_is_refused_and_others_of_its_cluster_are_not(tmp_path: Path) -> None:
    with auth_site(tmp_path) as site, keyspaces(app=1, txn=2) as there:
        owner = site.key(Role.OWNER)
        register_tenant(site.parts.catalog, HERS, kind=TenantKind.RAW, keyspace=Keyspace(id=1))
        register_tenant(site.parts.catalog, HIS, kind=TenantKind.TXN, keyspace=Keyspace(id=2))
        first_contact(site, HIS, 2, CLUSTER_ID)

        def create(keyspace: str) -> httpx2.Response:
            uri = f"tikv://{there.pd_address}?keyspace={keyspace}"
            return site.ask("POST", path_of(HERS), owner, json={"changefeed_id": keyspace, "sink_uri": uri})

        refused = create("txn")
        assert (refused.status_code, refused.json()["code"]) == (400, "TS-1106"), refused.text
        assert f"keyspace 2 of cluster {CLUSTER_ID}" in refused.json()["detail"]
        assert f"tenant {HIS} of TxnKV" in refused.json()["detail"]
        made = create("app")
        assert made.status_code == 201, made.text


def test_keys_of_rawkv_beside_those_of_tidb_are_written_back_where_both_are_captured(tmp_path: Path) -> None:
    """Failing back to a cluster with API V2 that has TiDB's tables, too: its keyspace is known as one of RawKV."""
    with auth_site(tmp_path) as site, keyspaces(app=1, new=2) as main:
        owner = site.key(Role.OWNER)
        for tenant, cluster_id in ((HERS, CLUSTER_ID), (HIS, CLUSTER_ID + 1)):
            register_tenant(site.parts.catalog, tenant, kind=TenantKind.RAW, keyspace=Keyspace(id=1))
            first_contact(site, tenant, 1, cluster_id)
        first_contact(site, MINE, None, CLUSTER_ID)
        answers = {}
        for keyspace in ("app", "new"):
            new = {"changefeed_id": keyspace, "sink_uri": f"tikv://{main.pd_address}?keyspace={keyspace}"}
            answers[keyspace] = site.ask("POST", path_of(HIS), owner, json=new).status_code
        assert answers == {"app": 201, "new": 400}


def test_who_is_captured_there_is_told_to_those_who_may_know(tmp_path: Path) -> None:
    with auth_site(tmp_path) as site, keyspaces(app=1) as there:
        register_tenant(site.parts.catalog, HERS, kind=TenantKind.RAW, keyspace=Keyspace(id=1))
        owner, admin = site.key(Role.OWNER), site.key(Role.TENANT_ADMIN, HERS)
        new = {"changefeed_id": "dr", "sink_uri": f"tikv://{there.pd_address}"}
        site.ask("POST", path_of(HERS), owner, json=new).raise_for_status()
        site.ask("POST", path_of(HERS, "changefeeds/dr:pause"), owner).raise_for_status()
        first_contact(site, MINE, None, CLUSTER_ID)
        answer = site.ask("POST", path_of(HERS, "changefeeds/dr:update"), admin, json={"target_ts": "0"})
        assert (answer.status_code, answer.json()["code"]) == (400, "TS-1106"), answer.text
        assert str(MINE) not in answer.json()["detail"]
        allow_target(site.parts.catalog, HERS, "tikv://127.0.0.1")
        own = site.ask("POST", path_of(HERS), admin, json={**new, "changefeed_id": "own"})
        assert (own.status_code, own.json()["code"]) == (403, "TS-1085"), "as for any cluster that is captured"


def test_only_a_pusher_of_keys_names_a_keyspace_when_it_begins(tmp_path: Path) -> None:
    with auth_site(tmp_path) as site:
        register_tenant(site.parts.catalog, HERS, kind=TenantKind.RAW, keyspace=Keyspace(id=1))
        for tenant, said in ((MINE, {"keyspace_id": 1}), (HERS, {"upstream_id": "7"})):
            answer = site.ask("POST", path_of(tenant, "push:begin"), site.key(Role.OWNER), json=said)
            assert (answer.status_code, answer.json()["code"]) == (400, "TS-1001"), answer.text
        assert get_tenant(site.parts.catalog, HERS).upstream_id is None
