"""Two tenants that replicate into one recovery cluster: each with its own keys, over HTTP with keys of their own."""

from __future__ import annotations

from pathlib import Path

import httpx2

from simulator.raw_workload import RawProfile, raw_cluster
from simulator.serve.served import ServedCluster
from tests.kit.auth_site import auth_site
from tistream import ts as tso
from tistream.catalog.tenancy.kinds import Keyspace, TenantKind
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.clock import SystemClock
from tistream.http.auth.core.roles import Role
from tistream.ids import Tenant
from tistream.tikv.core.api_versions import Api

HERS, HIS = Tenant(31, 1), Tenant(47, 1)


def test_the_keys_of_another_tenant_are_not_written_and_its_name_is_not_told(tmp_path: Path) -> None:
    model = raw_cluster(RawProfile(keyspaces=(1,)), floor_ts=tso.compose(SystemClock().unix_ms()), regions=3)
    with auth_site(tmp_path) as site, ServedCluster(model, api=Api.V2, keyspaces={"app": 1}) as recovery:
        for tenant in (HERS, HIS):
            register_tenant(site.parts.catalog, tenant, kind=TenantKind.RAW, keyspace=Keyspace(id=1))
        hers, his = (site.key(Role.TENANT_ADMIN, tenant) for tenant in (HERS, HIS))

        def create(tenant: Tenant, key: str, name: str, **keys: str) -> httpx2.Response:
            path = f"/v1/clusters/{tenant.cluster_id}/tenants/{tenant.tenant_id}/changefeeds"
            new = {"changefeed_id": name, "sink_uri": f"tikv://{recovery.pd_address}", "keys": keys}
            return site.ask("POST", path, key, json=new)

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
