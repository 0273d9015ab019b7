"""Every route that takes a name, with every odd name that exists: it answers as it does for a plain one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx2
import pytest
from fastapi.routing import APIRoute

from apiserver.app import create_app
from tests.kit.api_world import api_world
from tests.kit.log_builder import recording_end
from tests.kit.odd_names import ODD, PLAIN, odd_log, seeded
from tests.kit.stream_world import served
from tistream.client import connect
from tistream.http.auth.access import every_route
from tistream.ids import name_in_path

QUERIES = {
    "/changes": ["start_ts=earliest&format=ndjson", "start_ts=earliest&format=arrow", "snapshot=true&format=csv"],
    "/changes:stream": ["start_ts=earliest&end_ts=latest"],
    "/changes/splits": ["start_ts=earliest"],
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """(address, paths of the routes that take a name)."""
    log = odd_log()
    folder = tmp_path_factory.mktemp("names")
    with api_world(folder, rows=log.keywords["rows"], builder=log) as world:
        seeded(world.log)
        app = create_app(world.services)
        get_paths = [r.path for r in every_route(app) if isinstance(r, APIRoute) and "GET" in (r.methods or ())]
        with served(app) as server:
            yield server.url, [path for path in get_paths if "{database" in path]


def answers(http: httpx2.Client, paths: list[str], name: str) -> dict[str, tuple[int, object]]:
    """By request: the status, and how long its body would be if the name were as long as the plain one."""
    answer_of: dict[str, tuple[int, object]] = {}
    values = {"cluster_id": "1", "tenant_id": "1", "ts": str(recording_end())}
    for path in paths:
        filled = re.sub(r"\{(\w+)(?::\w+)?\}", lambda m: values.get(m[1], name_in_path(name)), path)
        suffix = path.rpartition("}")[2]
        for query in QUERIES.get(suffix, [""]):
            answer = http.get(filled, params=query)
            rows = answer.text.count('"type":"insert"') if "ndjson" in query or "stream" in path else None
            answer_of[f"{path}?{query}"] = answer.status_code, rows
            for link in [answer.headers["Link"]] if "Link" in answer.headers else []:
                next_page = link[1 : link.index(">")]
                assert urlsplit(next_page).netloc == ""
                assert http.get(next_page).status_code == 200, (name, link)
                assert "x-injected" not in answer.headers
    return answer_of


@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_a_name_is_a_name(site: tuple[str, list[str]], name: str) -> None:
    url, paths = site
    with httpx2.Client(base_url=url, timeout=30) as http:
        plain = answers(http, paths, PLAIN)
        assert set(plain.values()) >= {(200, 1), (200, None)}, plain
        assert all(status == 200 for status, _ in plain.values()), plain
        assert answers(http, paths, name) == plain
    with connect(url) as client:
        (row,) = client.tenant(1, 1).database(name).changes()
        assert (row["database"], row["table"]) == (name, name)
