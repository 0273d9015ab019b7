"""Lines to copy: how to pull a tenant or a table in four ways, and how to push. Pure.

ORIGIN stands for the address of this service; a page replaces it by the one that the browser uses.
"""

from __future__ import annotations

import shlex

from tistream.ids import Tenant, name_in_path

ORIGIN = "\ue000"  # of Unicode's private use area: in no database name


def pull_snippets(tenant: Tenant, scope: str, *, keyed: bool = False) -> list[dict[str, str]]:
    """How to pull. `scope`: a database, a table as database.table, or "" for the tenant. `keyed`: keys are required
    and taken from TISTREAM_KEY."""
    database, _, table = scope.partition(".")
    path = f"/v1/clusters/{tenant.cluster_id}/tenants/{tenant.tenant_id}"
    path += f"/databases/{name_in_path(database)}" if database else ""
    path += f"/tables/{name_in_path(table)}" if table else ""
    of = f" {shlex.quote(scope)}" if scope else ""
    names = [(name, value) for name, value in (("database", database), ("table", table)) if value]
    python = f".table({scope!r})" if table else f".database({database!r})" if database else ""
    spark = "".join(f", {name}={value!r}" for name, value in names)
    cluster, number = tenant.cluster_id, tenant.tenant_id
    header = '-H "Authorization: Bearer $TISTREAM_KEY" ' if keyed else ""
    return [
        {"name": "curl", "text": f"curl -s {header}'{ORIGIN}{path}/changes?start_ts=earliest&format=ndjson'"},
        {
            "name": "CLI",
            "text": f"tistream pull{of} --cluster {cluster} --tenant {number} --url {ORIGIN} --follow",
        },
        {
            "name": "Python",
            "text": f'import tistream.client as c; tenant = c.connect("{ORIGIN}").tenant({cluster}, {number}); '
            f"print(*tenant{python}.changes(), sep='\\n')",
        },
        {
            "name": "Spark",
            "text": "from pyspark.sql import SparkSession; "
            f'changes = SparkSession.builder.getOrCreate().read.format("tistream").options(url="{ORIGIN}", '
            f"cluster={cluster}, tenant={number}{spark}).load(); changes.show()",
        },
    ]


def keys_snippets(tenant: Tenant, *, keyed: bool = False) -> list[dict[str, str]]:
    """How to pull the keys and values of a raw or txn tenant. `keyed`: as for `pull_snippets`."""
    cluster, number = tenant.cluster_id, tenant.tenant_id
    header = '-H "Authorization: Bearer $TISTREAM_KEY" ' if keyed else ""
    path = f"/v1/clusters/{cluster}/tenants/{number}/kv/changes?start_ts=earliest&format=ndjson&key_format=escaped"
    return [
        {"name": "curl", "text": f"curl -s {header}'{ORIGIN}{path}'"},
        {
            "name": "CLI",
            "text": f"tistream pull --keys --cluster {cluster} --tenant {number} --url {ORIGIN} --follow",
        },
        {
            "name": "Python",
            "text": f'import tistream.client as c; tenant = c.connect("{ORIGIN}").tenant({cluster}, {number}); '
            "print(*tenant.keys().changes(), sep='\\n')",
        },
        {
            "name": "Spark",
            "text": "from pyspark.sql import SparkSession; "
            f'changes = SparkSession.builder.getOrCreate().read.format("tistream").options(url="{ORIGIN}", '
            f"cluster={cluster}, tenant={number}, keys=True).load(); changes.show()",
        },
    ]


def push_snippets(tenant: Tenant, *, keyed: bool = False, tables: bool = True) -> list[dict[str, str]]:
    """How to push: the environment of a pusher, then commands for a live cluster, a log backup or a recording.
    `tables`: it is a tenant of TiDB."""
    named = f"--cluster {tenant.cluster_id} --tenant {tenant.tenant_id}"
    environment = f"export TISTREAM_URL={ORIGIN}" + ("\nexport TISTREAM_KEY=KEY" if keyed else "")
    anywhere = [
        {"name": "Env", "text": environment},
        {"name": "Cluster", "text": f"tistream push --pd HOST:2379 {named}"},
    ]
    if not tables:
        return [*anywhere, {"name": "Recorded", "text": f"tistream push --recording FOLDER {named}"}]
    return [
        *anywhere,
        {"name": "Backup", "text": f"tistream push --log-backup s3://BUCKET/PREFIX {named}"},
        {"name": "Recorded", "text": f"tistream push --capture FOLDER {named}"},
    ]
