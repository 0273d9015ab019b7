"""The console as a reader of HTTP sees it: pages, their parts and their `.json`, escaping, vendored files."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

import apiserver.console
from apiserver.app import create_app
from reading.served.services import Process
from tests.kit.api_world import ApiWorld, api_world
from tests.kit.log_builder import TENANT, LogBuilder, recording_end
from tistream.catalog.rows.workers import WorkerKind
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.catalog.work.tasks import list_tasks, stop_task
from tistream.catalog.work.workers import register_worker
from tistream.ids import Tenant
from tistream.objectstore.memory import MemoryStore
from tistream.objectstore.metered import MeteredStore

CONSOLE = Path(apiserver.console.__file__).parent
STATIC = CONSOLE / "static"
HOSTILE = "<script>alert('x')</script> \"quoted\" & {{ 7 * 7 }}"
VOID = {"meta", "link", "img", "input", "br"}


class Markup(HTMLParser):
    """Collects texts and tags, and insists on balanced ones."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        assert not any(name.startswith("on") or name == "style" for name, _ in attrs), "the policy allows no such thing"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    with api_world(tmp_path_factory.mktemp("console")) as new_world:
        new_world.log.build(3)
        register_tenant(new_world.catalog, Tenant(1, 2))
        LogBuilder(new_world.catalog, new_world.store, tenant=Tenant(2, 7)).activate()
        task = list_tasks(new_world.catalog, Tenant(2, 7))[3]
        assert stop_task(new_world.catalog, task.task_id, epoch=task.epoch, error=HOSTILE)
        yield new_world


HTMX: dict[str, Any] = {"HX-Request": "true"}  #: as htmx asks for a part of a page


def page(world: ApiWorld, path: str, status: int = 200, **headers: str) -> Markup:
    answer = world.http.get(path, headers=headers)
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    assert "HX-Request" in answer.headers["Vary"], "a page and its part have one address"
    return Markup(answer.text)


def test_without_tenants_the_first_page_says_how_to_begin(fresh: ApiWorld) -> None:
    with fresh.catalog.transaction() as conn:
        conn.exec_driver_sql("DELETE FROM tenants")
    assert "tistream tenant register" in page(fresh, "/overview").text
    twin = fresh.http.get("/overview.json").json()
    nothing = {"tenants": [], "active": 0, "states": {}, "lag_s_max": None, "lag_p99_s": None, "problems": []}
    assert nothing.items() <= twin.items()
    assert (twin["watermark_gaps"], twin["late"], twin["lines"]) == (0, 0, {})


def test_the_root_leads_to_the_overview(world: ApiWorld) -> None:
    assert world.http.get("/").url.path == "/overview"


def test_the_overview_and_its_twin(world: ApiWorld) -> None:
    twin = world.http.get("/overview.json").json()
    assert twin["tenants"] == world.http.get("/v1/tenants").json()["items"]
    assert twin["active"] == 2
    assert twin["lag_s_max"] == max(t["lag_s"] for t in twin["tenants"] if t["lag_s"] is not None)
    assert [p["message"] for p in twin["problems"]] == [HOSTILE]
    assert twin["states"] == {"ACTIVE": 2, "AWAITING_SNAPSHOT": 1}
    assert sum(twin["states"].values()) == len(twin["tenants"])
    assert twin["watermark_gaps"] == len(world.http.get("/gaps.json").json()["items"])
    active = [t["lag_s"] for t in twin["tenants"] if t["state"] == "ACTIVE"]
    assert min(active) - 60 <= twin["lag_p50_s"] <= twin["lag_p99_s"] <= max(active)
    assert twin["bytes_per_s"] is None, "no sorter runs: nobody knows"
    text = page(world, "/overview").text
    assert str(recording_end()) in text
    assert "awaiting snapshot" in text
    assert "above the 5 s line" in text


def test_the_overview_knows_throughput_and_requests_where_they_are_known(fresh: ApiWorld) -> None:
    before = fresh.http.get("/overview.json").json()["requests"]
    store = MeteredStore(MemoryStore())
    for n in range(3):
        store.put(f"committed/{n}", b"x")
        store.get(f"committed/{n}")
    register_worker(fresh.catalog, "sorter-1", WorkerKind.SORTER, "")
    twin = fresh.http.get("/overview.json").json()
    assert twin["requests"]["count"] == (before["count"] if before else 0) + 6
    assert twin["requests"]["usd"] is None
    assert twin["bytes_per_s"] == 0
    text = page(fresh, "/overview").text
    assert "Throughput" in text
    assert "Bucket requests" in text
    assert "USD" not in text, "the bucket is not on S3: its requests have no price"


def test_the_waterfall_is_the_one_of_the_api(world: ApiWorld) -> None:
    lag = world.http.get("/v1/clusters/1/tenants/1/lag", params={"why": "true"}).json()
    twin = world.http.get("/tenants/1/1/waterfall.json").json()
    assert [s["stages"] for s in twin["stages"]] == [s["stages"] for s in lag["stages"]]
    assert twin["slowest"] == lag["slowest"]
    assert twin["sentence"].partition(" is ")[0] == "Tenant 1/1"
    assert twin["lag_s"] == pytest.approx(lag["lag_s"], abs=60)
    edges = [0.0, *(s["x"] + s["width"] for s in twin["stages"])]
    assert edges == sorted(edges)
    assert edges[-1] == pytest.approx(1000, abs=3)
    waterfall = page(world, "/tenants/1/1/waterfall")
    assert "Tenant 1/1 is " in waterfall.text
    assert f"Slowest: {twin['slowest'].replace('_', ' ').replace('+', ' + ')}" in waterfall.text
    assert "No watermark yet" in page(world, "/tenants/1/2/waterfall").text
    page(world, "/tenants/9/9/waterfall", 404)


def test_lines_to_copy_are_quoted_and_about_the_table_that_is_asked_for(world: ApiWorld) -> None:
    whole = page(world, "/tenants/1/1").text
    assert "/v1/clusters/1/tenants/1/changes?start_ts=earliest" in whole
    assert "tistream pull --cluster 1 --tenant 1 --url" in whole
    of_table = page(world, "/tenants/1/1?table=shop.customers").text
    assert "/databases/shop/tables/customers/changes?start_ts=earliest" in of_table
    assert "database='shop', table='customers'" in of_table
    assert ", database='shop', table='customers').load()" in of_table
    hostile = page(world, "/tenants/1/1?table=" + quote("a'b;\"<script>.c d")).text
    assert "/databases/a%27b%3B%22%3Cscript%3E/tables/c%20d/changes" in hostile
    assert """tistream pull 'a'"'"'b;"<script>.c d' --cluster""" in hostile


def test_a_tenant_and_its_twin(world: ApiWorld) -> None:
    twin = world.http.get("/tenants/1/1.json").json()
    assert twin["resolved_ts"] == str(recording_end())
    assert [t["label"] for t in twin["tasks"]][::4] == ["meta", "DDL jobs"]
    assert [t["start_key"] for t in twin["tasks"]] == sorted(t["start_key"] for t in twin["tasks"])
    edges = [(t["x"], t["x"] + t["width"]) for t in twin["tasks"]]
    assert edges[0][0] == 0
    assert edges[-1][1] == pytest.approx(1000, abs=0.5)
    shown = page(world, "/tenants/1/1")
    assert all(t["label"] in shown.text for t in twin["tasks"])
    assert {"svg", "ts-lag-chart", "ts-tail"} <= set(shown.tags)


def test_a_tenant_that_awaits_its_snapshot(world: ApiWorld) -> None:
    text = page(world, "/tenants/1/2").text
    assert "awaits its first schema snapshot" in text
    assert "no watermark yet" in text


def test_a_stopped_task_shows_its_error_as_text(world: ApiWorld) -> None:
    for path in ("/tenants/2/7", "/overview"):
        shown = page(world, path)
        assert HOSTILE in shown.text
        assert shown.tags.count("script") == 3, "our own, in the head"
    (stopped,) = [t for t in world.http.get("/tenants/2/7.json").json()["tasks"] if t["state"] == "stopped"]
    assert stopped["error"] == HOSTILE


def test_problems_of_this_process_are_shown(world: ApiWorld) -> None:
    problem: dict[str, object] = {
        "source": "sorter-1/<b>", "code": "TS-1033", "message": "the store is away", "fatal": False, "facts": {},
    }  # fmt: skip
    with TestClient(create_app(replace(world.services, process=Process(problems=lambda: [problem])))) as http:
        for path in ("/overview", "/tenants/1/1"):
            text = Markup(http.get(path).text).text
            assert "sorter-1/<b>" in text
            assert "the store is away" in text
        assert http.get("/healthz").json() == {"status": "problems", "problems": [problem]}


def test_a_defect_is_a_page_that_says_nothing_of_its_inside(world: ApiWorld) -> None:
    def broken() -> list[dict[str, object]]:
        raise RuntimeError("the inside")

    with TestClient(
        create_app(replace(world.services, process=Process(problems=broken))), raise_server_exceptions=False
    ) as http:
        answer = http.get("/overview", headers={"Accept": "text/html"})
        assert (answer.status_code, answer.headers["content-type"]) == (500, "text/html; charset=utf-8")
        assert "Internal error" in Markup(answer.text).text
        assert "the inside" not in answer.text
        assert http.get("/overview").headers["content-type"] == "application/problem+json"


def test_htmx_gets_the_part_alone(world: ApiWorld) -> None:
    for path in ("/overview", "/tenants/1/1"):
        part, whole = page(world, path, **HTMX), page(world, path)
        assert not {"html", "head", "script", "main"} & set(part.tags)
        assert part.text in whole.text


def test_labels_of_any_cut(fresh: ApiWorld) -> None:
    fresh.log.data_tasks = 1
    fresh.log.activate()
    labels = [t["label"] for t in fresh.http.get("/tenants/1/1.json").json()["tasks"]]
    assert labels == ["meta", "all tables", "DDL jobs"]
    assert len(list_tasks(fresh.catalog, TENANT)) == 3


# ---- files


def test_vendored_files_are_what_the_manifest_says() -> None:
    root = STATIC / "vendor"
    manifest = json.loads((root / "vendor.json").read_text("utf-8"))
    files = {p.relative_to(root).as_posix(): p for p in root.rglob("*") if p.is_file() and p.name != "vendor.json"}
    assert files.keys() == manifest.keys()
    for name, path in files.items():
        digest = base64.b64encode(hashlib.sha384(path.read_bytes()).digest()).decode()
        assert manifest[name] == f"sha384-{digest}"
    assert {name.partition("/")[0] for name in manifest if name.endswith("LICENSE")} == {
        name.partition("/")[0] for name in manifest
    }


def test_pages_load_only_what_they_bring_and_vendored_files_by_hash(world: ApiWorld) -> None:
    text = world.http.get("/overview").text
    loaded = re.findall(r'<(?:script|link|img)[^>]*?(?:src|href)="([^"]+)"[^>]*>', text)
    assert len(loaded) >= 6
    for path in loaded:
        assert world.http.get(path).status_code == 200
    vendored = re.findall(r'<[^>]+(?:src|href)="/static/vendor/[^>]+>', text)
    assert len(vendored) == 3
    assert all('integrity="sha384-' in tag for tag in vendored)


@pytest.mark.parametrize(
    "path",
    [p for p in CONSOLE.rglob("*") if p.suffix in (".html", ".css", ".js") and "vendor" not in p.parts],
    ids=lambda p: p.name,
)
def test_no_absolute_address(path: Path) -> None:
    assert not re.search(r"https?:|[\"'(]//", path.read_text("utf-8"))
