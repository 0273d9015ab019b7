"""One request of every operation, played to the service over the recording that ships with the package.

    python -m tests.kit.api_examples      write apiserver/openapi/requests.json, and of answers in other media types
                                          than JSON examples.json

Text is cut to its first lines; nothing else is touched. The judge holds the JSON answers against their models.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import zstandard
from fastapi import FastAPI
from starlette.testclient import TestClient

from apiserver.app import create_app
from apiserver.control.push_access import CredentialIssuer, Issued, PushPlace
from apiserver.control.push_policy import PushTerms
from apiserver.negotiate import FORMATS
from reading.kv.formats import FORMATS as ENTRY_FORMATS
from reading.pages.key_rows import FORMATS as KEY_ROWS
from tests.kit.answer_judge import judged
from tests.kit.api_world import BASE, ApiWorld, api_world
from tests.kit.assignments import assign_task
from tests.kit.catalog_cases import elected
from tests.kit.entry_log import Entry, EntryLog, entry_rows
from tests.kit.log_builder import recording_end
from tests.kit.stream_world import served
from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.jobs import JobKind, NewJob
from tistream.catalog.rows.kinds import Keyspace, TenantKind
from tistream.catalog.rows.tenants import TaskKind
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.catalog.work.jobs import enqueue
from tistream.catalog.work.lanes import fail_stretch, list_lanes
from tistream.catalog.work.quarantines import record_quarantine
from tistream.catalog.work.stopped_items import Scope, StoppedItem, list_stopped_items, record_stopped_item
from tistream.catalog.work.stores import issue_incarnation
from tistream.catalog.work.tasks import get_task, list_tasks, stop_task
from tistream.catalog.work.workers import register_worker
from tistream.http.auth.authenticator import Authenticator
from tistream.http.auth.core.roles import Role
from tistream.http.auth.issue import issue_key
from tistream.ids import Tenant
from tistream.model.contradiction import ContradictingRow, Contradiction
from tistream.objectstore.layout import SchemaSnapKey

PLACE = Path(__file__).parents[2] / "apiserver" / "openapi" / "examples.json"
REQUESTS = PLACE.with_name("requests.json")
_LINES = 6
_TABLE = "/databases/shop/tables/customers"
_SCOPES = {"tenant": "", "db": "/databases/shop", "table": _TABLE}

#: (path, query) of reads that need nothing before
_READS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/tenants", {"readers": "true"}),
    (BASE, {}),
    (f"{BASE}/databases", {}),
    (f"{BASE}/databases/shop/tables", {}),
    (f"{BASE}{_TABLE}/definition", {"dialect": "mysql"}),
    (f"{BASE}/files", {"format": "all"}),
    (f"{BASE}/databases/shop/files", {"format": "all"}),
    (f"{BASE}{_TABLE}/files", {"format": "all"}),
    (f"{BASE}/push", {}),
    (f"{BASE}/frontier", {}),
    (f"{BASE}/stores/1/incarnations", {}),
    (f"{BASE}/seeds", {}),
    (f"{BASE}/seeds/wanted", {}),
    (f"{BASE}/ddl", {}),
    (f"{BASE}/schema-diff", {"from_ts": "earliest", "to_ts": "latest"}),
    (f"{BASE}/lag", {}),
    ("/livez", {}),
    ("/readyz", {}),
    ("/healthz", {}),
    ("/version", {}),
    (f"{BASE}/lag", {"why": "true"}),
    *((f"{BASE}{path}/changes/splits", {"start_ts": "earliest", "parts": 2}) for path in _SCOPES.values()),
]


class Operations:
    """The operations of an API's description."""

    def __init__(self, app: FastAPI) -> None:
        self._paths = [
            (method.upper(), re.compile(_pattern(path)), operation["operationId"])
            for path, methods in app.openapi()["paths"].items()
            for method, operation in methods.items()
        ]

    def changing(self) -> set[str]:
        """Those that are no GET."""
        return {name for method, _, name in self._paths if method != "GET"}

    def of(self, request: httpx2.Request) -> str | None:
        """The operation that was asked for."""
        path = path_of(request)
        names = [name for word, pattern, name in self._paths if word == request.method and pattern.fullmatch(path)]
        return names[0] if names else None


def path_of(request: httpx2.Request) -> str:
    return request.url.raw_path.decode().partition("?")[0]


class Requests:
    """Keeps the first request of each operation that was answered well."""

    def __init__(self, app: FastAPI) -> None:
        self._operations = Operations(app)
        self.kept: dict[str, dict[str, Any]] = {}

    def take(self, answer: httpx2.Response) -> None:
        """Look at an answer; a hook of clients."""
        request = answer.request
        name = self._operations.of(request)
        if not answer.is_success or name is None:
            return
        body, path = request.content, path_of(request)
        found = {"path": path, "query": dict(request.url.params), "body": json.loads(body) if body else None}
        self.kept.setdefault(name, found)


def _pattern(path: str) -> str:
    literal = re.split(r"\{[a-z_]+\}", path)
    return (".+" if path.endswith("/files/{name}") else "[^/:]+").join(re.escape(part) for part in literal)


Watch = Callable[[FastAPI, Catalog], Callable[[httpx2.Response], None]]


def record(
    folder: Path, watch: Watch = lambda _app, _catalog: lambda _answer: None
) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, Any]], set[str]]:
    """Operation -> media type -> example of the answer, without JSON; operation -> example of the request; the
    operations whose JSON answers were judged. What `watch` returns sees each answer to the owner's key `me`."""
    with api_world(folder) as world:
        world.log.build(4)
        world.log.seed()
        authenticator = Authenticator(world.catalog, world.services.clock)
        owner = issue_key(world.catalog, name="me", role=Role.OWNER, tenant=None, created_by="").text
        app = create_app(world.services, push=PUSH_PLACE, authenticator=authenticator)
        judge = judged(app)
        requests, look = Requests(app), watch(app, world.catalog)
        world.http.event_hooks = {"response": [requests.take]}
        with TestClient(app) as http:
            http.event_hooks = {"response": [requests.take, look]}
            http.headers["Authorization"] = f"Bearer {owner}"
            for path, query in _READS:
                _ask(http, "GET", path, query)
            found = {"metrics": {"text/plain": _text("text/plain", http.get("/metrics").content)}}
            found |= _posted(http, world)
            _steered(http, world)
            found |= _kept(http, world.catalog)
            _removed(http)
            _keys(http)
        found |= _pulled(world)
        found |= _entries(world)
        with served(create_app(world.services)) as server:
            found |= _streamed(server.url, world, requests)
    return _plain(found), _plain(requests.kept), judge.seen | world.judge.seen


def _plain(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    text = re.sub(r"(tsk_|tsl_)[a-z0-9_]+", r"\1...", json.dumps(dict(sorted(found.items()))))
    text = re.sub(r"file://[^?\"]+", "file:///data/lake", text)
    whole: dict[str, dict[str, Any]] = json.loads(text)
    return whole


def _removed(http: TestClient) -> None:
    """Answers without a body."""
    for path in (f"{BASE}/safe-point/backfill", f"{BASE}/consumers/warehouse", f"{BASE}/push-probes/check-1"):
        _ok(http.delete(path))


class _Issuer(CredentialIssuer):
    """Without an STS."""

    def issue(self, tenant: Tenant) -> Issued:
        at = datetime(2026, 11, 22, 6, tzinfo=UTC)
        return Issued(access_key_id="ASIA...", secret_access_key="...", session_token="...", expires_at=at)


_TERMS = PushTerms(bucket="bucket", prefix="prefix", role_arn="arn:aws:iam::123456789012:role/tistream-pusher")


PUSH_PLACE = PushPlace(url="s3://bucket/prefix", issuer=_Issuer(_TERMS, duration_s=3600))


def shape(value: Any) -> Any:
    """What of an example must stay as it is: names and types, not what they are this time."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


def _posted(http: TestClient, world: ApiWorld) -> dict[str, dict[str, str]]:
    register_tenant(world.catalog, Tenant(1, 9), kind=TenantKind.RAW, keyspace=Keyspace(name="app"))
    task = http.get(BASE).json()["tasks"][0]["task_id"]
    seed = http.get(f"{BASE}/seeds").json()["items"][0]
    asked: list[tuple[str, Any]] = [
        ("/v1/tenants", {"cluster_id": 1, "tenant_id": 2}),
        ("/v1/clusters/1/tenants/9/push:begin", {"keyspace_id": 1}),
        (f"{BASE}/stores/1/incarnations", None),
        (f"{BASE}/stores/1/incarnations/1:end", {"end_ts": "470613540554145793"}),
        (f"{BASE}/tasks/{task}:retry", None),
        (f"{BASE}/seeds", {"ts": seed["ts"], "table_id": seed["table_id"]}),
    ]
    for path, body in asked:
        _ask(http, "POST", path, {}, body)
    return _of_pushers(http, world)


def _of_pushers(http: TestClient, world: ApiWorld) -> dict[str, dict[str, str]]:
    """What pushers with session credentials ask for."""
    snapshot = SchemaSnapKey(tenant=Tenant(1, 1), ts=1)
    data = zstandard.ZstdCompressor().compress(b'{"ts": "1", "schema_version": 0, "dbs": [], "tables": []}')
    world.store.put(str(snapshot), data)
    written = {"key": str(snapshot), "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    packed = _ok(http.get(f"{BASE}/push-schemas/1"))
    _ask(http, "POST", f"{BASE}/push-credentials")
    _ask(http, "POST", f"{BASE}/push-objects:compare", {}, written)
    _ask(http, "GET", f"{BASE}/push-schemas")
    return {"get_pushed_schema": {"application/zstd": _text("application/zstd", packed.content)}}


def _steered(http: TestClient, world: ApiWorld) -> None:
    """What operators see and ask for, of two sorters."""
    for name in ("sorter-1", "sorter-2"):
        register_worker(world.catalog, name, "sorter", "")
    epoch = elected(world.catalog)
    data = [row for row in list_tasks(world.catalog, Tenant(1, 1)) if row.kind is TaskKind.DATA]
    for row in data:
        assign_task(world.catalog, row.task_id, worker_id="sorter-1", seen_epoch=row.epoch, leader_epoch=epoch)
    task, other, tenant = data[0].task_id, data[1].task_id, {"cluster_id": 1, "tenant_id": 1}
    key = {"key": (data[0].range.start + b"\x01").hex(), "dry_run": "true"}
    asked: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", "/v1/tasks", {}),
        ("GET", f"/v1/tasks/{task}", {}),
        ("GET", "/v1/ranges", tenant),
        ("GET", "/v1/owner", {}),
        ("GET", "/v1/workers", {}),
        ("GET", "/v1/workers/sorter-1", {}),
        ("POST", f"/v1/tasks/{task}:move", {"to": "sorter-2"}),
        ("POST", f"/v1/tasks/{task}:split", key),
        ("POST", f"/v1/tasks/{task}:merge", {"with": other, "dry_run": "true"}),
        ("POST", "/v1/workers/sorter-1:drain", {}),
        ("POST", "/v1/workers/sorter-1:undrain", {}),
    ]
    for method, path, query in asked:
        _ask(http, method, path, query)
    stopped = get_task(world.catalog, task)
    stop_task(world.catalog, task, epoch=stopped.epoch, error="a prewrite is missing")
    record_stopped_item(world.catalog, _stopped())
    issue_incarnation(world.catalog, Tenant(1, 1), 1)
    record_quarantine(world.catalog, Tenant(1, 1), task, stopped.epoch, _contradiction(data[0].range.start))
    (stop,) = list_stopped_items(world.catalog)
    why = "160 files of 2 tasks, 9.0 MiB: about 150 requests fewer"
    wanted = NewJob(tenant=Tenant(1, 1), kind=JobKind.MERGE, reason=why)
    (job,) = enqueue(world.catalog, [wanted], leader_epoch=elected(world.catalog))
    asked = [
        ("GET", "/v1/gaps", tenant),
        ("GET", "/v1/stops", {}),
        ("POST", f"/v1/stops/{stop.item_id}:resume", {}),
        ("GET", "/v1/jobs", {}),
        ("GET", f"/v1/jobs/{job}", {}),
        ("POST", f"/v1/jobs/{job}:cancel", {}),
        ("POST", f"/v1/jobs/{job}:retry", {}),
        ("POST", f"/v1/tasks/{task}:retry", {}),
        ("GET", f"{BASE}/quarantines", {}),
        ("POST", f"{BASE}/stores/1:reject", {}),
        ("GET", "/v1/events", {}),
        ("POST", f"{BASE}:pause", {"reason": "the cluster moves"}),
        ("POST", f"{BASE}:resume", {}),
        ("DELETE", BASE, {"dry_run": "true"}),
    ]
    for method, path, query in asked:
        _ask(http, method, path, query)


def _contradiction(key: bytes) -> Contradiction:
    row = ContradictingRow(key=key, start_ts=8, commit_ts=10, region_id=2, promised_ts=20)
    return Contradiction(store_id=1, incarnation=1, seq=7, good_ts=9, promised_ts=20, rows=1, sample=[row])


def _stopped() -> StoppedItem:
    tenant, key = Tenant(1, 1), "schema_snap/x"
    message = f"the schema snapshot {key} is not of the agreed form"
    return StoppedItem(
        role="collection", item=str(tenant), scope=Scope.TENANT, tenant=tenant, code="TS-1020", message=message,
        object=key, tries=3,
    )  # fmt: skip


def _kept(http: TestClient, catalog: Catalog) -> dict[str, dict[str, str]]:
    """How much is kept, and for whom."""
    consumer = f"{BASE}/consumers/warehouse"
    served = http.get(BASE).json()["resolved_ts"]
    asked: list[tuple[str, str, Any]] = [
        ("PATCH", BASE, {"retention_s": 259200}),
        ("GET", f"{BASE}/retention", None),
        ("PUT", f"{BASE}/safe-point/backfill", {"safe_ts": served, "ttl_s": 3600}),
        ("GET", f"{BASE}/safe-point", None),
        ("POST", f"{BASE}/targets", {"target": "s3://lake/tenant-1"}),
        ("GET", f"{BASE}/targets", None),
        ("POST", f"{BASE}/consumers", {"consumer_id": "warehouse", "start_ts": "earliest"}),
        ("GET", f"{BASE}/consumers", None),
        ("PATCH", consumer, {"checkpoint_ts": served}),
        ("POST", f"{consumer}:pause", None),
        ("GET", consumer, None),
    ]
    for method, path, body in asked:
        _ask(http, method, path, {}, body)
    _ask(http, "DELETE", f"{BASE}/targets", {"target": "s3://lake/tenant-1"})
    _replicated(http, catalog, served)
    _ask(http, "POST", f"{consumer}:resume")
    return _consumed(http, consumer)


def _replicated(http: TestClient, catalog: Catalog, to_ts: str) -> None:
    """A changefeed that the service writes: changed, cut anew, and stopped by a refused change."""
    feed = f"{BASE}/changefeeds/lake"
    with tempfile.TemporaryDirectory() as folder:
        uri = f"file://{folder}?protocol=canal-json"
        _ask(http, "POST", f"{BASE}/changefeeds", {}, {"changefeed_id": "lake", "sink_uri": uri})
        _ask(http, "GET", f"{BASE}/changefeeds")
        _ask(http, "GET", feed)
        _ask(http, "GET", f"{feed}/tables")
        _ask(http, "POST", f"{feed}:rebalance", {}, {"lanes": 1})
        _ask(http, "POST", f"{feed}:pause")
        _ask(http, "POST", f"{feed}:update", {}, {"filters": {"tables": "shop.*"}})
        _ask(http, "POST", f"{feed}:resume", {}, {"checkpoint_ts": to_ts})
        for verb in ("retry", "skip"):
            lane = list_lanes(catalog, Tenant(1, 1), "lake")[0]
            refused = {"code": "TS-1101", "message": "A row is refused.", "key": "74", "commit_ts": "1"}
            fail_stretch(catalog, lane, {**refused, "stopped": True})
            named = {} if verb == "retry" else {"key": refused["key"], "commit_ts": refused["commit_ts"]}
            _ask(http, "POST", f"{feed}:{verb}", {}, {"lane": lane.number, **named})
        _ok(http.delete(feed))


def _consumed(http: TestClient, consumer: str) -> dict[str, dict[str, str]]:
    """A member of the consumer reads, and stops."""
    _ask(http, "POST", f"{consumer}:reset", {}, {"to": "earliest"})
    pulled: dict[str, str] = {}
    for word, media in FORMATS.items():
        answer = _ok(http.post(f"{consumer}:pull", params={"member": "loader-1", "format": word, "limit": 10}))
        if word != "json":
            pulled[media] = _text(media, answer.content)
    done, left = {"cursor": answer.headers["TiStream-Next-Cursor"]}, {"member": "loader-1"}
    _ask(http, "POST", f"{consumer}:acknowledge", {}, done)
    _ask(http, "POST", f"{consumer}:leave", {}, left | {"session": int(answer.headers["TiStream-Session"])})
    return {"pull_consumer": pulled}


def _keys(http: TestClient) -> None:
    """Keys, whose secrets `record` takes out."""
    key_id = _ask(http, "POST", "/v1/keys", {}, {"name": "warehouse", "role": "viewer"})["key_id"]
    _ask(http, "GET", "/v1/whoami")
    _ask(http, "GET", "/v1/keys")
    _ask(http, "GET", "/v1/audit-log", {"operation": "create_key"})
    _ask(http, "POST", f"/v1/keys/{key_id}:rotate", {}, {"overlap_s": 86400})
    _ask(http, "DELETE", f"/v1/keys/{key_id}")
    _ask(http, "POST", "/v1/console-codes")


def _ask(http: TestClient, method: str, path: str, query: dict[str, Any] | None = None, body: Any = None) -> Any:
    return _ok(http.request(method, path, params=query, json=body)).json()


def _pulled(world: ApiWorld) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for name, path in _SCOPES.items():
        pulled = found[f"pull_{name}"] = {}
        for word, media in FORMATS.items():
            answer = world.ok(f"{path}/changes", format=word, limit=10)
            if word != "json":
                pulled[media] = _text(media, answer.content)
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


def _entries(world: ApiWorld) -> dict[str, dict[str, str]]:
    """Keys and values of a raw tenant."""
    tenant = Tenant(1, 3)
    writes = [
        Entry(470613530900000001, b"user:1", b"Ada", expire_ts=1795248187),
        Entry(470613530950000001, b"user:2", b"Grace", scanned_from_ts=470613530900000001),
        Entry(470613531000000001, b"user:1", None),
    ]
    log = EntryLog(world.catalog, world.store, tenant=tenant, rows=entry_rows(writes))
    log.build(1, upto=recording_end())
    pulled: dict[str, str] = {}
    for word, media in ENTRY_FORMATS.items():
        query = {"start_ts": "earliest", "format": word, "key_format": "escaped"}
        answer = _ok(world.http.get(f"/v1/clusters/1/tenants/{tenant.tenant_id}/kv/changes", params=query))
        if word != "json":
            pulled[media] = _text(media, answer.content)
    rows: dict[str, str] = {}
    versions: dict[str, str] = {}
    for word, media in KEY_ROWS.items():
        asked = {"format": word, "key_format": "escaped"}
        for examples, path, query in (
            (rows, "rows", {"as_of": str(writes[0].ts)}),
            (versions, "history", {"key": "user:1"}),
        ):
            answer = _ok(world.http.get(f"/v1/clusters/1/tenants/3/kv/{path}", params=asked | query))
            examples[media] = _text(media, answer.content)
    address = f"/v1/clusters/1/tenants/{tenant.tenant_id}/kv/changes/splits"
    _ok(world.http.get(address, params={"start_ts": "earliest", "parts": 2}))
    return {"pull_kv": pulled, "read_kv": rows, "read_kv_history": versions}


def _head(world: ApiWorld, url: str) -> bytes:
    return bytes(_ok(world.http.get(url, headers={"Range": "bytes=0-47"})).content)


def _streamed(url: str, world: ApiWorld, requests: Requests) -> dict[str, dict[str, str]]:
    end = world.log.cuts(50)[0]
    addresses = {f"stream_{name}": f"{BASE}{path}/changes:stream" for name, path in _SCOPES.items()}
    addresses["stream_kv"] = "/v1/clusters/1/tenants/3/kv/changes:stream"
    found: dict[str, dict[str, str]] = {}
    for name, address in addresses.items():
        streamed = found[name] = {}
        for word, framing in (("ndjson", "lines"), ("ndjson", "sse"), ("arrow", "lines")):
            query: dict[str, str | int] = {"start_ts": "earliest", "end_ts": end, "format": word, "framing": framing}
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
        answers, requests, _ = record(Path(folder))
    for place, found in ((PLACE, answers), (REQUESTS, requests)):
        place.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
