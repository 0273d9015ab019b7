"""Examples of answers, recorded from the service over the recording that ships with the package.

    python -m tistream.testing.api_examples      write apiserver/openapi/examples.json

Lists are cut to their first two items and text to its first lines; nothing else is touched.
"""

from __future__ import annotations

import base64
import json
import tempfile
from pathlib import Path
from typing import Any

import httpx2
from starlette.testclient import TestClient

from apiserver.app import create_app
from apiserver.negotiate import FORMATS, JSON
from metaserver.routes import control_router
from metaserver.seed_routes import seed_router
from tistream.testing.api_world import BASE, ApiWorld, api_world
from tistream.testing.stream_world import served

PLACE = Path(__file__).parents[2] / "apiserver" / "openapi" / "examples.json"
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
    "livez": ("/livez", {}),
    "readyz": ("/readyz", {}),
    "healthz": ("/healthz", {}),
    "version": ("/version", {}),
    **{f"split_{n}": (f"{BASE}{p}/changes/splits", {"start_ts": "earliest", "parts": 2}) for n, p in _SCOPES.items()},
}


def record(folder: Path) -> dict[str, dict[str, Any]]:
    """Operation -> media type -> example."""
    with api_world(folder) as world:
        world.log.build(4)
        world.log.seed()
        control = [control_router(world.catalog, "s3://bucket/prefix"), seed_router(world.catalog, world.store)]
        with TestClient(create_app(world.services, control)) as http:
            found = {name: {JSON: cut(_ok(http.get(p, params=q)).json())} for name, (p, q) in _JSON_ANSWERS.items()}
            found |= _posted(http, world)
        found |= _pulled(world)
        with served(create_app(world.services)) as server:
            found |= _streamed(server.url, world)
    return dict(sorted(found.items()))


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
    task = http.get(BASE).json()["tasks"][0]["task_id"]
    seed = http.get(f"{BASE}/seeds").json()["items"][0]
    asked = {
        "register_tenant": ("/v1/tenants", {"cluster_id": 1, "tenant_id": 2}),
        "issue_incarnation": (f"{BASE}/stores/1/incarnations", None),
        "retry_task": (f"{BASE}/tasks/{task}:retry", None),
        "add_seed": (f"{BASE}/seeds", {"ts": seed["ts"], "table_id": seed["table_id"]}),
    }
    return {name: {JSON: _ok(http.post(path, json=body)).json()} for name, (path, body) in asked.items()}


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


def _head(world: ApiWorld, url: str) -> bytes:
    return bytes(_ok(world.http.get(url, headers={"Range": "bytes=0-47"})).content)


def _streamed(url: str, world: ApiWorld) -> dict[str, dict[str, Any]]:
    end = world.log.cuts(50)[0]
    found: dict[str, dict[str, Any]] = {}
    for name, path in _SCOPES.items():
        streamed = found[f"stream_{name}"] = {}
        for word, framing in (("ndjson", "lines"), ("ndjson", "sse"), ("arrow", "lines")):
            query = {"start_ts": "earliest", "end_ts": end, "format": word, "framing": framing}
            with httpx2.stream("GET", f"{url}{BASE}{path}/changes:stream", params=query) as answer:
                content = answer.read()
            media = answer.headers["content-type"].split(";")[0]
            lines = content.split(b"\n")
            streamed[media] = _text(media, content if word == "arrow" else b"\n".join(lines[:3] + lines[-6:]))
    return found


def _text(media: str, content: bytes) -> str:
    if "arrow" in media or "parquet" in media or "octet" in media:
        return f"{base64.b64encode(content[:48]).decode()}... (the first 48 bytes, in base64)"
    return "\n".join(line[:2000] for line in content.decode().splitlines()[:_LINES]) + "\n"


def _ok(answer: httpx2.Response) -> httpx2.Response:
    assert answer.is_success, answer.text
    return answer


def main() -> None:
    """Write the file."""
    with tempfile.TemporaryDirectory() as folder:
        text = json.dumps(record(Path(folder)), indent=1, ensure_ascii=False, sort_keys=False)
    PLACE.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
