"""The API server over a built log, spoken to as a client does: without sockets, with a clock that the test holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import orjson
import pyarrow as pa
from starlette.testclient import TestClient

from apiserver.app import create_app
from reading.served.services import Services
from tests.kit.answer_judge import AnswerJudge, judged
from tests.kit.catalog_cases import new_catalog
from tests.kit.log_builder import LogBuilder, recording_end
from tests.kit.manual_clock import ManualClock
from tests.kit.open_folder import OpenFolder
from tests.kit.recording import committed_rows
from tistream import ts as tso
from tistream.catalog.database.engine import Catalog
from tistream.objectstore.protocol import ObjectStore

BASE = "/v1/clusters/1/tenants/1"
ONE_PAGE = 200_000


@dataclass
class ApiWorld:
    """A service and what it stands on. Its time is one second after the recording's end."""

    catalog: Catalog
    store: ObjectStore
    clock: ManualClock
    log: LogBuilder
    services: Services
    http: TestClient
    judge: AnswerJudge

    def get(self, path: str, **params: Any) -> httpx2.Response:
        """GET below the tenant."""
        return self.http.get(BASE + path, params={k.replace("__", "-"): v for k, v in params.items()})

    def ok(self, path: str = "/changes", **params: Any) -> httpx2.Response:
        """As `get`, from the earliest position unless said otherwise; it must succeed."""
        if path.endswith("/changes") and not {"cursor", "snapshot"} & params.keys():
            params.setdefault("start_ts", "earliest")
        answer = self.get(path, **params)
        assert answer.status_code == 200, answer.text
        return answer

    def pages(self, path: str = "/changes", **params: Any) -> Iterator[httpx2.Response]:
        """Pages up to the served watermark."""
        answer = self.ok(path, **params)
        params.pop("start_ts", None)
        while True:
            yield answer
            if not has_more(answer):
                return
            answer = self.ok(path, **{**params, "cursor": next_cursor(answer)})

    def events(self, path: str = "/changes", **params: Any) -> list[dict[str, Any]]:
        """All NDJSON events in the order in which they come."""
        pages = self.pages(path, **{"limit": ONE_PAGE, "format": "ndjson", **params})
        return [event for page in pages for event in events_of(page)]


@contextmanager
def api_world(
    folder: Path,
    store: ObjectStore | None = None,
    rows: pa.Table | None = None,
    builder: Callable[..., LogBuilder] = LogBuilder,
) -> Iterator[ApiWorld]:
    """A service over a SQLite catalog in `folder` and a registered tenant; its log is for the test to build."""
    catalog = new_catalog(folder)
    objects = OpenFolder() if store is None else store
    clock = ManualClock(tso.physical_ms(recording_end()) + 1000)
    log = builder(catalog, objects, rows=committed_rows() if rows is None else rows).register()
    services = Services.create(catalog, objects, clock)
    app = create_app(services)
    judge = judged(app)
    with TestClient(app, raise_server_exceptions=False) as http:
        yield ApiWorld(catalog, objects, clock, log, services, http, judge)
    catalog.close()
    judge.check()


def rows_path(db: str, table: str) -> str:
    return f"/databases/{quote(db, safe='')}/tables/{quote(table, safe='')}/rows"


def events_of(answer: httpx2.Response) -> list[dict[str, Any]]:
    """The objects of a body with one JSON object a line."""
    return [orjson.loads(line) for line in answer.content.split(b"\n") if line.strip()]


def next_cursor(answer: httpx2.Response) -> str:
    """Where the answer ends."""
    return str(answer.headers["TiStream-Next-Cursor"])


def resolved_ts(answer: httpx2.Response) -> int:
    """What was served when it was made."""
    return int(answer.headers["TiStream-Resolved-Ts"])


def has_more(answer: httpx2.Response) -> bool:
    """Whether more was served than the page holds."""
    return str(answer.headers["TiStream-Has-More"]) == "true"


def arrow_of(answer: httpx2.Response) -> pa.Table:
    """The rows of an Arrow body."""
    return pa.ipc.open_stream(answer.content).read_all()
