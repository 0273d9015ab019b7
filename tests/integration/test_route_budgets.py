"""What a request may cost at most, asked of every operation of the API: processor time, memory, and bytes of the
answer, over tables of a thousand columns and large values, with the longest texts, the largest bodies and each format.

The requests are made from the API's description, so a new operation is judged from its first day.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from apiserver.app import create_app
from reading.asof import read
from reading.formats import format_options, options
from reading.pages import changes, pull
from reading.served.services import Services
from tests.kit.api_examples import PUSH_PLACE
from tests.kit.api_world import BASE
from tests.kit.hostile_requests import Hostile, Operation
from tests.kit.log_builder import TENANT
from tests.kit.priced import Asked, Price, Till
from tests.kit.wide_log import DATABASE, KEY, KEYS, TABLE, wide_world
from tistream.catalog.tenancy.consumers import add_consumer
from tistream.http import problem
from tistream.http.auth.access import every_route
from tistream.http.strict import query_parameters
from tistream.limits import REQUEST_BODY_BYTES_MAX

_MIB = 1 << 20
_MATCH_S = 0.3  # of the expressions of a page
_PROBLEM_BYTES = 80 << 10
_JSON = {"content-type": "application/json"}
_WHOLE = 1 << 40  # of an answer
_TAKEN = 2 * _MIB  # of an answer without an end: some pages

#: values that the examples of the description do not have
VALUES = {"database": DATABASE, "table": TABLE, "start_ts": "earliest", "dry_run": "true"}
LONGEST = {
    "enable-tidb-extension": "true", "content-compatible": "true", "only-output-updated-columns": "false",
    "debezium-disable-schema": "false", "include-commit-ts": "true", "output-old-value": "true",
    "output-raw-change-event": "false", "binary-encoding-method": "hex", "quote": '"',
    "cluster-name": "\x01" * 256, "delimiter": "\U0001f600" * 3, "null": "\x01" * 64, "terminator": "\x01" * 16,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Of one request. Times are several times what a busy machine takes."""

    cpu_s: float
    memory: int
    size: int
    piece: int  #: of the answer that is made at once

    def over(self, price: Price) -> list[str]:
        """What is more than it allows."""
        pairs = [
            (f"{price.cpu_s:.2f} s of processor time", price.cpu_s > self.cpu_s),
            (f"{price.memory / _MIB:.0f} MiB of memory", price.memory > self.memory),
            (f"an answer of {price.size / _MIB:.2f} MiB", price.size > self.size),
            (f"a piece of {price.largest_piece / _MIB:.2f} MiB", price.largest_piece > self.piece),
        ]
        return [text for text, is_over in pairs if is_over]


_PAGE_BYTES = changes._BODY_BYTES * 3 // 2
SMALL = Budget(cpu_s=3.0, memory=48 * _MIB, size=2 * _MIB, piece=2 * _MIB)
PAGE = Budget(cpu_s=4.0, memory=6 * changes._BODY_BYTES, size=_PAGE_BYTES, piece=_PAGE_BYTES)
PIECEWISE = Budget(cpu_s=6.0, memory=64 * _MIB, size=2 * changes._BODY_BYTES, piece=16 * _MIB)  # streams, rows, files
REFUSED = Budget(cpu_s=3.0, memory=48 * _MIB, size=_PROBLEM_BYTES, piece=_PROBLEM_BYTES)
_PAGES = ("pull_tenant", "pull_db", "pull_table", "pull_kv", "pull_consumer", "read_kv", "read_kv_history")
_READERS = {"consumer_id": "consumer", "changefeed_id": "lake"}
_IN_PIECES = ("stream_tenant", "stream_db", "stream_table", "stream_kv", "read_rows", "get_file", "get_table_file")


@dataclass(frozen=True)
class Site:
    """An application, where its answers are priced, and its operations."""

    services: Services
    app: FastAPI
    till: Till
    operations: Sequence[Operation]

    def faults(self, operation: Operation, asked: Iterable[Hostile]) -> list[str]:
        """What these requests cost beyond their budget, or answer against the rules."""
        found = []
        for each in asked:
            price = self.till.price(each.asked, most=_TAKEN if operation.is_stream else _WHOLE)
            wrong = faults_of(price, budget_of(operation))
            if each.refused and price.status < 400:
                wrong.append("not refused")
            if price.status >= 400 and b'"code":"TS-' not in price.head:
                wrong.append("no code")
            found += [f"{operation.name}, {each.label}: {fault} ({price.status})" for fault in wrong]
        return found


def faults_of(price: Price, budget: Budget) -> list[str]:
    """What is wrong with an answer. A refusal costs the same wherever it comes from."""
    wrong = (budget if price.status < 400 else REFUSED).over(price)
    if price.status >= 500:
        wrong.append("a fault of the server")
    return wrong


def budget_of(operation: Operation) -> Budget:
    """By what an operation is."""
    return PAGE if operation.name in _PAGES else PIECEWISE if operation.name in _IN_PIECES else SMALL


def operations_of(app: FastAPI) -> Iterator[Operation]:
    """All of them."""
    document = app.openapi()
    for path, item in document["paths"].items():
        tenant = KEYS if "/kv/" in path else TENANT
        values = {**VALUES, "cluster_id": str(tenant.cluster_id), "tenant_id": str(tenant.tenant_id)}
        if "/kv/" in path:
            values["key"] = KEY.hex()
        if path.endswith(":stream"):
            values["end_ts"] = "latest"
        for method, described in item.items():
            yield Operation(
                name=described["operationId"], method=method.upper(), path=path, described=described,
                schemas=document["components"]["schemas"], values=values | _READERS, options=LONGEST,
            )  # fmt: skip


def pages_of(app: FastAPI) -> Iterator[tuple[Asked, int]]:
    """(request of the console, how much of the answer is taken): each page as it is, and with each parameter long."""
    own = {"cluster_id": str(TENANT.cluster_id), "tenant_id": str(TENANT.tenant_id)}
    values = VALUES | own | _READERS
    for route in every_route(app):
        if not isinstance(route, APIRoute) or route.include_in_schema or "GET" not in (route.methods or ()):
            continue
        path = re.sub(r"\{(\w+)(?::\w+)?\}", lambda m: values.get(m[1], "1"), route.path)
        shown, hidden = query_parameters(route)
        for name in ("", *sorted(shown | hidden)):
            query = [(name, "\U0001f600" * 4000)] if name else []
            yield Asked(method="GET", path=path, query=query), 1 if path.endswith("/live") else _WHOLE


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("wide")
    with wide_world(folder) as world:
        add_consumer(world.catalog, TENANT, "consumer", None)
        app = create_app(world.services, push=PUSH_PLACE)
        with Till(app) as till:
            feed = {"changefeed_id": "lake", "sink_uri": f"file://{folder}/lake?protocol=canal-json"}
            for path, body in (("", json.dumps(feed)), ("/lake:pause", "")):  # only then it may be updated
                asked = Asked(method="POST", path=f"{BASE}/changefeeds{path}", headers=_JSON, body=body.encode())
                assert till.price(asked, most=_MIB).status < 300
            in_order = sorted(operations_of(app), key=lambda each: each.name != "update_changefeed")
            yield Site(world.services, app, till, in_order)


@pytest.fixture(autouse=True)
def less_matching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "PATTERNS_S_MAX", _MATCH_S)


def test_every_operation_keeps_to_its_budget(site: Site) -> None:
    assert len(site.operations) > 100
    faults = []
    for operation in site.operations:
        faults += site.faults(operation, operation.large())
        faults += site.faults(operation, operation.long())
    assert not faults, "\n".join(faults)


def test_every_page_of_the_console_keeps_to_its_budget(site: Site) -> None:
    faults, asked = [], list(pages_of(site.app))
    assert len(asked) > 40
    for each, taken in asked:
        price = site.till.price(each, most=taken)
        faults += [f"{each.path} {[n for n, _ in each.query]}: {f}" for f in faults_of(price, SMALL)]
    assert not faults, "\n".join(faults)


def test_every_text_of_a_request_has_a_greatest_length(site: Site) -> None:
    assert [(each.name, each.unbounded) for each in site.operations if each.unbounded] == []


def test_each_option_is_asked_for_at_its_longest() -> None:
    assert LONGEST.keys() == format_options().keys()
    for name, option in format_options().items():
        text = LONGEST[name]
        is_chosen = text in ("true", "false", "hex", '"')  # other texts are refused
        assert is_chosen or len(text.encode()) == option.bytes_max, name


def test_the_largest_body_keeps_to_the_budget_and_a_larger_one_is_refused(site: Site) -> None:
    (operation,) = (each for each in site.operations if each.name == "create_changefeed")
    path = operation.path.format(cluster_id=1, tenant_id=1)
    lists = b"[" + b"[]," * (REQUEST_BODY_BYTES_MAX // 3 - 1) + b"[]]"
    for body, status in ((lists[: REQUEST_BODY_BYTES_MAX - 3] + b"[]]", 400), (lists + b"[]]", 413)):
        asked = Asked(method="POST", path=path, headers=_JSON, body=body)
        price = site.till.price(asked, most=_MIB)
        assert price.status == status, price
        assert not REFUSED.over(price), price


@pytest.mark.parametrize(
    ("place", "name", "removed", "operation", "label"),
    [
        (options, "_text", lambda word, text, most: text, "pull_table", "terminator above its length"),
        (changes, "_BODY_BYTES", 1 << 40, "pull_table", "as debezium"),
        (changes, "_STREAM_PAGE_BYTES", 1 << 40, "stream_table", "as debezium lines"),
        (read, "_PART_BYTES", 1 << 40, "read_rows", "as ndjson"),
        (problem, "_cut", lambda text, most: text, "list_tables", "a long database"),
    ],
)
def test_a_limit_that_is_removed_is_missed(
    site: Site, monkeypatch: pytest.MonkeyPatch, place: object, name: str, removed: object, operation: str, label: str
) -> None:
    """The judge judged: it sees that the option, the page, the stream's page or the message has no limit."""
    (judged,) = (each for each in site.operations if each.name == operation)
    asked = [each for each in (*judged.large(), *judged.long()) if each.label == label]
    assert len(asked) == 1
    monkeypatch.setattr(place, name, removed)
    with Till(create_app(site.services)) as till:  # one that has kept no pages
        assert replace(site, till=till).faults(judged, asked), "it does not see it"
