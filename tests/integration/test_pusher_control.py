"""The HTTP end of the control plane: its requests, and which answers are final."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import orjson
import pytest

from pusher.control import ControlUnavailable, HttpControl, IncarnationGrant, PushBundle, retrying
from pusher.frontier import FrontierEntry
from tests.kit.control_http import ControlHttp, HttpFault, hang_up, page
from tests.kit.memory_control import MemoryControl
from tistream.clock import SystemClock
from tistream.errors import Fenced, InvalidInput, NotAllowed, NotFound, TenantDeleted, TiStreamError, Unauthenticated
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.objectstore.memory import MemoryStore

BUNDLE = {
    "object_store": "file:///b",
    "state": "ACTIVE",
    "kind": "raw",
    "keyspace_id": 3,
    "keyspace_name": "app",
    "start_key": "72000003",
    "end_key": "72000004",
}
READ = PushBundle(
    object_store="file:///b",
    state="ACTIVE",
    kind="raw",
    keyspace_id=3,
    keyspace_name="app",
    range=KeyRange(b"r\0\0\3", b"r\0\0\4"),
)


@pytest.fixture
def http() -> Iterator[ControlHttp]:
    with ControlHttp(MemoryControl(Tenant(4, 9)), MemoryStore()) as new_http:
        yield new_http


@pytest.fixture
def control(http: ControlHttp) -> Iterator[HttpControl]:
    new_control = HttpControl(http.url + "/", Tenant(4, 9), token="secret")
    yield new_control
    new_control.close()


def answered(status: int, body: object) -> HttpFault:
    return page(status, body if isinstance(body, bytes) else orjson.dumps(body))


def test_the_requests_of_a_pusher(http: ControlHttp, control: HttpControl) -> None:
    http.control.max_cut_ts[5] = (1 << 60) + 1
    assert control.issue_incarnation(5) == IncarnationGrant(incarnation=1, max_cut_ts=(1 << 60) + 1)
    assert control.newest_incarnation(5) == 1
    control.end_stream(5, 1, (1 << 60) + 5)
    assert http.control.ends == {5: (1 << 60) + 5}
    assert control.frontier() == [], "while the tenant awaits its snapshot"
    http.control.entries = [FrontierEntry(range=KeyRange(b"", b"t"), durable_ts=(1 << 60) + 3, resubscribe_id=2)]
    assert control.frontier() == http.control.entries
    http.faults["push"] = answered(200, BUNDLE)
    assert control.push_bundle() == READ
    assert http.keys == {"Bearer secret"}


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (503, "TS-1040", ControlUnavailable),
        (502, "", ControlUnavailable),
        (504, "", ControlUnavailable),
        (429, "TS-1090", ControlUnavailable),
        (500, "TS-1000", ControlUnavailable),
        (500, "TS-1010", ControlUnavailable),
        (404, "", ControlUnavailable),
        (409, "", ControlUnavailable),
        (401, "", ControlUnavailable),
        (400, "TS-9999", ControlUnavailable),
        (408, "TS-1001", ControlUnavailable),
        (404, "TS-1010", NotFound),
        (409, "TS-1050", Fenced),
        (410, "TS-1016", TenantDeleted),
        (400, "TS-1001", InvalidInput),
        (401, "TS-1080", Unauthenticated),
        (403, "TS-1081", NotAllowed),
    ],
)
def test_only_a_known_code_is_final(
    http: ControlHttp, control: HttpControl, status: int, code: str, kind: type[TiStreamError]
) -> None:
    http.faults["push"] = answered(status, {"detail": "it is Tuesday", "hint": "Wait.", "code": code})
    with pytest.raises(TiStreamError) as caught:
        control.push_bundle()
    assert type(caught.value) is kind
    assert (caught.value.message, caught.value.hint) == ("it is Tuesday", "Wait.")


@pytest.mark.parametrize(
    "body",
    [b"<html>", b"[]", b'{"object_store": "x"}', b"null", b"", b'{"object_store": "", "state": "ACTIVE"}', b"\xff"],
)
def test_an_answer_that_makes_no_sense_is_asked_for_again(http: ControlHttp, control: HttpControl, body: bytes) -> None:
    http.faults["push"] = answered(200, body)
    with pytest.raises(ControlUnavailable, match="invalid answer"):
        control.push_bundle()


@pytest.mark.parametrize("number", [-1, "-2", str(1 << 63), 1.5, True, None, "x", [], {}])
def test_a_frontier_with_invalid_numbers_is_refused(http: ControlHttp, control: HttpControl, number: object) -> None:
    for field in ("durable_ts", "resubscribe_id"):
        entry = {"start_key": "", "end_key": "", "durable_ts": "7", "resubscribe_id": 0} | {field: number}
        http.faults["frontier"] = answered(200, [entry])
        with pytest.raises(ControlUnavailable, match="invalid answer"):
            control.frontier()


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b""])
def test_an_error_without_a_problem_document_has_its_kind(http: ControlHttp, control: HttpControl, body: bytes) -> None:
    http.faults["push"] = answered(503, body)
    with pytest.raises(ControlUnavailable, match="503"):
        control.push_bundle()


def test_retries_outlive_an_outage(http: ControlHttp, control: HttpControl) -> None:
    http.faults["push"] = hang_up()
    failures: list[TiStreamError] = []

    def notice(error: TiStreamError) -> None:
        failures.append(error)
        if len(failures) == 3:
            http.faults["push"] = answered(200, BUNDLE)

    assert retrying(control.push_bundle, stop=threading.Event(), clock=SystemClock(), notice=notice) == READ
    assert {type(f) for f in failures} == {ControlUnavailable}


def test_retrying_ends_when_told_to_stop() -> None:
    stop = threading.Event()
    unreachable = HttpControl("http://127.0.0.1:1", Tenant(4, 9), token="secret")
    assert retrying(unreachable.push_bundle, stop=stop, clock=SystemClock(), notice=lambda _: stop.set()) is None
    unreachable.close()


def test_retrying_does_not_repeat_what_is_wrong(http: ControlHttp, control: HttpControl) -> None:
    http.faults["push"] = answered(401, {"detail": "who are you", "code": "TS-1080"})
    with pytest.raises(InvalidInput):
        retrying(control.push_bundle, stop=threading.Event(), clock=SystemClock())
    assert http.hits["push"] == 1
