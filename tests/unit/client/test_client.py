"""The client against scripted answers: what it asks, what it retries, which errors it raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import orjson
import pytest

from tests.kit.client_script import Answer, Script, events, page, problem, resolved
from tistream.client import Client, connect
from tistream.client.core.requests import pull_params
from tistream.errors import (
    CursorInvalid,
    ErrorKind,
    InvalidInput,
    NotFound,
    RateLimited,
    StoreUnavailable,
    TiStreamError,
    TsExpired,
)


def client(script: Script, sleep: Callable[[float], None] = lambda s: None, retry_s: float = 30) -> Client:
    return Client("http://host:1/", transport=script, sleep=sleep, retry_s=retry_s)


def test_a_page_asks_what_it_was_told() -> None:
    quarantined: dict[str, Any] = {"TiStream-Quarantined": "2"}
    script = Script(page("c1", content=b"{}\n{}\n", **quarantined))
    with client(script) as c:
        first = (
            c.tenant(3, 4)
            .within("a/b", "t t")
            .page(end=7, limit=5, format="canal-json", options={"content-compatible": "true"})
        )
    assert (first.next_cursor, first.resolved_ts, first.has_more, first.quarantined) == ("c1", 9, False, 2)
    assert first.lines() == [b"{}", b"{}"]
    (request,) = script.asked
    assert request.url.raw_path.startswith(b"/v1/clusters/3/tenants/4/databases/a%2Fb/tables/t%20t/changes?")
    assert dict(request.url.params) == {
        "start_ts": "earliest", "end_ts": "7", "limit": "5", "format": "canal-json", "content-compatible": "true",
    }  # fmt: skip


def test_pull_walks_to_the_watermark() -> None:
    script = Script(page("a", more=True), page("b", more=True), page("c"))
    with client(script) as c:
        assert [p.next_cursor for p in c.tenant(1, 1).changes(start="-1h").pages()] == ["a", "b", "c"]
    assert [dict(r.url.params).get("start_ts") for r in script.asked] == ["-1h", None, None]
    assert [dict(r.url.params).get("cursor") for r in script.asked] == [None, "a", "b"]


def test_follow_of_arrow_waits_for_more_and_gives_the_server_time() -> None:
    script = Script(page("a"), page("b"), page("c"))
    with client(script) as c:
        pages = c.tenant(1, 1).follow().pages("arrow")
        assert [next(pages).next_cursor for _ in range(3)] == ["a", "b", "c"]
    waits = [float(dict(r.url.params).get("wait", 0)) for r in script.asked]
    assert waits[0] == 0
    assert all(w > 0 for w in waits[1:])
    for request, wait in zip(script.asked, waits, strict=True):
        assert request.extensions["timeout"]["read"] >= wait + 10


def test_follow_ends_where_it_is_told() -> None:
    ends: dict[str, Any] = {"TiStream-End-Ts": "20"}
    script = Script(
        page("a", resolved=9, **ends), page("b", more=True, resolved=25, **ends), page("c", resolved=26, **ends)
    )
    with client(script) as c:
        pages = list(c.tenant(1, 1).follow(end="-5m").pages("arrow"))
    assert [p.next_cursor for p in pages] == ["a", "b", "c"]
    ends_asked = [dict(r.url.params)["end_ts"] for r in script.asked]
    assert ends_asked == ["-5m", "20", "20"], "what a span means is settled by the first answer"


def test_following_lines_takes_a_stream_and_resumes_what_breaks_off() -> None:
    script = Script(
        events("retry: 1", "", "data: 1", "", *resolved("a", 5), "data: 2", ""),
        httpx2.ConnectError("refused"),
        events("data: 2", "", "data: 3", "", *resolved("b", 6), "event: end", 'data: {"reason":"shutdown"}', ""),
        events(*resolved("c", 7), "event: end", 'data: {"reason":"end-reached"}', ""),
    )
    with client(script) as c:
        pages = list(c.tenant(1, 1).database("d").follow(start="-1h", end=7).pages("canal-json"))
    assert [(p.content, p.next_cursor, p.resolved_ts) for p in pages] == [
        (b"1\n", "a", 5),
        (b"2\n3\n", "b", 6),
        (b"", "c", 7),
    ]
    params = [dict(r.url.params) for r in script.asked]
    assert [a.get("cursor") for a in params] == [None, "a", "a", "b"]
    assert params[0]["start_ts"] == "-1h"
    assert {a["framing"] for a in params} == {"sse"}
    assert script.asked[0].url.path.endswith("/databases/d/changes:stream")


def test_a_stream_that_failed_for_good_raises_its_problem() -> None:
    last = 'data: {"reason":"error","problem":{"status":410,"code":"TS-1005","detail":"gone","facts":{"x":"1"}}}'
    with client(Script(events("event: end", last, ""))) as c, pytest.raises(TsExpired, match="gone"):
        list(c.tenant(1, 1).follow())


def test_too_much_is_tried_again_when_the_server_says() -> None:
    slept: list[float] = []
    refused = problem(429, code="TS-1090", detail="slowly")
    refused.headers["Retry-After"] = "3"
    with client(Script(refused, page("a")), sleep=slept.append) as c:
        assert c.tenant(1, 1).page().next_cursor == "a"
    assert slept == [3.0]
    with client(Script(refused), retry_s=1) as c, pytest.raises(RateLimited, match="slowly"):
        c.tenant(1, 1).page()


@pytest.mark.parametrize(
    "failure",
    [
        problem(503, detail="not now"),
        httpx2.Response(502, content=b"<html>bad gateway</html>"),
        httpx2.Response(504, content=b""),
        httpx2.ConnectError("refused"),
        httpx2.ReadTimeout("slow"),
        httpx2.RemoteProtocolError("cut off"),
    ],
)
def test_what_passes_is_tried_again_at_the_same_place(failure: Answer) -> None:
    pauses: list[float] = []
    script = Script(failure, failure, page("x"))
    with client(script, pauses.append) as c:
        assert c.tenant(1, 1).page(cursor="here").next_cursor == "x"
    assert len({str(r.url) for r in script.asked}) == 1
    assert len(pauses) == 2
    assert pauses[0] < pauses[1]


def test_retries_end() -> None:
    with (
        client(Script(httpx2.ConnectError("refused")), retry_s=0) as c,
        pytest.raises(StoreUnavailable, match="host:1"),
    ):
        c.tenant(1, 1).page()


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (problem(404, code="TS-1010", detail="no table 'x'"), NotFound, "no table"),
        (problem(400, code="TS-1003", detail="bad cursor", hint="start again"), CursorInvalid, "bad cursor"),
        (problem(410, code="TS-1005", detail="gone", facts={"earliest_ts": "77"}), TsExpired, "gone"),
        (problem(400, code="TS-1001", detail="limit"), InvalidInput, "limit"),
        (problem(406, code="TS-1006", detail="no such form"), InvalidInput, "no such form"),
        (problem(500, code="TS-1020", detail="damaged", facts={"object": "k"}), TiStreamError, "damaged"),
        (httpx2.Response(404, content=b"not here"), NotFound, "not here"),
        (httpx2.Response(500, content=b"[1]"), TiStreamError, r"\[1\]"),
        (httpx2.Response(400, content=b"{}"), InvalidInput, "400"),
    ],
)
def test_a_problem_becomes_the_servers_error(answer: httpx2.Response, kind: type[TiStreamError], words: str) -> None:
    script = Script(answer)
    with client(script) as c, pytest.raises(TiStreamError, match=words) as e:
        c.get("/v1/tenants")
    assert type(e.value) is kind
    assert len(script.asked) == 1, "not tried again"


def test_an_error_has_the_facts_and_the_hint_of_the_server() -> None:
    facts = {"earliest_ts": "77", "kind": "evil", "message": "evil", "self": "evil", "args": "evil"}
    script = Script(problem(410, code="TS-1005", detail="gone", hint="start later", facts=facts))
    with client(script) as c, pytest.raises(TsExpired) as e:
        c.tenant(1, 1).page(start=1)
    assert e.value.facts == {"earliest_ts": "77", "status": 410}
    assert (e.value.hint, e.value.kind, e.value.message) == ("start later", ErrorKind.INVALID, "gone")


def test_registering() -> None:
    script = Script(httpx2.Response(200, content=b'{"state":"AWAITING_SNAPSHOT"}'))
    with connect("http://host", transport=script) as c:
        assert c.tenant(1, 2).register() == {"state": "AWAITING_SNAPSHOT"}
    (request,) = script.asked
    assert (request.method, request.url.path) == ("POST", "/v1/tenants")
    assert orjson.loads(request.content) == {"cluster_id": 1, "tenant_id": 2, "kind": "tidb"}


@pytest.mark.parametrize("method", ["page", "changes", "follow"])
def test_an_unknown_argument_is_refused(method: str) -> None:
    script = Script(page("a"))
    with client(script) as c, pytest.raises(TypeError, match="colums"):
        getattr(c.tenant(1, 1), method)(colums="id")
    assert not script.asked


def test_filters_are_part_of_the_query() -> None:
    params = pull_params(
        {
            "cursor": "c", "tables": ["shop.*", "!shop.a"], "columns": "id,name", "ops": ("insert", "ddl"),
            "where": "a = 'x,y'", "event_filters": [{"matcher": ["a.b"], "ignore-event": ["insert"]}],
        },
        "ndjson",
        None,
    )  # fmt: skip
    assert params == {
        "cursor": "c", "format": "ndjson", "tables": "shop.*,!shop.a", "columns": "id,name", "ops": "insert,ddl",
        "where": "a = 'x,y'", "event_filters": '[{"matcher":["a.b"],"ignore-event":["insert"]}]',
    }  # fmt: skip
