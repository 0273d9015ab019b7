"""Keys that are limited to tables: what no route shows them, what all show as a filter would, and what they may not do.

The recording has the databases shop, shop_arch and temp_db, and renames shop.ren_a to shop_arch.ren_moved.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi import APIRouter, FastAPI
from starlette.testclient import TestClient

from apiserver.negotiate import FORMATS
from tests.kit.api_world import events_of, next_cursor
from tests.kit.auth_site import MINE, Site, auth_site, fill, is_problem
from tistream.catalog.tenancy.keys import get_key
from tistream.errors import TiStreamError
from tistream.http.auth import install
from tistream.http.auth.access import KeyTables, declared, needs, undeclared
from tistream.http.auth.core.keys import parse_key
from tistream.http.auth.core.roles import LIMITABLE, LIMITED_RIGHTS, OfLimited, Right, Role

BASE = "/v1/clusters/1/tenants/1"
WHOLE = {"start_ts": "earliest", "end_ts": "latest", "limit": "200000"}
#: (rules of the key, names that nothing it gets may hold, a table within, one without, the same with another name)
LIMITS = {
    "archive": (("shop_arch.*",), r"shop(?!_arch)|temp_db|ren_a|acct|k_int|p_range", "shop_arch/moves", "shop/acct"),
    "tables": (
        ("shop.acct", "shop.ren_*"),
        r"shop_arch|temp_db|ren_moved|tmp_x|moves|k_int|p_range|t_ints",
        "shop/acct",
        "shop/k_int",
    ),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with auth_site(tmp_path_factory.mktemp("limits")) as made:
        yield made


@dataclass
class Reader:
    """A limited key beside a full one."""

    site: Site
    tables: tuple[str, ...]
    hidden: re.Pattern[bytes]
    within: str
    without: str

    def __post_init__(self) -> None:
        self.key = self.site.key(Role.CONSUMER, MINE, tables=self.tables)
        self.full = self.site.key(Role.CONSUMER, MINE)
        rows = self.everything("/changes", ops="insert", format="ndjson", tables="*.*,!shop.ren_*,!shop_arch.moves")
        mine = self.everything("/changes", tables=",".join(self.tables), format="ndjson")
        outside, inside = _texts(events_of(rows)), _texts(events_of(mine))
        values = sorted(text for text in outside - inside if re.fullmatch(r"(?!(.)\1{3})[A-Za-z][\w-]{7,40}", text))[
            :20
        ]
        assert len(values) > 5, "values of other tables that can be told from those within"
        self.hidden = re.compile(self.hidden.pattern + b"|" + "|".join(values).encode())

    def everything(self, path: str, **asked: str) -> httpx2.Response:
        return self.site.get(BASE + path, self.full, params={**WHOLE, **asked})

    def get(self, path: str, **asked: str) -> httpx2.Response:
        """What the limited key gets, which must hold nothing from outside; names in the address are ours."""
        answer = self.site.get(path, self.key, params=asked)
        self.check(answer, path)
        return answer

    def check(self, answer: httpx2.Response, path: str = "") -> None:
        for asked in re.findall(r"/(?:databases|tables)/([^/?]+)", path):
            assert answer.status_code != 200 or not self.hidden.search(asked.encode())
        text = answer.content + str(answer.headers).encode()
        if answer.status_code == 200:
            assert not (found := self.hidden.search(text)), (path, found, text[:500])


def _texts(events: list[dict[str, Any]]) -> set[str]:
    images = (image for event in events for image in (event.get("columns"), event.get("old")) if image)
    return {value for image in images for value in image.values() if isinstance(value, str)}


@pytest.fixture(scope="module", params=LIMITS)
def reader(site: Site, request: pytest.FixtureRequest) -> Reader:
    tables, hidden, within, without = LIMITS[request.param]
    return Reader(site, tables, re.compile(hidden.encode()), within, without)


def lines(answer: httpx2.Response) -> list[bytes]:
    assert answer.status_code == 200, answer.text
    return answer.content.splitlines()


# ---- the wall


def test_every_route_says_what_it_does_for_a_limited_key(site: Site) -> None:
    said = {(m, path): {d.limited for d in declared(r)} for m, path, r in site.routes()}
    reachable = {row for row, d in said.items() if d & {OfLimited.WITHIN, OfLimited.NO_TABLES}}
    key = site.key(Role.CONSUMER, MINE, tables=("none.*",))
    refused = 0
    for method, path, route in site.routes():
        answer = site.ask(method, fill(path), key)
        if (method, path) in reachable:
            assert answer.status_code not in (401, 403), path
            continue
        held = all(d.right in LIMITED_RIGHTS for d in declared(route))
        whole = "{tenant_id}" not in path and not all(d.filtered for d in declared(route))
        assert is_problem(answer, 403, "TS-1092" if held and not whole else "TS-1081"), (method, path)
        refused += 1
    assert refused > 60
    assert {method for method, _ in reachable} == {"GET", "POST"}
    assert {path for method, path in reachable if method == "POST"} == {"/logout"}
    assert {p.replace(BASE, "") for _, p in reachable if "tables/{table" in p}, "tables are read"
    assert not [
        p
        for _, p in reachable
        if "changefeed" in p or "consumer" in p or p.endswith("/files") or "/files/" in p or "/tasks" in p
    ]


@pytest.mark.parametrize(
    ("needed", "asks", "starts"),
    [
        (needs(Right.READ), False, False),
        (needs(Right.LOOK, filtered=True), True, False),
        (needs(Right.READ, limited=OfLimited.WITHIN), False, False),
        (needs(Right.READ, limited=OfLimited.WITHIN), True, True),
        (needs(Right.READ, limited=OfLimited.REFUSED), False, True),
        (needs(Right.OPERATE), False, True),
    ],
)
def test_an_application_with_a_route_that_forgets_them_does_not_start(
    site: Site, needed: Any, asks: bool, starts: bool
) -> None:
    def plain() -> None: ...

    def within(tables: KeyTables) -> None: ...

    app, routes = FastAPI(openapi_url=None), APIRouter(dependencies=[needed])
    routes.add_api_route("/v1/new", within if asks else plain)
    app.include_router(routes)
    assert undeclared(app) == ([] if starts else ["/v1/new"])
    if not starts:
        with pytest.raises(TiStreamError, match="declares a rule"):
            install.install(app, site.parts.catalog, None)


def test_a_silent_route_refuses_a_limited_key(site: Site) -> None:
    app, routes = FastAPI(openapi_url=None), APIRouter(dependencies=[needs(Right.READ, filtered=True)])
    routes.add_api_route("/v1/new", lambda: {"rows": "all"})
    from tistream.http import problem
    from tistream.http.auth.authenticator import Authenticator
    from tistream.http.auth.middleware import AuthMiddleware

    problem.install(app)
    app.include_router(routes)
    app.add_middleware(AuthMiddleware, authenticator=Authenticator(site.parts.catalog, site.clock))
    with TestClient(app) as http:
        for tables, status in ((None, 200), (("shop.*",), 403)):
            key = site.key(Role.CONSUMER, MINE, tables=tables)
            assert http.get("/v1/new", headers={"Authorization": f"Bearer {key}"}).status_code == status


# ---- what it reads


def test_no_route_shows_what_lies_outside(reader: Reader) -> None:
    asked = [{}, {"start_ts": "earliest", "end_ts": "latest"}]
    answered = 0
    ts = reader.site.get(BASE, reader.full).json()["resolved_ts"]
    for method, path, route in reader.site.routes():
        if method != "GET" or not {d.limited for d in declared(route)} & {OfLimited.WITHIN, OfLimited.NO_TABLES}:
            continue
        for table in (reader.within, reader.without):
            db, name = table.split("/")
            at = re.sub(r"\{database(:\w+)?\}", db, re.sub(r"\{table(:\w+)?\}", name, path)).replace("{ts}", ts)
            for params in asked if ":stream" not in path else asked[1:]:
                answer = reader.site.get(fill(at), reader.key, params=params)
                reader.check(answer, at)
                answered += answer.status_code == 200
                if table == reader.without and "{table" in path:
                    assert answer.status_code in (400, 404), at
    assert answered > 20


def test_a_table_outside_is_answered_as_one_that_never_was(reader: Reader) -> None:
    db, table = reader.without.split("/")
    never = f"{db}/k_inz" if table == "k_int" else f"shoz/{table}"
    for path in ("changes", "changes/splits", "changes:stream", "rows", "definition"):
        for asked in ({}, WHOLE, {**WHOLE, "snapshot": "true"}, {"tables": f"{db}.{table}", **WHOLE}):
            found = []
            for of in (reader.without, never):
                of_db, of_table = of.split("/")
                params = {k: v for k, v in asked.items() if path.startswith("changes") or k == "as_of"}
                answer = reader.site.get(
                    f"{BASE}/databases/{of_db}/tables/{of_table}/{path}", reader.key, params=params
                )
                assert answer.status_code in (400, 404), answer.text
                told = re.sub(r", did you mean '\w+'\?|\"did_you_mean\":\[[^]]*\]", "", answer.text)
                assert not reader.hidden.search(told.replace(of_db, "").replace(of_table, "").encode())
                found.append((answer.status_code, re.sub(rf"\b({of_db}|{of_table})\b", "NAME", told)))
            assert found[0] == found[1], path


def same(mine: httpx2.Response, full: httpx2.Response, fmt: str) -> None:
    """The same rows; Arrow may cut its buffers elsewhere, and some formats say when they were built."""
    assert (mine.status_code, full.status_code) == (200, 200), mine.text + full.text
    if fmt.endswith("arrow"):
        assert pa.ipc.open_stream(mine.content).read_all().equals(pa.ipc.open_stream(full.content).read_all())
        return
    assert mine.content == full.content


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_pull_holds_the_rows_of_a_filter(reader: Reader, fmt: str) -> None:
    asked = {"format": fmt} if fmt in ("arrow", "raw-arrow") else {"format": fmt, "ops": "insert,update,delete"}
    if fmt in ("debezium", "simple", "open-protocol") and reader.tables[0] == "shop_arch.*":
        asked["ops"] += ",ddl"  # a rename into the limit differs: names only
        assert reader.get(f"{BASE}/changes", **WHOLE, **asked).status_code == 200
        return
    mine = reader.get(f"{BASE}/changes", **WHOLE, **asked)
    same(mine, reader.everything("/changes", tables=",".join(reader.tables), **asked), fmt)
    assert len(mine.content) > 1000
    assert reader.get(f"{BASE}/changes", **WHOLE, format=fmt).status_code == 200
    params = {"snapshot": "true", "format": fmt, "limit": "200000"}
    shown = reader.get(f"{BASE}/changes", **params)
    params["tables"] = ",".join(reader.tables)
    same(shown, reader.site.get(f"{BASE}/changes", reader.full, params=params), fmt)
    if fmt == "raw-arrow":
        ids = set(pa.ipc.open_stream(mine.content).read_all()["table_id"].to_pylist())
        tables = [t for d in ("shop", "shop_arch") for t in _tables(reader.site, reader.full, d)]
        outside = {i for t in tables if t["table"] in ("bulk5k", "k_int") for i in (t["table_id"], *t["partition_ids"])}
        assert len(ids & outside) == (reader.tables[0] == "shop_arch.*"), "of bulk5k and k_int, one table at most"


def _tables(site: Site, key: str, database: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = site.get(f"{BASE}/databases/{database}/tables", key).json()["items"]
    return found


def test_rows_and_files_of_tables_within_are_those_of_a_full_key(reader: Reader) -> None:
    db, table = reader.within.split("/")
    ts = reader.site.get(BASE, reader.full).json()["resolved_ts"]
    for end in ("rows?format=csv", "rows?format=sql", "rows?format=parquet", "definition", f"rows/{ts}.parquet"):
        path = f"{BASE}/databases/{db}/tables/{table}/{end}"
        mine = reader.site.get(path, reader.key)
        assert mine.status_code == 200
        if "parquet" in end:
            table_of = pq.read_table(pa.BufferReader(mine.content))
            assert table_of.num_rows > 0
        assert mine.content == reader.site.get(path, reader.full).content
    other_db, other = reader.without.split("/")
    outside = f"{BASE}/databases/{other_db}/tables/{other}/rows/{ts}.parquet"
    assert reader.site.get(outside, reader.full).status_code == 200, "a file that is kept"
    assert is_problem_of(reader.site.get(outside, reader.key), 404)


def is_problem_of(answer: httpx2.Response, status: int) -> bool:
    return answer.status_code == status and answer.headers["content-type"] == "application/problem+json"


def test_ddl_is_that_of_the_tables_within(reader: Reader) -> None:
    mine = [e for e in events_of(reader.get(f"{BASE}/changes", **WHOLE, format="ndjson")) if e["type"] == "ddl"]
    whole = [e for e in events_of(reader.everything("/changes", format="ndjson")) if e["type"] == "ddl"]
    full = events_of(reader.everything("/changes", tables=",".join(reader.tables), ops="ddl", format="ndjson"))
    crossing = [e for e in whole if "ren_moved" in e["query"]]
    assert [e["query"] for e in crossing] == ["RENAME TABLE `shop`.`ren_a` TO `shop_arch`.`ren_moved`"]
    chain = [e["commit_ts"] for e in whole if "tmp_x" in e["query"]][:1] if reader.tables[0] == "shop.acct" else []
    changed = [e for e in mine if e["commit_ts"] == crossing[0]["commit_ts"]]
    apart = [crossing[0]["commit_ts"], *chain]
    assert [e for e in mine if e["commit_ts"] not in apart] == [
        e for e in full if e["type"] == "ddl" and e["commit_ts"] not in apart
    ]
    passing = [e["query"].split("(")[0].strip() for e in mine if e["commit_ts"] in chain]
    assert passing == (
        ["DROP TABLE `shop`.`ren_a`", "RENAME TABLE `shop`.`ren_b` TO `shop`.`ren_a`;", "CREATE TABLE `shop`.`ren_b`"]
        if chain
        else []
    ), "RENAME TABLE ren_a TO tmp_x, ren_b TO ren_a, tmp_x TO ren_b, as without tmp_x"
    seen = [(e["kind"], e["table"], e["query"].split("(")[0].strip()) for e in changed]
    assert (
        seen
        == {
            "shop.acct": [("drop table", "ren_a", "DROP TABLE `shop`.`ren_a`")],
            "shop_arch.*": [("create table", "ren_moved", "CREATE TABLE `shop_arch`.`ren_moved`")],
        }[reader.tables[0]]
    )
    listed = reader.get(f"{BASE}/ddl", limit="1000").json()
    assert [e["query"] for e in listed["items"]][::-1] == [e["query"] for e in mine]
    assert listed["total"] == len(mine)
    diff = reader.get(f"{BASE}/schema-diff").json()
    gone = [t for t in diff["tables"] if t["table"] in ("ren_a", "ren_moved")]
    assert all(t["was"] is None for t in gone)


@pytest.mark.parametrize("framing", ["lines", "sse"])
def test_a_stream_holds_what_a_pull_holds(reader: Reader, framing: str) -> None:
    params = {**WHOLE, "limit": "10000", "framing": framing, "format": "ndjson"}
    stream = reader.get(f"{BASE}/changes:stream", **params).content
    pulled = reader.get(f"{BASE}/changes", **WHOLE, format="ndjson").content
    if framing == "sse":
        stream = b"\n".join(re.findall(rb"^data: (\{.*)$", stream, re.M))

    def changes(body: bytes) -> list[Any]:
        kept = ("insert", "update", "delete", "ddl")
        return [e for e in map(orjson.loads, filter(None, body.splitlines())) if e.get("type") in kept]

    assert changes(stream) == changes(pulled)
    assert len(changes(stream)) > 20


def test_followers_share_pages_only_under_the_same_limit(reader: Reader) -> None:
    """A stream of a full key and one of a limited key begin at the same place with the same options."""
    asked = {"start_ts": "earliest", "end_ts": "latest", "format": "ndjson"}
    full = reader.site.get(f"{BASE}/changes:stream", reader.full, params=asked)
    assert reader.hidden.search(full.content)
    reader.get(f"{BASE}/changes:stream", **asked)


def test_a_cursor_of_another_key_opens_nothing(reader: Reader) -> None:
    first = reader.site.get(
        f"{BASE}/changes", reader.full, params={"start_ts": "earliest", "limit": "500", "format": "ndjson"}
    )
    rest = reader.get(f"{BASE}/changes", cursor=next_cursor(first), limit="200000", format="ndjson")
    assert rest.status_code == 200
    of = {"tables": "shop_arch.*,shop.acct,shop.k_int", "limit": "2000", "format": "ndjson"}
    pages, asked = 0, {"snapshot": "true", **of}
    answer = reader.site.get(f"{BASE}/changes", reader.full, params=asked)
    while answer.headers.get("TiStream-Snapshot-Complete") == "false":
        cursor = next_cursor(answer)
        reader.get(f"{BASE}/changes", cursor=cursor, limit="2000", format="ndjson")
        answer, pages = reader.site.get(f"{BASE}/changes", reader.full, params={"cursor": cursor, **of}), pages + 1
    assert pages >= 2


def test_a_reader_of_a_table_that_left_is_not_told_its_new_name(site: Site) -> None:
    ddl = site.get(f"{BASE}/ddl?limit=1000", site.key(Role.CONSUMER, MINE)).json()["items"]
    (renamed,) = [e for e in ddl if "ren_moved" in e["query"]]
    path = f"{BASE}/databases/shop/tables/ren_a/changes"
    full, key = site.key(Role.CONSUMER, MINE), site.key(Role.CONSUMER, MINE, tables=("shop.*",))
    cursor = next_cursor(site.get(path, full, params={"start_ts": "earliest", "end_ts": renamed["commit_ts"]}))
    assert "ren_moved" in site.get(path, full, params={"cursor": cursor}).text
    limited = site.get(path, key, params={"cursor": cursor, "format": "ndjson"})
    assert limited.status_code == 200
    assert "ren_moved" not in limited.text


def test_a_lag_is_shown_without_what_other_tables_do(site: Site) -> None:
    key = site.key(Role.CONSUMER, MINE, tables=("shop.*",))
    assert site.get(f"{BASE}/lag", key).json()["state"] == "ACTIVE"
    assert is_problem_of(site.get(f"{BASE}/lag?why=true", key), 403)
    feed = {"consumer_id": "of-others", "filters": {"tables": "shop_arch.*"}}
    assert site.ask("POST", f"{BASE}/consumers", site.key(Role.OWNER), json=feed).status_code in (200, 201)
    assert "of-others" in site.get(f"{BASE}/lag", site.key(Role.CONSUMER, MINE)).text
    assert "of-others" not in site.get(f"{BASE}/lag", key).text
    assert {"tasks", "stores"} & set(site.get(BASE, key).json()) == set()
    assert {"tasks", "stores"} < set(site.get(BASE, site.key(Role.CONSUMER, MINE)).json())


# ---- keys


def test_a_limit_is_made_shown_and_kept_by_rotation(site: Site) -> None:
    admin = site.key(Role.TENANT_ADMIN, MINE)
    body = {"name": "bi", "role": "consumer", "cluster_id": 1, "tenant_id": 1, "tables": ["shop.*", "!shop.k_*"]}
    made = site.ask("POST", "/v1/keys", admin, json=body).json()
    assert made["tables"] == ["shop.*", "!shop.k_*"]
    assert site.get("/v1/whoami", made["key"]).json()["tables"] == ["shop.*", "!shop.k_*"]
    assert site.get("/v1/whoami", admin).json()["tables"] is None
    next_one = site.ask("POST", f"/v1/keys/{made['key_id']}:rotate", admin, json={}).json()
    assert next_one["tables"] == ["shop.*", "!shop.k_*"]
    names = [t["table"] for t in _tables(site, next_one["key"], "shop")]
    assert "acct" in names
    assert not [name for name in names if name.startswith("k_")]
    listed = {row["key_id"]: row["tables"] for row in site.get("/v1/keys", admin).json()["items"]}
    assert listed[next_one["key_id"]] == ["shop.*", "!shop.k_*"]
    page = site.get("/keys", admin, headers={"Accept": "text/html"}).text
    assert "shop.*, !shop.k_*" in page
    assert 'data-kind="rules"' in page


@pytest.mark.parametrize(
    ("role", "tables", "code", "words"),
    [
        ("consumer", [], "TS-1018", "nothing is given"),
        ("consumer", ["shop"], "TS-1018", "DATABASE.TABLE"),
        ("consumer", ["shop.*", "a.b.c"], "TS-1018", "tables"),
        ("consumer", ["@file"], "TS-1018", "tables"),
        ("consumer", "shop.*", "TS-1001", "list"),
        ("tenant-admin", ["shop.*"], "TS-1001", "only a consumer key"),
        ("viewer", ["shop.*"], "TS-1001", "only a consumer key"),
        ("pusher", ["shop.*"], "TS-1001", "only a consumer key"),
    ],
)
def test_a_bad_limit_is_refused(site: Site, role: str, tables: Any, code: str, words: str) -> None:
    body = {"name": "bi", "role": role, "cluster_id": 1, "tenant_id": 1, "tables": tables}
    answer = site.ask("POST", "/v1/keys", site.key(Role.OWNER), json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, code), answer.text
    assert words in answer.text


def test_only_keys_that_read_can_be_limited() -> None:
    assert {Role.CONSUMER} == LIMITABLE
    assert {Right.LOOK, Right.READ, Right.KNOWN} == LIMITED_RIGHTS


def test_a_limited_key_opens_no_console(site: Site) -> None:
    key = site.key(Role.CONSUMER, MINE, tables=("shop.*",))
    assert is_problem_of(site.ask("POST", "/v1/console-codes", key), 403)
    answer = site.ask("POST", "/login", data={"code": key})
    assert answer.status_code == 401
    assert "limited to tables" in answer.text


def test_a_limit_that_cannot_be_read_opens_nothing(site: Site) -> None:
    key = site.key(Role.CONSUMER, MINE, tables=("not a rule",))
    assert get_key(site.parts.catalog, parse_key(key).key_id).tables == ("not a rule",)
    for path in ("/databases", "/changes?start_ts=earliest", "/databases/shop/tables/acct/rows"):
        assert is_problem_of(site.get(BASE + path, key), 400), path
