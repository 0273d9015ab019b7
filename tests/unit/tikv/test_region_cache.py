"""Region cache: notifications, paging and gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.kit.manual_clock import ManualClock
from tistream.errors import StoreUnavailable
from tistream.keyrange import KeyRange
from tistream.tikv.core.pd_messages import Region, Store
from tistream.tikv.core.regions import region_form
from tistream.tikv.region_cache import RegionCache

TABLES, PART = KeyRange(b"t", b"u"), KeyRange(b"ta", b"tb")


def key(n: int) -> bytes:
    return region_form(b"t" + n.to_bytes(4, "big"))


class ManyRegions:
    """A PD with so many regions from -inf to +inf."""

    cluster_id = 1

    def __init__(self, count: int) -> None:
        bounds = [b"", *(key(n) for n in range(1, count)), b""]
        self.regions = [
            Region(id=n + 1, conf_ver=1, version=1, start=bounds[n], end=bounds[n + 1], leader_store_id=1)
            for n in range(count)
        ]
        self.calls: list[tuple[bytes, bytes]] = []
        self.away = False
        self.omitted = 0  #: a region that is not in its page: one without a key of the keyspace

    def tso(self) -> int:
        return 1

    def stores(self) -> list[Store]:
        return []

    def scan_regions(self, start: bytes, end: bytes, limit: int) -> list[Region]:
        self.calls.append((start, end))
        if self.away:
            raise StoreUnavailable("PD is away")
        overlapping = [r for r in self.regions if (not r.end or r.end > start) and (not end or r.start < end)]
        return [r for r in overlapping[:limit] if r.id != self.omitted]


class Rig:
    def __init__(self, count: int = 3) -> None:
        self.pd, self.clock = ManyRegions(count), ManualClock()
        self.region_cache = RegionCache(self.pd, [TABLES], clock=self.clock, refresh_s=10.0)
        self.received: list[tuple[KeyRange | None, list[int] | None]] = []
        self.end = self.region_cache.listen(self.on_regions)

    def on_regions(self, range_: KeyRange | None, regions: Sequence[Region] | None) -> None:
        self.received.append((range_, None if regions is None else [r.id for r in regions]))


def test_refreshes_are_periodic_and_requests_immediate() -> None:
    rig = Rig()
    rig.region_cache.read()
    assert rig.received == [(TABLES, [1, 2, 3])]
    rig.region_cache.read()
    assert len(rig.received) == 1, "nothing is due"
    rig.region_cache.request(PART)
    rig.region_cache.request(PART)
    rig.region_cache.read()
    assert rig.received[1:] == [(PART, [3])], "one answer, also for two who ask"
    assert rig.pd.calls[-1] == (region_form(b"ta"), region_form(b"tb"))
    rig.clock.advance(10)
    rig.region_cache.request(TABLES)
    rig.region_cache.read()
    assert rig.received[2:] == [(TABLES, [1, 2, 3])]


@pytest.mark.parametrize("omitted", [0, 500])
def test_long_lists_come_in_pages(omitted: int) -> None:
    rig = Rig(2500)
    rig.pd.omitted = omitted
    rig.region_cache.read()
    assert rig.received == [(TABLES, [n for n in range(1, 2501) if n != omitted])]
    assert len(rig.pd.calls) == 3


def test_a_pd_that_repeats_a_page_ends_the_list() -> None:
    rig = Rig(1024)
    rig.pd.regions[-1] = Region(id=9, conf_ver=1, version=1, start=key(1), end=region_form(b"t"), leader_store_id=1)
    rig.region_cache.read()
    assert len(rig.pd.calls) == 2, "the rest, which PD did not list, is asked for once"


def test_requesters_are_notified_when_pd_is_away() -> None:
    rig = Rig()
    rig.region_cache.read()
    rig.pd.away = True
    rig.region_cache.request(PART)
    rig.region_cache.request(KeyRange(b"tc", b"td"))
    with pytest.raises(StoreUnavailable):
        rig.region_cache.read()
    assert rig.received[1:] == [(PART, None), (KeyRange(b"tc", b"td"), None)]
    assert len(rig.pd.calls) == 2, "not asked once more while it is away"


def test_a_reported_leader_and_the_end_of_listening() -> None:
    rig = Rig()
    rig.region_cache.report_leader(rig.pd.regions[1])
    assert rig.received == [(None, [2])]
    rig.end()
    rig.end()
    rig.region_cache.report_leader(rig.pd.regions[1])
    assert len(rig.received) == 1


def test_a_region_that_holds_many_wanted_parts_is_listed_once() -> None:
    parts = [KeyRange(b"t" + bytes([n, 0]), b"t" + bytes([n, 9])) for n in range(200)]
    pd, clock = ManyRegions(1), ManualClock()
    region_cache = RegionCache(pd, parts, clock=clock)
    received: list[KeyRange | None] = []
    region_cache.listen(lambda range_, regions: received.append(range_) if regions else None)
    region_cache.read()
    assert received == parts
    assert len(pd.calls) == 1


def test_many_regions_are_refreshed_less_often() -> None:
    rig = Rig(30_000)
    rig.region_cache.read()
    for seconds, refreshes in ((10, 1), (19, 1), (2, 2)):
        rig.clock.advance(seconds)
        rig.region_cache.read()
        assert len(rig.received) == refreshes, seconds


@pytest.mark.parametrize("lost", ["gap", "leader", "all"])
def test_a_persistent_gap_is_reported(lost: str) -> None:
    rig = Rig()
    whole = rig.pd.regions
    rig.pd.regions = {
        "gap": [whole[0], whole[2]],
        "leader": [whole[0], replace(whole[1], leader_store_id=0), whole[2]],
        "all": [],
    }[lost]
    rig.region_cache._wanted = (KeyRange(b"", b""),)
    rig.region_cache.read()
    assert not rig.region_cache.problems()
    rig.clock.advance(6)
    (problem,) = rig.region_cache.problems()
    assert problem.facts["key"] == ("" if lost == "all" else whole[1].start.hex())
    rig.pd.regions = whole
    rig.clock.advance(6)
    rig.region_cache.read()
    assert not rig.region_cache.problems()


def test_the_error_that_ends_the_reader_is_available() -> None:
    rig = Rig()
    rig.pd.scan_regions = lambda *_: 1 / 0  # type: ignore[method-assign,assignment]
    rig.region_cache.start()
    assert not rig.region_cache.wait_until_ready(5)
    assert "ZeroDivisionError" in str(rig.region_cache.failure)
    rig.region_cache.stop()
