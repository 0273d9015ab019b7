"""The HTTP end of the control plane against a real server that can be killed and started again on its port."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson
import pytest

from pusher.control import ControlUnavailable, HttpControl, IncarnationGrant, PushBundle, retrying
from pusher.frontier import FrontierEntry
from tistream.clock import SystemClock
from tistream.errors import Fenced, InvalidInput, NotAllowed, NotFound, TenantDeleted, TiStreamError, Unauthenticated
from tistream.ids import Tenant
from tistream.keyrange import KeyRange

ROOT = "/v1/clusters/4/tenants/9"


class Server:
    """Answers by a table (method, path) -> (status, body); remembers the requests."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], tuple[int, object]] = {}
        self.requests: list[tuple[str, str, str]] = []
        self.port = 0
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                outer.requests.append((self.command, self.path, self.headers.get("Authorization", "")))
                status, body = outer.answers.get((self.command, self.path), (404, {"detail": "no such path"}))
                data = body if isinstance(body, bytes) else orjson.dumps(body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = answer

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def kill(self) -> None:
        if self._server:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


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
def server() -> Iterator[Server]:
    made = Server()
    made.start()
    yield made
    made.kill()


@pytest.fixture
def control(server: Server) -> Iterator[HttpControl]:
    made = HttpControl(server.url + "/", Tenant(4, 9), token="secret")
    yield made
    made.close()


def test_the_five_requests(server: Server, control: HttpControl) -> None:
    server.answers = {
        ("POST", f"{ROOT}/stores/5/incarnations"): (200, {"incarnation": 3, "max_cut_ts": str((1 << 60) + 1)}),
        ("GET", f"{ROOT}/stores/5/incarnations"): (200, {"incarnation": 4}),
        ("POST", f"{ROOT}/stores/5/incarnations/3:end"): (200, {}),
        ("GET", f"{ROOT}/frontier"): (
            200,
            [{"start_key": "", "end_key": "74", "durable_ts": str((1 << 60) + 3), "resubscribe_id": 2}],
        ),
        ("GET", f"{ROOT}/push"): (200, BUNDLE),
    }
    assert control.issue_incarnation(5) == IncarnationGrant(incarnation=3, max_cut_ts=(1 << 60) + 1)
    assert control.newest_incarnation(5) == 4
    control.end_stream(5, 3, (1 << 60) + 5)
    assert control.frontier() == [FrontierEntry(range=KeyRange(b"", b"t"), durable_ts=(1 << 60) + 3, resubscribe_id=2)]
    assert control.push_bundle() == READ
    assert {r[2] for r in server.requests} == {"Bearer secret"}


def test_no_frontier_while_the_tenant_awaits_its_snapshot(server: Server, control: HttpControl) -> None:
    server.answers["GET", f"{ROOT}/frontier"] = (200, [])
    assert control.frontier() == []


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
    server: Server, control: HttpControl, status: int, code: str, kind: type[TiStreamError]
) -> None:
    server.answers["GET", f"{ROOT}/push"] = (status, {"detail": "it is Tuesday", "hint": "Wait.", "code": code})
    with pytest.raises(TiStreamError) as caught:
        control.push_bundle()
    assert type(caught.value) is kind
    assert (caught.value.message, caught.value.hint) == ("it is Tuesday", "Wait.")


@pytest.mark.parametrize(
    "body",
    [b"<html>", b"[]", b'{"object_store": "x"}', b"null", b"", b'{"object_store": "", "state": "ACTIVE"}', b"\xff"],
)
def test_an_answer_that_makes_no_sense_is_asked_for_again(server: Server, control: HttpControl, body: bytes) -> None:
    server.answers["GET", f"{ROOT}/push"] = (200, body)
    with pytest.raises(ControlUnavailable, match="invalid answer"):
        control.push_bundle()


@pytest.mark.parametrize("number", [-1, "-2", str(1 << 63), 1.5, True, None, "x", [], {}])
def test_a_frontier_with_invalid_numbers_is_refused(server: Server, control: HttpControl, number: object) -> None:
    for field in ("durable_ts", "resubscribe_id"):
        entry = {"start_key": "", "end_key": "", "durable_ts": "7", "resubscribe_id": 0} | {field: number}
        server.answers["GET", f"{ROOT}/frontier"] = (200, [entry])
        with pytest.raises(ControlUnavailable, match="invalid answer"):
            control.frontier()


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b""])
def test_an_error_without_a_problem_document_has_its_kind(server: Server, control: HttpControl, body: bytes) -> None:
    server.answers["GET", f"{ROOT}/push"] = (503, body)
    with pytest.raises(ControlUnavailable, match="503"):
        control.push_bundle()


def test_retries_outlive_a_killed_service(server: Server, control: HttpControl) -> None:
    path = ("GET", f"{ROOT}/push")
    server.answers[path] = (200, BUNDLE)
    control.push_bundle()
    server.kill()
    failures: list[TiStreamError] = []

    def notice(error: TiStreamError) -> None:
        failures.append(error)
        if len(failures) == 3:
            server.start()

    found = retrying(
        control.push_bundle, stop=threading.Event(), clock=SystemClock(), rand=random.Random(1), notice=notice
    )
    assert found == READ
    assert {type(f) for f in failures} == {ControlUnavailable}


def test_retrying_ends_when_told_to_stop(server: Server, control: HttpControl) -> None:
    server.kill()
    stop = threading.Event()
    found = retrying(
        control.push_bundle, stop=stop, clock=SystemClock(), rand=random.Random(1), notice=lambda _: stop.set()
    )
    assert found is None


def test_retrying_does_not_repeat_what_is_wrong(server: Server, control: HttpControl) -> None:
    server.answers["GET", f"{ROOT}/push"] = (401, {"detail": "who are you", "code": "TS-1080"})
    with pytest.raises(InvalidInput):
        retrying(control.push_bundle, stop=threading.Event(), clock=SystemClock(), rand=random.Random(1))
    assert len(server.requests) == 1
