"""A control plane over HTTP for tests of pushers: what MemoryControl knows, as the service answers it, or a fault.

    with ControlHttp(control, bucket) as http:
        HttpControl(http.url, control.tenant, token="x")
        http.faults["frontier"] = page(404, b"default backend - 404")

A fault is asked by the name of its route: push, begin, issue, newest, frontier, has_seed, add_seed, credentials,
compare, schemas, schema.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson

from tests.kit.memory_control import MemoryControl
from tistream.errors import ObjectNotFound
from tistream.objectstore.layout import SchemaSnapKey, parse, schema_snap_prefix
from tistream.objectstore.memory import MemoryStore

_ROUTES = (
    ("issue", "POST", "stores/([0-9]+)/incarnations"),
    ("end", "POST", "stores/([0-9]+)/incarnations/([0-9]+):end"),
    ("newest", "GET", "stores/([0-9]+)/incarnations"),
    ("frontier", "GET", "frontier"),
    ("push", "GET", "push"),
    ("begin", "POST", "push:begin"),
    ("has_seed", "GET", "seeds"),
    ("add_seed", "POST", "seeds"),
    ("wanted_seeds", "GET", "seeds/wanted"),
    ("credentials", "POST", "push-credentials"),
    ("compare", "POST", "push-objects:compare"),
    ("schemas", "GET", "push-schemas"),
    ("schema", "GET", "push-schemas/([0-9]+)"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpFault:
    """What is answered instead. `words`: what a pusher is expected to say of it."""

    words: str
    answer: Callable[[BaseHTTPRequestHandler, threading.Event], None]  #: the event is set when it is to end


def page(status: int, body: bytes, words: str = "", **headers: str) -> HttpFault:
    """An answer with this status and body."""

    def answer(handler: BaseHTTPRequestHandler, _: threading.Event) -> None:
        _send(handler, status, body, headers)

    return HttpFault(words=words or f"answered {status}", answer=answer)


def problem(status: int, code: str, detail: str) -> HttpFault:
    """A problem document of the service."""
    return page(status, orjson.dumps({"detail": detail, "code": code}), detail)


def silence() -> HttpFault:
    """No answer, though the connection stands."""

    def answer(_: BaseHTTPRequestHandler, end: threading.Event) -> None:
        end.wait(30)

    return HttpFault(words="timed out", answer=answer)


def hang_up(said: bytes = b"") -> HttpFault:
    """The connection ends, behind some bytes that are no HTTP."""

    def answer(handler: BaseHTTPRequestHandler, _: threading.Event) -> None:
        handler.wfile.write(said)
        handler.close_connection = True

    return HttpFault(words="control plane did not answer", answer=answer)


class ControlHttp:
    """Use it as a context."""

    def __init__(self, control: MemoryControl, bucket: MemoryStore) -> None:
        self.control, self._bucket = control, bucket
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.faults: dict[str, HttpFault] = {}  #: by route
        self.hits: Counter[str] = Counter()
        self.keys: set[str] = set()  #: Authorization headers of the requests
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_request(self) -> None:
                outer._handle(self)

            do_GET = do_POST = handle_request

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def __enter__(self) -> ControlHttp:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        self.keys.add(handler.headers.get("Authorization", ""))
        size = int(handler.headers.get("Content-Length") or 0)
        body = orjson.loads(handler.rfile.read(size)) if size else {}
        tenant = self.control.tenant
        root = f"/v1/clusters/{tenant.cluster_id}/tenants/{tenant.tenant_id}/"
        matches = {n: re.fullmatch(re.escape(root) + p, handler.path) for n, m, p in _ROUTES if m == handler.command}
        name, match = next(((n, matched) for n, matched in matches.items() if matched), ("", None))
        if match is None:
            _send(handler, 404, orjson.dumps({"detail": "there is no such route", "code": "TS-1010"}), {})
            return
        fault = self.faults.get(name)
        if fault is not None:
            self.hits[name] += 1
            fault.answer(handler, self._over)
            return
        with self._lock:
            said = getattr(self, f"_{name}")(*map(int, match.groups()), **({"body": body} if body else {}))
        _send(handler, 200, said if isinstance(said, bytes) else orjson.dumps(said), {})

    # -- what the service says -------------------------------------------------------------------------------------

    def _push(self) -> dict[str, Any]:
        bundle = self.control.push_bundle()
        tidb = {"kind": "tidb", "keyspace_id": None, "keyspace_name": None, "start_key": "", "end_key": ""}
        access = {"credentials": {"by": "service"}}
        return {"object_store": bundle.object_store, "state": bundle.state, **access, **tidb}

    def _begin(self, body: dict[str, Any]) -> dict[str, Any]:
        self.control.begin(body["keyspace_id"], int(body["start_ts"]), int(body["upstream_id"]))
        return self._push()

    def _issue(self, store_id: int) -> dict[str, Any]:
        grant = self.control.issue_incarnation(store_id)
        return {"incarnation": grant.incarnation, "max_cut_ts": str(grant.max_cut_ts)}

    def _end(self, store_id: int, incarnation: int, body: dict[str, Any]) -> dict[str, Any]:
        self.control.end_stream(store_id, incarnation, int(body["end_ts"]))
        return {"store_id": store_id, "incarnation": incarnation, "end_ts": body["end_ts"]}

    def _newest(self, store_id: int) -> dict[str, Any]:
        return {"incarnation": self.control.newest_incarnation(store_id)}

    def _frontier(self) -> list[dict[str, Any]]:
        return [
            {
                "start_key": e.range.start.hex(),
                "end_key": e.range.end.hex(),
                "durable_ts": str(e.durable_ts),
                "resubscribe_id": e.resubscribe_id,
            }
            for e in self.control.frontier()
        ]

    def _has_seed(self) -> dict[str, Any]:
        return {"items": [{"ts": str(ts), "table_id": table_id} for ts, table_id in self.control.seeds]}

    def _add_seed(self, body: dict[str, Any]) -> dict[str, Any]:
        self.control.add_seed(int(body["ts"]), int(body["table_id"]))
        return {"ts": body["ts"], "table_id": body["table_id"], "rows": 0, "bytes": 0}

    def _wanted_seeds(self) -> dict[str, Any]:
        return {
            "items": [
                {
                    "table_id": seed.table_id,
                    "database": seed.name.partition(".")[0],
                    "table": seed.name.partition(".")[2],
                    "ddl_ts": str(seed.reads[0].ts - 1),
                    "reads": [{"ts": str(r.ts), "physical_ids": list(r.physical_ids)} for r in seed.reads],
                }
                for seed in self.control.wanted_seeds()
            ]
        }

    def _credentials(self) -> dict[str, Any]:
        return {"access_key_id": "a", "secret_access_key": "b", "session_token": "c", "valid_s": 900, "kms_key_arn": ""}

    def _compare(self, body: dict[str, Any]) -> dict[str, Any]:
        try:
            data = self._bucket.get(body["key"])
        except ObjectNotFound:
            return {"there": "nothing"}
        same = (len(data), hashlib.sha256(data).hexdigest()) == (body["bytes"], body["sha256"])
        return {"there": "same" if same else "other"}

    def _schemas(self) -> dict[str, Any]:
        schemas = [(parse(info.key), info.size) for info in self._bucket.list(schema_snap_prefix(self.control.tenant))]
        return {"items": [{"ts": str(k.ts), "bytes": size} for k, size in schemas if isinstance(k, SchemaSnapKey)]}

    def _schema(self, ts: int) -> bytes:
        return self._bucket.get(str(SchemaSnapKey(tenant=self.control.tenant, ts=ts)))


def _send(handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str]) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
