"""Members of consumers in the catalog: leases, hand-overs, acknowledgements, and the log that they hold."""

from __future__ import annotations

import pytest

from tests.kit.catalog_cases import EDGE, START, T, grown_log, shift, together
from tistream.catalog.database import tables
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.retention import raise_floor
from tistream.catalog.tenancy.consumers import (
    CONSUMERS,
    Claim,
    acknowledge,
    add_consumer,
    claim_partition,
    leave,
    move_checkpoint,
    parts_of,
    remove_consumer,
    reset_consumer,
)
from tistream.catalog.tenancy.log_readers import ReaderState
from tistream.errors import Fenced, InvalidInput, NotFound, StateForbids, TsExpired, TsOutOfRange

LONG_MS = 600_000


@pytest.fixture(autouse=True)
def grown(catalog: Catalog) -> None:
    """A log that has ended: up to EDGE."""
    grown_log(catalog)


def claim(catalog: Catalog, member: str, session: int | None = None, *, lease_ms: int = LONG_MS) -> Claim:
    return claim_partition(catalog, T, "feed", member, session=session, lease_ms=lease_ms)


def done(catalog: Catalog, given: Claim, ts: int) -> int:
    assert given.partition is not None
    held = given.partition
    return acknowledge(catalog, T, "feed", held.number, epoch=held.epoch, ts=ts).checkpoint_ts


def test_a_member_that_died_is_replaced_where_it_acknowledged(catalog: Catalog) -> None:
    add_consumer(catalog, T, "feed", START)
    first = claim(catalog, "a", lease_ms=0)
    assert done(catalog, first, START + 5) == START + 5
    second = claim(catalog, "b")
    assert second.partition is not None
    assert (second.partition.checkpoint_ts, second.partition.member) == (START + 5, "b")
    with pytest.raises(Fenced):
        done(catalog, first, START + 9)
    assert done(catalog, second, START + 9) == START + 9
    assert done(catalog, second, START + 7) == START + 9, "it never moves back"
    with pytest.raises(TsOutOfRange):
        done(catalog, second, EDGE + 1)
    assert CONSUMERS.get(catalog, T, "feed").checkpoint_ts == START + 9


def test_while_a_lease_runs_others_get_nothing_of_it(catalog: Catalog) -> None:
    add_consumer(catalog, T, "feed", START)
    first = claim(catalog, "a")
    assert claim(catalog, "b").partition is None
    assert claim(catalog, "a", first.session).partition == first.partition
    leave(catalog, T, "feed", "a", first.session)
    assert claim(catalog, "b").partition is not None


def test_a_member_that_is_started_twice_is_one_member(catalog: Catalog) -> None:
    add_consumer(catalog, T, "feed", START)
    first, second = claim(catalog, "a"), claim(catalog, "a")
    with pytest.raises(Fenced):
        claim(catalog, "a", first.session)
    with pytest.raises(Fenced):
        done(catalog, first, START + 5)
    with pytest.raises(Fenced):
        leave(catalog, T, "feed", "a", first.session)
    assert done(catalog, second, START + 5) == START + 5


def test_the_checkpoint_is_the_lowest_of_the_partitions(catalog: Catalog) -> None:
    add_consumer(catalog, T, "feed", START, target_ts=START + 20, partitions=2)
    first = claim(catalog, "a")
    second = claim(catalog, "b")
    assert second.partition is None, "a has both until it pulls again"
    first = claim(catalog, "a", first.session)
    second = claim(catalog, "b", second.session)
    done(catalog, first, START + 20)
    assert CONSUMERS.get(catalog, T, "feed").checkpoint_ts == START
    assert not raise_floor(catalog, T, seen_floor=0, to_ts=START + 1), "the slower one holds the log"
    done(catalog, second, START + 20)
    assert CONSUMERS.get(catalog, T, "feed").state is ReaderState.FINISHED
    with pytest.raises(StateForbids):
        claim(catalog, "a", first.session)
    reset_consumer(catalog, T, "feed", START + 3)
    assert CONSUMERS.get(catalog, T, "feed").state is ReaderState.NORMAL
    assert claim(catalog, "a").partition is not None


def test_claims_at_once_never_share_a_partition(catalog: Catalog) -> None:
    add_consumer(catalog, T, "feed", START, partitions=3)
    claims = together(4, lambda n: claim(catalog, f"m{n}"))
    assert len({c.session for c in claims}) == 4
    held = {p.number: p.member for p in parts_of(catalog, T)["feed"].partitions}
    given = [c.partition for c in claims if c.partition is not None]
    assert all(held[p.number] == p.member or p.member is None for p in given) or len(given) == 1
    epochs = [p.epoch for p in parts_of(catalog, T)["feed"].partitions]
    assert len(set(epochs)) == 3


def test_one_that_is_idle_beyond_its_limit_holds_nothing(catalog: Catalog) -> None:
    add_consumer(catalog, T, "feed", START, idle_limit_ms=60_000)
    first = claim(catalog, "a")
    assert not raise_floor(catalog, T, seen_floor=0, to_ts=START + 10)
    shift(catalog, tables.consumers.c.last_active_ms, -60_001)
    (row,) = CONSUMERS.of_tenant(catalog, T)
    assert (row.holds_log, row.idle_ms >= 60_001) == (False, True)
    assert raise_floor(catalog, T, seen_floor=0, to_ts=START + 10)
    for _ in range(2):
        with pytest.raises(TsExpired, match="tistream consumer reset feed --to earliest") as refused:
            claim(catalog, "a", first.session)
    assert refused.value.facts["earliest_ts"] == str(START + 10)
    assert not CONSUMERS.get(catalog, T, "feed").holds_log, "a refused pull is no sign of life"
    with pytest.raises(TsExpired):
        reset_consumer(catalog, T, "feed", START + 9)
    with pytest.raises(TsOutOfRange):
        reset_consumer(catalog, T, "feed", EDGE + 1)
    reset_consumer(catalog, T, "feed", START + 10)
    with pytest.raises(Fenced):
        done(catalog, first, START + 12)
    again = claim(catalog, "a", first.session)
    assert again.partition is not None
    assert again.partition.checkpoint_ts == START + 10
    assert not raise_floor(catalog, T, seen_floor=START + 10, to_ts=START + 11), "it holds again"


def test_a_checkpoint_that_is_set_by_hand_moves_the_partitions(catalog: Catalog) -> None:
    add_consumer(catalog, T, "feed", START, partitions=2)
    given = claim(catalog, "a")
    done(catalog, given, START + 9)
    move_checkpoint(catalog, T, "feed", START + 5)
    assert sorted(p.checkpoint_ts for p in parts_of(catalog, T)["feed"].partitions) == [START + 5, START + 9]


def test_a_name_that_is_used_again_refuses_what_was_given_before(catalog: Catalog) -> None:
    add_consumer(catalog, T, "feed", START)
    before = claim(catalog, "a")
    with pytest.raises(InvalidInput):
        add_consumer(catalog, T, "feed", START, partitions=2)
    assert remove_consumer(catalog, T, "feed")
    with pytest.raises(NotFound):
        claim(catalog, "a", before.session)
    with pytest.raises(NotFound):
        done(catalog, before, START + 5)
    assert parts_of(catalog, T) == {}
    add_consumer(catalog, T, "feed", START)
    claim(catalog, "a", before.session)
    with pytest.raises(Fenced):
        done(catalog, before, START + 5)


def test_a_paused_one_gives_nothing_out(catalog: Catalog) -> None:
    add_consumer(catalog, T, "feed", START)
    given = claim(catalog, "a")
    CONSUMERS.switch(catalog, T, "feed", ReaderState.STOPPED)
    with pytest.raises(StateForbids):
        claim(catalog, "a", given.session)
    assert done(catalog, given, START + 5) == START + 5, "what is at hand may be finished"
