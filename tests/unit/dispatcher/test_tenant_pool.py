"""Threads shared by tenants: the slow ones leave some to the others, and turns are fair."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from dispatcher import tenant_pool
from dispatcher.tenant_pool import TenantPool
from simulator.dst.mutants import reworded
from tests.kit.waiting import WAIT_S, eventually
from tistream.clock import SystemClock
from tistream.ids import Tenant

THREADS, OF_TENANT = 4, 3
WELL = Tenant(1, 99)


class Run:
    """Tasks of slow tenants, which wait until the end, and of one that is well."""

    def __init__(self) -> None:
        self.pool = TenantPool(THREADS, OF_TENANT, "test", SystemClock())
        self.released = threading.Event()
        self.begun: list[Tenant] = []

    def hang(self, tenant: Tenant, tasks: int) -> None:
        def task() -> None:
            self.begun.append(tenant)
            self.released.wait(WAIT_S)

        for _ in range(tasks):
            self.pool.submit(tenant, task)

    def others_run(self, timeout_s: float) -> bool:
        done = threading.Event()
        self.pool.submit(WELL, done.set)
        return done.wait(timeout_s)

    def end(self) -> None:
        self.released.set()
        self.pool.close()


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setattr(tenant_pool, "SLOW_S", 0.05)
    run = Run()
    yield run
    run.end()


def test_a_tenant_whose_tasks_hang_leaves_threads_to_the_others(running: Run) -> None:
    running.hang(Tenant(1, 1), 20)
    eventually(lambda: len(running.begun) == OF_TENANT)
    assert running.others_run(WAIT_S)
    eventually(lambda: running.pool.slow() == [Tenant(1, 1)])
    assert len(running.begun) == OF_TENANT


def test_a_slow_tenant_gets_one_thread_until_it_is_fast_again(running: Run) -> None:
    slow = Tenant(1, 1)
    running.hang(slow, 1)
    eventually(lambda: running.pool.slow() == [slow])
    running.hang(slow, 5)
    assert running.others_run(WAIT_S)
    assert len(running.begun) == 1
    running.released.set()
    eventually(lambda: len(running.begun) == 6)


def test_the_first_error_of_many_is_raised_when_all_have_ended(running: Run) -> None:
    ended: list[int] = []

    def task(n: int) -> None:
        ended.append(n)
        if n == 3:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        running.pool.of(WELL).each(task, range(10))
    assert sorted(ended) == list(range(10))


def test_who_waits_for_a_pool_that_ends_is_let_go(running: Run) -> None:
    running.hang(Tenant(1, 1), OF_TENANT)
    waiting = threading.Thread(target=running.pool.of(Tenant(1, 1)).each, args=(lambda _: None, range(5)))
    waiting.start()
    closing = threading.Thread(target=running.pool.close)
    closing.start()
    waiting.join(WAIT_S)
    assert not waiting.is_alive()
    running.released.set()
    closing.join(WAIT_S)


def _takes_all(running: Run) -> None:
    running.hang(Tenant(1, 1), 20)
    eventually(lambda: len(running.begun) == THREADS)


def _takes_more_when_slow(running: Run) -> None:
    running.hang(Tenant(1, 1), 1)
    eventually(lambda: running.pool.slow() == [Tenant(1, 1)])
    running.hang(Tenant(1, 1), 5)
    eventually(lambda: len(running.begun) == OF_TENANT)


@pytest.mark.parametrize(
    ("edit", "goes_wrong"),
    [
        (("(1 if slow else self._of_tenant)", "100"), _takes_all),
        (("1 if slow else self._of_tenant", "self._of_tenant"), _takes_more_when_slow),
    ],
)
def test_mutants_are_noticed(running: Run, edit: tuple[str, str], goes_wrong: Callable[[Run], None]) -> None:
    with reworded(TenantPool, "_may_begin", edit):
        goes_wrong(running)
