"""Events that a tab of the console receives, from a service that is a function."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import orjson
import pytest

from apiserver.console import tab
from apiserver.console.internal_get import Answer
from apiserver.console.tab import Part, Tab, Tail
from tistream.errors import CatalogUnavailable, Unauthenticated

FAST = 0.001
A, B = Part(address="/a", every_s=FAST), Part(address="/b", every_s=FAST)


class Service:
    """Answers by a function of (address, how often it was asked), and keeps what a tab was told."""

    def __init__(self, answer: Callable[[str, int], Answer]) -> None:
        self.answer = answer
        self.asked: dict[str, int] = {}
        self.told: list[tuple[float, str, Any]] = []
        self.is_closing = False
        self.refusal: Exception | None = None

    async def ask(self, address: str, _: Mapping[str, str]) -> Answer:
        self.asked[address] = self.asked.get(address, 0) + 1
        await asyncio.sleep(0)
        return self.answer(address, self.asked[address])

    async def send(self, piece: bytes | memoryview) -> None:
        now = asyncio.get_running_loop().time()
        for words in bytes(piece).decode().split("\n\n"):
            if words.startswith("event: ") and "begin" not in words.partition("\n")[0]:
                name, _, data = words.removeprefix("event: ").partition("\ndata: ")
                self.told.append((now, name, orjson.loads(data)))

    async def check_key(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def run(self, parts: list[Part], enough: Callable[[], bool], tail: Tail | None = None) -> None:
        opened_tab = Tab(
            parts,
            tail,
            ask=self.ask,
            send=self.send,
            check_key=self.check_key,
            is_closing=lambda: self.is_closing,
        )
        running = asyncio.ensure_future(opened_tab.run())
        while not enough() and not running.done():
            await asyncio.sleep(0.005)
        self.is_closing = True
        await asyncio.wait_for(running, 60)

    def names(self) -> list[str]:
        return [name for _, name, _ in self.told]


def page(text: str, status: int = 200, **headers: str) -> Answer:
    return Answer(status=status, headers=headers, body=text.encode())


def test_rounds_are_half_a_second_apart_and_tell_the_newest() -> None:
    service = Service(lambda address, n: page(f"{address} {n}"))
    asyncio.run(service.run([A, B], lambda: len(service.told) >= 6))
    rounds = sorted({at for at, name, _ in service.told if name == "part"})
    assert len(rounds) >= 3
    assert all(b - a >= tab.ROUND_S * 0.99 for a, b in pairwise(rounds))
    for at in rounds:
        parts_sent = sorted(data["part"] for when, name, data in service.told if when == at and name == "part")
        assert parts_sent == ["/a", "/b"]
    assert service.asked["/a"] > 10, "it was asked often and told seldom"
    assert service.told[-1][1:] == ("end", {"reason": "shutdown"})


def test_what_is_the_same_is_told_once_and_a_beat_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tab, "ROUND_S", FAST)
    monkeypatch.setattr(tab, "BEAT_S", 0.05)
    service = Service(lambda address, n: page("other" if "beat" in service.names() else "same"))
    asyncio.run(service.run([A], lambda: service.names().count("part") == 2))
    names = service.names()
    assert names[0] == "part"
    assert names.count("part") == 2
    assert names.count("beat") >= 1


@pytest.mark.parametrize("status", [500, 503, 429])
def test_trouble_is_told_once_and_what_comes_back_is_told_though_it_is_the_same(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    for name in ("ROUND_S", "_TROUBLE_S"):
        monkeypatch.setattr(tab, name, FAST)
    service = Service(
        lambda *_: page("no", status) if service.names() in (["part"], ["part", "trouble"]) else page("same")
    )
    polls_in_trouble: list[int] = []

    def enough() -> bool:
        if len(service.told) == 2 and len(polls_in_trouble) < 20:
            polls_in_trouble.append(1)  # stay in trouble for a while
            return False
        if len(service.told) == 2:
            service.answer = lambda *_: page("same")
        return len(service.told) >= 3

    asyncio.run(service.run([A], enough))
    assert [name for name in service.names() if name != "beat"] == ["part", "trouble", "part", "end"]


def test_a_part_that_is_refused_is_over_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tab, "ROUND_S", FAST)
    service = Service(lambda address, n: page("gone", 404) if address == "/a" else page(str(n)))
    asyncio.run(service.run([A, B], lambda: service.names().count("part") >= 5))
    (refused,) = [data for _, name, data in service.told if name == "part" and data["part"] == "/a"]
    assert (refused["status"], refused["over"]) == (404, True)
    assert service.asked["/a"] == 1


@pytest.mark.parametrize("by", ["part", "look"])
def test_who_is_signed_out_is_told_nothing_more(monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    monkeypatch.setattr(tab, "_FIRST_ROUND_S", 0.05)
    service = Service(lambda address, n: page("", 401) if by == "part" and address == "/b" else page(f"secret {n}"))
    if by == "look":
        service.refusal = Unauthenticated("The API key has been revoked.")
    asyncio.run(service.run([A, B], lambda: False))
    assert [row[1:] for row in service.told] == [("end", {"reason": "signed-out"})]


def test_a_catalog_that_is_away_signs_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tab, "ROUND_S", FAST)
    service = Service(lambda _, n: page(str(n)))
    service.refusal = CatalogUnavailable("away")
    asyncio.run(service.run([A], lambda: service.names().count("part") >= 3))
    assert service.names()[-1] == "end"


def test_a_slow_part_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tab, "ROUND_S", FAST)
    service = Service(lambda _, n: page(str(n)))
    plain = service.ask

    async def ask(address: str, headers: Mapping[str, str]) -> Answer:
        if address == "/slow":
            await asyncio.Event().wait()
        return await plain(address, headers)

    service.ask = ask  # type: ignore[method-assign, assignment]
    asyncio.run(service.run([Part(address="/slow", every_s=FAST), B], lambda: service.names().count("part") >= 3))
    assert service.names()[-1] == "end", "nor does it hold up the end"


def test_a_tail_goes_on_where_it_was_and_from_the_newest_when_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROUND_S", "_TROUBLE_S"):
        monkeypatch.setattr(tab, name, FAST)
    rows = b"\n".join(orjson.dumps({"type": "insert", "n": n}) for n in range(300))

    def answer(address: str, _: int) -> Answer:
        if "cursor=old" in address:
            return page('{"detail": "below retention"}', 410)
        if "start_ts=latest" in address:
            return Answer(status=200, headers={"tistream-next-cursor": "c1"}, body=rows + b'\n{"type":"resolved"}\n')
        if "cursor=c1" in address:
            return page("away", 503) if len(service.asked) < 4 and service.asked[address] < 3 else page("{}", 410)
        raise AssertionError(address)

    service = Service(answer)
    tail = Tail(tenant="1/2", start_ts="latest", cursor="old")
    asyncio.run(service.run([], lambda: len(service.told) >= 3 or service.names().count("tail") >= 2, tail))
    first = next(data for _, name, data in service.told if name == "tail")
    assert [event["n"] for event in first["events"]] == list(range(180, 300))
    assert (first["cursor"], first["over"]) == ("c1", False)
    paths = [address.partition("?")[0] for address in service.asked]
    assert set(paths) == {"/v1/clusters/1/tenants/2/changes"}
    assert any("cursor=c1" in address for address in service.asked)
    assert service.asked[next(a for a in service.asked if "cursor=c1" in a)] >= 3, "it was tried again"
