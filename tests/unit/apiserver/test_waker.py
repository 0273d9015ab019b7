"""Waiting for watermarks: who is woken, by what, and that nobody asks when nobody waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Mapping

from apiserver.waker import Waker
from tistream.catalog.tenancy.served import Edge
from tistream.errors import CatalogUnavailable
from tistream.ids import Tenant

A, B, GONE = Tenant(1, 1), Tenant(1, 2), Tenant(9, 9)
LONG_S = 60.0


class Watermarks:
    """What the catalog would say."""

    def __init__(self) -> None:
        self.of = {A: 10, B: 20}
        self.good: dict[Tenant, int] = {}
        self.asked: list[set[Tenant]] = []
        self.fails = 0

    def look(self, tenants: Collection[Tenant]) -> Mapping[Tenant, Edge]:
        self.asked.append(set(tenants))
        if self.fails:
            self.fails -= 1
            raise CatalogUnavailable
        return {t: Edge(self.of[t], self.good.get(t)) for t in tenants if t in self.of}


def waker_over(watermarks: Watermarks) -> Waker:
    return Waker(watermarks.look, interval_s=0.001)


async def ended() -> None:
    while any(t.name == "waker" for t in threading.enumerate()):
        await asyncio.sleep(0.001)


def test_a_move_wakes_those_of_the_tenant_and_nobody_else() -> None:
    watermarks = Watermarks()
    waker = waker_over(watermarks)

    async def play() -> None:
        with waker.watching(A) as one, waker.watching(A) as two, waker.watching(B) as other:
            waits = [asyncio.create_task(w.moved(seen, LONG_S)) for w, seen in ((one, 10), (two, 10), (other, 20))]
            while len(watermarks.asked) < 5:
                await asyncio.sleep(0.001)
            assert not any(w.done() for w in waits)
            watermarks.of[A] = 11
            assert await waits[0] == await waits[1] == 11
            assert not waits[2].done()
            assert await one.moved(10, 0.0) == 11, "what is known already needs no waiting"
            waits[2].cancel()
        assert waker.waiting == 0
        await ended()

    asyncio.run(play())
    assert set().union(*watermarks.asked) == {A, B}


def test_time_ends_a_wait_and_a_tenant_without_tasks_is_gone_only_if_it_had_some() -> None:
    watermarks = Watermarks()
    waker = waker_over(watermarks)

    async def play() -> None:
        with waker.watching(A) as watch, waker.watching(GONE) as deleted:
            assert await watch.moved(10, 0.02) is None
            assert await deleted.moved(0, 0.02) is None
            assert await deleted.moved(5, LONG_S) == -1
            del watermarks.of[A]
            assert await watch.moved(10, LONG_S) == -1
        await ended()

    asyncio.run(play())


def test_a_catalog_that_is_away_wakes_nobody_and_is_asked_again() -> None:
    watermarks = Watermarks()
    watermarks.fails = 1
    waker = waker_over(watermarks)

    async def play() -> None:
        with waker.watching(A) as watch:
            watermarks.of[A] = 11
            assert await watch.moved(10, LONG_S) == 11
        await ended()

    asyncio.run(play())
    assert len(watermarks.asked) >= 2


def test_close_wakes_everybody_for_good() -> None:
    waker = waker_over(Watermarks())

    async def play() -> None:
        with waker.watching(A) as watch, waker.watching(B) as other:
            waits = [asyncio.create_task(w.moved(100, LONG_S)) for w in (watch, other)]
            await asyncio.sleep(0)
            await asyncio.to_thread(waker.close)
            assert [await w for w in waits] == [None, None]
            assert await watch.moved(0, LONG_S) is None

    asyncio.run(play())


def test_loops_of_several_threads_are_woken() -> None:
    watermarks = Watermarks()
    waker = waker_over(watermarks)
    positions: list[int | None] = []

    async def wait() -> None:
        with waker.watching(A) as watch:
            positions.append(await watch.moved(10, LONG_S))

    threads = [threading.Thread(target=asyncio.run, args=(wait(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    while waker.waiting < 3:
        pass
    watermarks.of[A] = 12
    for thread in threads:
        thread.join()
    assert positions == [12, 12, 12]
