"""Members of a consumer that are killed, paused and started twice: each change is acknowledged once, none skipped.

Each rule of the group is broken once, by the simulator's mutants, and the runs notice it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulator.dst.all_mutants import MUTANTS
from tests.kit.consumer_run import ConsumerRun
from tistream.catalog.tenancy.core.consumer_group import (
    Acknowledged,
    ConsumerGroup,
    DropMember,
    Left,
    Partition,
    Pulled,
    Reset,
)
from tistream.errors import Fenced, NotFound, StateForbids
from tistream.limits import CONSUMER_MEMBERS_MAX

SEEDS = 60
OF_PAGES = "acknowledged-beyond-page"  # see tests/unit/reading/test_position.py


def run_all(make: Callable[[int], ConsumerRun]) -> list[ConsumerRun]:
    runs = [make(seed) for seed in range(SEEDS)]
    for run in runs:
        run.run()
    return runs


def test_each_change_is_acknowledged_once_and_none_is_skipped() -> None:
    runs = run_all(ConsumerRun)
    assert sum(run.hand_overs for run in runs) > SEEDS, "leases end in most of the runs"
    assert sum(run.fenced for run in runs) > SEEDS, "and something is refused"


class StartsAtWhatWasDelivered(ConsumerRun):
    def position(self, partition: Partition) -> int:
        return self.delivered[partition.number]


@pytest.mark.parametrize(
    "name", [name for name, m in MUTANTS.items() if m.scenario == "consumers" and name != OF_PAGES]
)
def test_a_broken_rule_is_noticed(name: str) -> None:
    with MUTANTS[name].patch(), pytest.raises(AssertionError):
        run_all(ConsumerRun)


def test_a_holder_that_starts_at_what_was_delivered_is_noticed() -> None:
    with pytest.raises(AssertionError):
        run_all(StartsAtWhatWasDelivered)


def group_of(partitions: int) -> ConsumerGroup:
    fresh = [Partition(number=n, checkpoint_ts=0, member=None, epoch=0) for n in range(partitions)]
    return ConsumerGroup(fresh, (), 0)


def pulled(group: ConsumerGroup, member: str, now_ms: int = 0, lease_ms: int = 10) -> int:
    known = group.members.get(member)
    session = None if known is None else known.session
    group.handle(Pulled(member=member, session=session, now_ms=now_ms, lease_ms=lease_ms))
    return group.members[member].session


@pytest.mark.parametrize("partitions", [1, 2, 4, 7])
@pytest.mark.parametrize("members", [1, 2, 3, 5])
def test_partitions_are_shared_evenly_as_members_come_and_go(partitions: int, members: int) -> None:
    group = group_of(partitions)
    for count in range(1, members + 1):
        names = [f"m{n}" for n in range(count)]
        for name in names * 3:
            pulled(group, name)
        shares = [len(group.held_by(name)) for name in names]
        assert sum(shares) == partitions
        assert max(shares) - min(shares) <= 1
    for name in ["m0"] * 2:
        pulled(group, name, now_ms=10)
    assert len(group.held_by("m0")) == partitions, "the leases of the others have ended"
    assert list(group.members) == ["m0"]


def test_a_full_group_keeps_its_partitions_where_they_are() -> None:
    group = group_of(4)
    for name in ["a", "b"] * 3:
        pulled(group, name)
    before = dict(group.partitions)
    for name in ["b", "a", "a", "b"]:
        pulled(group, name, now_ms=5)
    assert group.partitions == before


def test_one_who_leaves_gives_everything_up_at_once() -> None:
    group = group_of(2)
    first = pulled(group, "a", lease_ms=1000)
    with pytest.raises(Fenced):
        group.handle(Left(member="a", session=first - 1))
    assert DropMember("a") in group.handle(Left(member="a", session=first))
    assert group.handle(Left(member="a", session=first)) == [], "once more: its reply was lost"
    pulled(group, "b")
    assert len(group.held_by("b")) == 2


def test_a_reset_moves_back_and_fences_what_is_at_hand() -> None:
    group = group_of(1)
    pulled(group, "a")
    (held,) = group.held_by("a")
    group.handle(Acknowledged(partition=0, epoch=held.epoch, ts=50))
    group.handle(Reset(ts=20))
    assert (group.checkpoint_ts, group.members) == (20, {})
    with pytest.raises(Fenced):
        group.handle(Acknowledged(partition=0, epoch=held.epoch, ts=60))


def test_an_unknown_partition_and_one_member_too_many_are_refused() -> None:
    group = group_of(1)
    with pytest.raises(NotFound):
        group.handle(Acknowledged(partition=1, epoch=0, ts=1))
    for n in range(CONSUMER_MEMBERS_MAX):
        pulled(group, f"m{n}")
    with pytest.raises(StateForbids):
        pulled(group, "late")
    pulled(group, "m0")
