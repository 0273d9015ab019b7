"""The same question in four ways: lines to copy for a tenant or one of its tables. Pure.

ORIGIN stands where the address of this service belongs: a page puts in what the browser sees.
"""

from __future__ import annotations

import shlex
from urllib.parse import quote

from tistream.ids import Tenant

ORIGIN = "\ue000"  # of Unicode's private use: in no name of a database that anybody gives


def copies(tenant: Tenant, scope: str) -> list[dict[str, str]]:
    """`scope`: a database, a table as database.table, or nothing for the whole tenant."""
    database, _, table = scope.partition(".")
    path = f"/v1/clusters/{tenant.cluster_id}/tenants/{tenant.tenant_id}"
    path += f"/databases/{quote(database, safe='')}" if database else ""
    path += f"/tables/{quote(table, safe='')}" if table else ""
    what = f" {shlex.quote(scope)}" if scope else ""
    names = [(name, value) for name, value in (("database", database), ("table", table)) if value]
    python = "".join(f", {name}={value!r}" for name, value in names)
    spark = "".join(f".option({name!r}, {value!r})" for name, value in names)
    cluster, number = tenant.cluster_id, tenant.tenant_id
    return [
        {"name": "curl", "text": f"curl -s '{ORIGIN}{path}/changes?start_ts=earliest&format=ndjson'"},
        {"name": "CLI", "text": f"tistream pull{what} --cluster {cluster} --tenant {number} --url {ORIGIN} --follow"},
        {
            "name": "Python",
            "text": f'import tistream.client as c; pages = c.connect("{ORIGIN}").pull({cluster}, {number}{python},'
            ' start_ts="earliest", format="arrow"); print(next(pages).arrow())',
        },
        {
            "name": "Spark",
            "text": f'spark.readStream.format("tistream").option("url", "{ORIGIN}").option("cluster", {cluster})'
            f'.option("tenant", {number}){spark}.load()',
        },
    ]
