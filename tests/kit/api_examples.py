"""Examples of requests and answers, recorded from the service over the recording that ships with the package.

    python -m tests.kit.api_examples      write apiserver/openapi/examples.json and requests.json

Lists are cut to their first two items and text to its first lines; nothing else is touched.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import zstandard
from fastapi import APIRouter, FastAPI
from starlette.testclient import TestClient

from apiserver.app import create_app
from apiserver.negotiate import FORMATS, JSON
from metaserver.push_access import CredentialIssuer, Issued
from metaserver.push_policy import PushTerms
from metaserver.routers import control_routers
from reading.kv.formats import FORMATS as ENTRY_FORMATS
from reading.kv.rows import FORMATS as KEY_ROWS
from tests.kit.api_world import BASE, ApiWorld, api_world
from tests.kit.catalog_cases import elected
from tests.kit.entry_log import Entry, EntryLog, entry_rows
from tests.kit.log_builder import recording_end
from tests.kit.stream_world import served
from tistream.admin.views import Sources
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.kinds import Keyspace, TenantKind
from tistream.catalog.tenancy.tenants import TaskKind, register_tenant
from tistream.catalog.work.job_rows import JobKind, NewJob
from tistream.catalog.work.jobs import enqueue
from tistream.catalog.work.lanes import fail_stretch, list_lanes
from tistream.catalog.work.quarantines import record_quarantine
from tistream.catalog.work.stops import Scope, Stopped, list_stops, record_stop
from tistream.catalog.work.stores import issue_incarnation
from tistream.catalog.work.tasks import assign_task, get_task, list_tasks, stop_task
from tistream.catalog.work.workers import register_worker
from tistream.http.auth.authenticator import Authenticator
from tistream.http.auth.core.roles import Role
from tistream.http.auth.issue import issue_key
from tistream.ids import Tenant
from tistream.model.contradiction import ContradictingRow, Contradiction
from tistream.objectstore.layout import SchemaSnapKey

PLACE = Path(__file__).parents[2] / "apiserver" / "openapi" / "examples.json"
REQUESTS = PLACE.with_name("requests.json")
_ITEMS, _LINES = 2, 6
_TABLE = "/databases/shop/tables/customers"
_SCOPES = {"tenant": "", "db": "/databases/shop", "table": _TABLE}

#: operation -> (path, query) of its JSON answer
_JSON_ANSWERS: dict[str, tuple[str, dict[str, Any]]] = {
    "list_tenants": ("/v1/tenants", {}),
    "get_tenant": (BASE, {}),
    "list_dbs": (f"{BASE}/databases", {}),
    "list_tables": (f"{BASE}/databases/shop/tables", {}),
    "get_definition": (f"{BASE}{_TABLE}/definition", {"dialect": "mysql"}),
    "list_files": (f"{BASE}/files", {"format": "all"}),
    "list_db_files": (f"{BASE}/databases/shop/files", {"format": "all"}),
    "list_table_files": (f"{BASE}{_TABLE}/files", {"format": "all"}),
    "get_push": (f"{BASE}/push", {}),
    "get_frontier": (f"{BASE}/frontier", {}),
    "get_incarnation": (f"{BASE}/stores/1/incarnations", {}),
    "list_seeds": (f"{BASE}/seeds", {}),
    "list_wanted_seeds": (f"{BASE}/seeds/wanted", {}),
    "list_ddl": (f"{BASE}/ddl", {}),
    "diff_schema": (f"{BASE}/schema-diff", {"from_ts": "earliest", "to_ts": "latest"}),
    "get_lag": (f"{BASE}/lag", {}),
    "livez": ("/livez", {}),
    "readyz": ("/readyz", {}),
    "healthz": ("/healthz", {}),
    "version": ("/version", {}),
    **{f"split_{n}": (f"{BASE}{p}/changes/splits", {"start_ts": "earliest", "parts": 2}) for n, p in _SCOPES.items()},
}


class Requests:
    """Keeps the first request of each operation that was answered well."""

    def __init__(self, app: FastAPI) -> None:
        self._paths = [
            (method.upper(), re.compile(_pattern(path)), operation["operationId"])
            for path, methods in app.openapi()["paths"].items()
            for method, operation in methods.items()
        ]
        self.kept: dict[str, dict[str, Any]] = {}

    def take(self, answer: httpx2.Response) -> None:
        """Look at an answer; a hook of clients."""
        request = answer.request
        path, method = request.url.raw_path.decode().partition("?")[0], request.method
        names = [name for word, pattern, name in self._paths if word == method and pattern.fullmatch(path)]
        if not answer.is_success or not names:
            return
        body = request.content
        found = {"path": path, "query": dict(request.url.params), "body": json.loads(body) if body else None}
        self.kept.setdefault(names[0], found)


def _pattern(path: str) -> str:
    literal = re.split(r"\{[a-z_]+\}", path)
    return (".+" if path.endswith("/files/{name}") else "[^/:]+").join(re.escape(part) for part in literal)


def record(folder: Path) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Operation -> media type -> example of the answer; operation -> example of the request."""
    with api_world(folder) as world:
        world.log.build(4)
        world.log.seed()
        authenticator = Authenticator(world.catalog, world.services.clock)
        owner = issue_key(world.catalog, name="me", role=Role.OWNER, tenant=None, made_by="").text
        app = create_app(world.services, _control(world), authenticator=authenticator)
        requests = Requests(app)
        world.http.event_hooks = {"response": [requests.take]}
        with TestClient(app) as http:
            http.event_hooks = {"response": [requests.take]}
            http.headers["Authorization"] = f"Bearer {owner}"
            found = {name: {JSON: cut(_ok(http.get(p, params=q)).json())} for name, (p, q) in _JSON_ANSWERS.items()}
            found["metrics"] = {"text/plain": _text("text/plain", http.get("/metrics").content)}
            found |= _posted(http, world)
            found |= _steered(http, world)
            found |= _kept(http, world.catalog)
            _removed(http)
            found |= _keys(http)
        found |= _pulled(world)
        found |= _entries(world)
        with served(create_app(world.services)) as server:
            found |= _streamed(server.url, world, requests)
    return _plain(found), _plain(requests.kept)


def _plain(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    text = re.sub(r"(tsk_|tsl_)[a-z0-9_]+", r"\1...", json.dumps(dict(sorted(found.items()))))
    whole: dict[str, dict[str, Any]] = json.loads(text)
    return whole


def _removed(http: TestClient) -> None:
    """Answers without a body."""
    for path in (f"{BASE}/safe-point/backfill", f"{BASE}/changefeeds/warehouse", f"{BASE}/push-probes/check-1"):
        _ok(http.delete(path))


class _Issuer(CredentialIssuer):
    """Without an STS."""

    def issue(self, tenant: Tenant) -> Issued:
        at = datetime(2026, 11, 22, 6, tzinfo=UTC)
        return Issued(access_key_id="ASIA...", secret_access_key="...", session_token="...", expires_at=at)


_TERMS = PushTerms(bucket="bucket", prefix="prefix", role_arn="arn:aws:iam::123456789012:role/tistream-pusher")


def _control(world: ApiWorld) -> list[APIRouter]:
    sources = Sources(catalog=world.catalog, clock=world.services.clock)
    issuer = _Issuer(_TERMS, duration_s=3600)
    return control_routers(
        sources, world.store, world.services.log_starts, world.services.registry, "s3://bucket/prefix", issuer
    )


def cut(value: Any) -> Any:
    """The value with short lists."""
    if isinstance(value, list):
        return [cut(each) for each in value[:_ITEMS]]
    return {name: cut(each) for name, each in value.items()} if isinstance(value, dict) else value


def shape(value: Any) -> Any:
    """What of an example must stay as it is: names and types, not what they are this time."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


def _posted(http: TestClient, world: ApiWorld) -> dict[str, dict[str, Any]]:
    register_tenant(world.catalog, Tenant(1, 9), kind=TenantKind.RAW, keyspace=Keyspace(name="app"))
    task = http.get(BASE).json()["tasks"][0]["task_id"]
    seed = http.get(f"{BASE}/seeds").json()["items"][0]
    asked = {
        "register_tenant": ("/v1/tenants", {"cluster_id": 1, "tenant_id": 2}),
        "begin_push": ("/v1/clusters/1/tenants/9/push:begin", {"keyspace_id": 1}),
        "issue_incarnation": (f"{BASE}/stores/1/incarnations", None),
        "end_stream": (f"{BASE}/stores/1/incarnations/1:end", {"end_ts": "470613540554145793"}),
        "retry_task": (f"{BASE}/tasks/{task}:retry", None),
        "add_seed": (f"{BASE}/seeds", {"ts": seed["ts"], "table_id": seed["table_id"]}),
    }
    found = {name: {JSON: _ok(http.post(path, json=body)).json()} for name, (path, body) in asked.items()}
    return found | _of_pushers(http, world)


def _of_pushers(http: TestClient, world: ApiWorld) -> dict[str, dict[str, Any]]:
    """What pushers with session credentials ask for."""
    snapshot = SchemaSnapKey(tenant=Tenant(1, 1), ts=1)
    data = zstandard.ZstdCompressor().compress(b'{"ts": "1", "schema_version": 0, "dbs": [], "tables": []}')
    world.store.put(str(snapshot), data)
    written = {"key": str(snapshot), "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    packed = _ok(http.get(f"{BASE}/push-schemas/1"))
    return {
        "issue_push_credentials": _json(http, "POST", f"{BASE}/push-credentials", {}),
        "compare_pushed_object": _json(http, "POST", f"{BASE}/push-objects:compare", {}, written),
        "list_pushed_schemas": _json(http, "GET", f"{BASE}/push-schemas", {}),
        "get_pushed_schema": {"application/zstd": _text("application/zstd", packed.content)},
    }


def _steered(http: TestClient, world: ApiWorld) -> dict[str, dict[str, Any]]:
    """What operators see and ask for, of two sorters."""
    for name in ("sorter-1", "sorter-2"):
        register_worker(world.catalog, name, "sorter", "")
    epoch = elected(world.catalog)
    data = [row for row in list_tasks(world.catalog, Tenant(1, 1)) if row.kind is TaskKind.DATA]
    for row in data:
        assign_task(world.catalog, row.task_id, worker_id="sorter-1", seen_epoch=row.epoch, leader_epoch=epoch)
    task, other, tenant = data[0].task_id, data[1].task_id, {"cluster_id": 1, "tenant_id": 1}
    key = {"key": (data[0].range.start + b"\x01").hex(), "dry_run": "true"}
    asked: list[tuple[str, str, str, dict[str, Any]]] = [
        ("list_tasks", "GET", "/v1/tasks", {}),
        ("get_task", "GET", f"/v1/tasks/{task}", {}),
        ("list_ranges", "GET", "/v1/ranges", tenant),
        ("get_owner", "GET", "/v1/owner", {}),
        ("list_workers", "GET", "/v1/workers", {}),
        ("get_worker", "GET", "/v1/workers/sorter-1", {}),
        ("move_task", "POST", f"/v1/tasks/{task}:move", {"to": "sorter-2"}),
        ("split_task", "POST", f"/v1/tasks/{task}:split", key),
        ("merge_tasks", "POST", f"/v1/tasks/{task}:merge", {"with": other, "dry_run": "true"}),
        ("drain_worker", "POST", "/v1/workers/sorter-1:drain", {}),
        ("undrain_worker", "POST", "/v1/workers/sorter-1:undrain", {}),
    ]
    found = {name: _json(http, method, path, query) for name, method, path, query in asked}
    stopped = get_task(world.catalog, task)
    stop_task(world.catalog, task, epoch=stopped.epoch, error="a prewrite is missing")
    record_stop(world.catalog, _stopped())
    issue_incarnation(world.catalog, Tenant(1, 1), 1)
    record_quarantine(world.catalog, Tenant(1, 1), task, stopped.epoch, _contradiction(data[0].range.start))
    (stop,) = list_stops(world.catalog)
    why = "160 files of 2 tasks, 9.0 MiB: about 150 requests fewer"
    wanted = NewJob(tenant=Tenant(1, 1), kind=JobKind.MERGE, reason=why)
    (job,) = enqueue(world.catalog, [wanted], leader_epoch=elected(world.catalog))
    asked = [
        ("list_watermark_gaps", "GET", "/v1/gaps", tenant),
        ("list_stops", "GET", "/v1/stops", {}),
        ("resume_stop", "POST", f"/v1/stops/{stop.stop_id}:resume", {}),
        ("list_jobs", "GET", "/v1/jobs", {}),
        ("get_job", "GET", f"/v1/jobs/{job}", {}),
        ("cancel_job", "POST", f"/v1/jobs/{job}:cancel", {}),
        ("retry_job", "POST", f"/v1/jobs/{job}:retry", {}),
        ("retry_stopped_task", "POST", f"/v1/tasks/{task}:retry", {}),
        ("list_quarantines", "GET", f"{BASE}/quarantines", {}),
        ("accept_store", "POST", f"{BASE}/stores/1:accept", {"dry_run": "true"}),
        ("list_amendments", "GET", f"{BASE}/amendments", {}),
        ("reject_store", "POST", f"{BASE}/stores/1:reject", {}),
        ("list_events", "GET", "/v1/events", {}),
        ("pause_tenant", "POST", f"{BASE}:pause", {"reason": "the cluster moves"}),
        ("resume_tenant", "POST", f"{BASE}:resume", {}),
        ("delete_tenant", "DELETE", BASE, {"dry_run": "true"}),
    ]
    return found | {name: _json(http, method, path, query) for name, method, path, query in asked}


def _contradiction(key: bytes) -> Contradiction:
    row = ContradictingRow(key=key, start_ts=8, commit_ts=10, region_id=2, promised_ts=20)
    return Contradiction(store_id=1, incarnation=1, seq=7, good_ts=9, rows=1, sample=[row])


def _stopped() -> Stopped:
    tenant, key = Tenant(1, 1), "schema_snap/x"
    message = f"the schema snapshot {key} is not of the agreed form"
    return Stopped(
        role="collection", item=str(tenant), scope=Scope.TENANT, tenant=tenant, code="TS-1020", message=message,
        object=key, tries=3,
    )  # fmt: skip


def _kept(http: TestClient, catalog: Catalog) -> dict[str, dict[str, Any]]:
    """How much is kept, and for whom."""
    feed = f"{BASE}/changefeeds/warehouse"
    served = http.get(BASE).json()["resolved_ts"]
    asked: list[tuple[str, str, str, Any]] = [
        ("change_tenant", "PATCH", BASE, {"retention_s": 259200}),
        ("get_retention", "GET", f"{BASE}/retention", None),
        ("set_safe_point", "PUT", f"{BASE}/safe-point/backfill", {"safe_ts": served, "ttl_s": 3600}),
        ("get_safe_point", "GET", f"{BASE}/safe-point", None),
        ("create_changefeed", "POST", f"{BASE}/changefeeds", {"changefeed_id": "warehouse", "start_ts": "earliest"}),
        ("list_changefeeds", "GET", f"{BASE}/changefeeds", None),
        ("move_checkpoint", "PATCH", feed, {"checkpoint_ts": served}),
        ("pause_changefeed", "POST", f"{feed}:pause", None),
        ("get_changefeed", "GET", feed, None),
    ]
    found = {name: _json(http, method, path, {}, body) for name, method, path, body in asked}
    found |= _replicated(http, catalog, served)
    _ok(http.post(f"{feed}:resume"))
    return found | _consumed(http, feed)


def _replicated(http: TestClient, catalog: Catalog, to_ts: str) -> dict[str, dict[str, Any]]:
    """A changefeed that the service writes: changed, cut anew, and stopped by a refused change."""
    feed, found = f"{BASE}/changefeeds/lake", dict[str, dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        uri = f"file://{folder}?protocol=canal-json"
        _ok(http.post(f"{BASE}/changefeeds", json={"changefeed_id": "lake", "sink_uri": uri}))
        found["list_changefeed_tables"] = _json(http, "GET", f"{feed}/tables", {}, None)
        found["rebalance_changefeed"] = _json(http, "POST", f"{feed}:rebalance", {}, {"lanes": 1})
        _ok(http.post(f"{feed}:pause"))
        found["update_changefeed"] = _json(http, "POST", f"{feed}:update", {}, {"filters": {"tables": "shop.*"}})
        found["resume_changefeed"] = _json(http, "POST", f"{feed}:resume", {}, {"checkpoint_ts": to_ts})
        for name, verb in (("retry_refused_change", "retry"), ("skip_refused_change", "skip")):
            lane = list_lanes(catalog, Tenant(1, 1), "lake")[0]
            refused = {"code": "TS-1101", "message": "A row is refused.", "key": "74", "commit_ts": "1"}
            fail_stretch(catalog, lane, {**refused, "stopped": True})
            found[name] = _json(http, "POST", f"{feed}:{verb}", {}, {"lane": lane.number})
        _ok(http.delete(feed))
        shown = json.dumps(found).replace(folder, "/var/lib/changes")
    return dict(json.loads(shown))


def _consumed(http: TestClient, feed: str) -> dict[str, dict[str, Any]]:
    """A member of the changefeed reads, and stops."""
    found = {"reset_consumer": _json(http, "POST", f"{feed}:reset", {}, {"to": "earliest"})}
    pulled = found["pull_consumer"] = {}
    for word, media in FORMATS.items():
        answer = _ok(http.get(f"{feed}/changes", params={"member": "loader-1", "format": word, "limit": 10}))
        pulled[media] = cut(answer.json()) if word == "json" else _text(media, answer.content)
    done, left = {"cursor": answer.headers["TiStream-Next-Cursor"]}, {"member": "loader-1"}
    leaving = left | {"session": int(answer.headers["TiStream-Session"])}
    found["acknowledge"] = _json(http, "POST", f"{feed}:acknowledge", {}, done)
    found["leave_consumer"] = _json(http, "POST", f"{feed}:leave", {}, leaving)
    return found


def _keys(http: TestClient) -> dict[str, dict[str, Any]]:
    """Keys, whose secrets `record` takes out."""
    made = _json(http, "POST", "/v1/keys", {}, {"name": "warehouse", "role": "viewer"})
    key_id = made[JSON]["key_id"]
    return {
        "create_key": made,
        "whoami": _json(http, "GET", "/v1/whoami", {}),
        "list_keys": _json(http, "GET", "/v1/keys", {}),
        "rotate_key": _json(http, "POST", f"/v1/keys/{key_id}:rotate", {}, {"overlap_s": 86400}),
        "revoke_key": _json(http, "DELETE", f"/v1/keys/{key_id}", {}),
        "create_console_code": _json(http, "POST", "/v1/console-codes", {}),
    }


def _json(http: TestClient, method: str, path: str, query: dict[str, Any], body: Any = None) -> dict[str, Any]:
    return {JSON: cut(_ok(http.request(method, path, params=query, json=body)).json())}


def _pulled(world: ApiWorld) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, path in _SCOPES.items():
        pulled = found[f"pull_{name}"] = {}
        for word, media in FORMATS.items():
            answer = world.ok(f"{path}/changes", format=word, limit=10)
            pulled[media] = cut(answer.json()) if word == "json" else _text(media, answer.content)
    rows = found["read_rows"] = {}
    for word in ("ndjson", "csv", "arrow", "parquet", "sql"):
        answer = world.ok(f"{_TABLE}/rows", format=word)
        media = answer.headers["content-type"].split(";")[0]
        rows[media] = _text(media, answer.content)
    listed = world.ok("/files", format="all").json()["items"][0]
    found["get_file"] = {"application/octet-stream": _text("application/octet-stream", _head(world, listed["url"]))}
    ts = world.ok("/databases").json()["at_ts"]
    parquet = "application/vnd.apache.parquet"
    found["get_table_file"] = {parquet: _text(parquet, world.ok(f"{_TABLE}/rows/{ts}.parquet").content)}
    return found


def _entries(world: ApiWorld) -> dict[str, dict[str, Any]]:
    """Keys and values of a raw tenant."""
    tenant = Tenant(1, 3)
    writes = [
        Entry(470613530900000001, b"user:1", b"Ada", expire_ts=1795248187),
        Entry(470613530950000001, b"user:2", b"Grace", scanned_from_ts=470613530900000001),
        Entry(470613531000000001, b"user:1", None),
    ]
    log = EntryLog(world.catalog, world.store, tenant=tenant, rows=entry_rows(writes))
    log.build(1, upto=recording_end())
    pulled: dict[str, Any] = {}
    for word, media in ENTRY_FORMATS.items():
        query = {"start_ts": "earliest", "format": word, "key_format": "escaped"}
        answer = _ok(world.http.get(f"/v1/clusters/1/tenants/{tenant.tenant_id}/kv/changes", params=query))
        pulled[media] = cut(answer.json()) if word == "json" else _text(media, answer.content)
    rows: dict[str, Any] = {}
    versions: dict[str, Any] = {}
    for word, media in KEY_ROWS.items():
        asked = {"format": word, "key_format": "escaped"}
        for examples, path, query in (
            (rows, "rows", {"as_of": str(writes[0].ts)}),
            (versions, "history", {"key": "user:1"}),
        ):
            answer = _ok(world.http.get(f"/v1/clusters/1/tenants/3/kv/{path}", params=asked | query))
            examples[media] = _text(media, answer.content)
    address = f"/v1/clusters/1/tenants/{tenant.tenant_id}/kv/changes/splits"
    parts = _ok(world.http.get(address, params={"start_ts": "earliest", "parts": 2})).json()
    split = {"application/json": parts}
    return {"pull_kv": pulled, "split_kv": split, "read_kv": rows, "read_kv_history": versions}


def _head(world: ApiWorld, url: str) -> bytes:
    return bytes(_ok(world.http.get(url, headers={"Range": "bytes=0-47"})).content)


def _streamed(url: str, world: ApiWorld, requests: Requests) -> dict[str, dict[str, Any]]:
    end = world.log.cuts(50)[0]
    addresses = {f"stream_{name}": f"{BASE}{path}/changes:stream" for name, path in _SCOPES.items()}
    addresses["stream_kv"] = "/v1/clusters/1/tenants/3/kv/changes:stream"
    found: dict[str, dict[str, Any]] = {}
    for name, address in addresses.items():
        streamed = found[name] = {}
        for word, framing in (("ndjson", "lines"), ("ndjson", "sse"), ("arrow", "lines")):
            query = {"start_ts": "earliest", "end_ts": end, "format": word, "framing": framing}
            with httpx2.stream("GET", f"{url}{address}", params=query) as answer:
                content = answer.read()
                requests.take(answer)
            media = answer.headers["content-type"].split(";")[0]
            lines = content.split(b"\n")
            streamed[media] = _text(media, content if word == "arrow" else b"\n".join(lines[:3] + lines[3:][-6:]))
    return found


def _text(media: str, content: bytes) -> str:
    if "arrow" in media or "parquet" in media or "octet" in media or "zstd" in media:
        return f"{base64.b64encode(content[:48]).decode()}... (the first 48 bytes, in base64)"
    return "\n".join(line[:2000] for line in content.decode().splitlines()[:_LINES]) + "\n"


def _ok(answer: httpx2.Response) -> httpx2.Response:
    assert answer.is_success, answer.text
    return answer


def main() -> None:
    """Write the files."""
    with tempfile.TemporaryDirectory() as folder:
        answers, requests = record(Path(folder))
    for place, found in ((PLACE, answers), (REQUESTS, requests)):
        place.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
