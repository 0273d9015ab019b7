"""A service that never answers is an error soon; one that has answered is waited for."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx2
import pytest

from tests.kit.client_script import Script, page, problem
from tests.kit.waiting import eventually
from tistream.client import AsyncClient, Client
from tistream.client.core.requests import FIRST_ANSWER_S, problem_error, unreachable
from tistream.errors import StoreUnavailable, TiStreamError

SOON_S = 0.3
RETRIED_S = 30  # by default


@contextmanager
def refused() -> Iterator[str]:
    with socket.socket() as listener:  # bound, and not listening
        listener.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def silent() -> Iterator[str]:
    """Connections are made, and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def black_hole() -> Iterator[str]:
    """Connections are not even made: the queue of the listener is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, socket.socket() as one, socket.socket() as two:
        for each in (one, two):
            each.setblocking(False)
            each.connect_ex(server.getsockname())
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def unknown_name() -> Iterator[str]:
    yield "http://unknown.invalid:1"


NOWHERE = [refused, silent, black_hole, unknown_name]


def ask(url: str) -> None:
    with Client(url, first_answer_s=SOON_S) as client:
        client.tenant(1, 1).page()


def ask_async(url: str) -> None:
    async def run() -> None:
        async with AsyncClient(url, first_answer_s=SOON_S) as client:
            await client.tenant(1, 1).page()

    asyncio.run(run())


@pytest.mark.parametrize("ask", [ask, ask_async])
@pytest.mark.parametrize("nowhere", NOWHERE)
def test_an_address_where_nothing_ever_answered(
    nowhere: Callable[[], Iterator[str]], ask: Callable[[str], None]
) -> None:
    with nowhere() as url:  # type: ignore[attr-defined]
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match=f"^{url} does not answer: "):
            ask(url)
        assert time.monotonic() - began < RETRIED_S, "an address is not waited for as a service is"
    assert FIRST_ANSWER_S <= 10


def test_a_silent_name_server_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's look-up has no timeout of its own. Its end closes what was left open."""
    look, before = threading.Event(), threading.active_count()

    def getaddrinfo(*args: object, **more: object) -> None:
        look.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    client = Client("http://far.example:1", first_answer_s=SOON_S, retry_s=0)
    with pytest.raises(StoreUnavailable, match=r"far\.example"), client:
        client.tenant(1, 1).page()
    assert not client._http.is_closed
    look.set()
    eventually(lambda: threading.active_count() == before, "the look-up has ended")
    assert client._http.is_closed


def test_a_password_in_the_address_is_not_shown() -> None:
    with refused() as url, pytest.raises(StoreUnavailable) as e:
        ask(url.replace("://", "://ann:secret@"))
    assert url in str(e.value)
    assert "secret" not in str(e.value)


def test_what_else_goes_wrong_in_the_thread_is_raised_where_it_is_waited_for() -> None:
    with pytest.raises(httpx2.InvalidURL), Client("http://host:port") as client:
        client.tenant(1, 1).page()


def test_a_service_that_has_answered_is_waited_for() -> None:
    """One answer of any kind shows that there is a service: a later outage is waited out up to `retry_s`."""
    script = Script(page("a"), *[httpx2.ConnectError("refused")] * 40, page("b"), problem(503), page("c"))
    pauses = list[float]()
    with Client("http://host:1", transport=script, sleep=pauses.append, first_answer_s=30, retry_s=600) as client:
        cursors = [client.tenant(1, 1).page().next_cursor for _ in range(3)]
    assert (cursors, script.first_signs) == (["a", "b", "c"], 1)
    assert sum(pauses) > 60


def test_a_service_that_is_away_has_a_code_of_its_own_and_what_it_says_of_others_keeps_theirs() -> None:
    assert unreachable("http://h", "refused").code == "TS-1042"
    said = problem_error({"status": 503, "code": "TS-1040", "detail": "The catalog did not answer.", "hint": "wait"})
    assert (said.code, said.hint, said.message) == ("TS-1040", "wait", "The catalog did not answer.")
    assert isinstance(said, StoreUnavailable), "it is asked again"
    assert problem_error({"status": 502, "detail": "a proxy"}).code == "TS-1042"


def test_no_error_tells_its_user_of_the_names_in_the_code() -> None:
    """The first line of an error's docstring is its default message: it names nothing of the code."""
    everything, todo = set[type[TiStreamError]](), [TiStreamError]
    while todo:
        subclasses = todo.pop().__subclasses__()
        everything.update(subclasses)
        todo += subclasses
    said = {
        each: (each.__doc__ or "").split("\n")[0] for each in everything if each.__module__.split(".")[0] != "tests"
    }
    assert len(said) > 40
    assert not [each.__name__ for each, line in said.items() if "`" in line or not line.strip()]
