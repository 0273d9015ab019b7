"""All regions of a range are listed, whatever PD's pages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tistream.keyrange import KeyRange
from tistream.tikv.core.pd_messages import Region, Store
from tistream.tikv.core.regions import region_form, regions_of

BOUNDS = [region_form(b"t"), *(region_form(b"t" + n.to_bytes(8, "big")) for n in range(1, 3000)), region_form(b"u")]
REGIONS = [
    Region(id=n + 1, conf_ver=1, version=1, start=start, end=end, leader_store_id=1)
    for n, (start, end) in enumerate(pairwise(BOUNDS))
]


class LeavesOut:
    """A PD of a keyspace: region 500 has no plain key and is not in its page."""

    cluster_id = 1

    def tso(self) -> int:
        return 1

    def scan_regions(self, start: bytes, end: bytes, limit: int) -> Sequence[Region]:
        listed = [r for r in REGIONS if r.end > start and r.start < end][:limit]
        return [r for r in listed if r.id != 500]

    def stores(self) -> Sequence[Store]:
        return []


def test_an_omitted_region_does_not_end_the_list() -> None:
    found = regions_of(LeavesOut(), KeyRange(b"t", b"u"))
    assert [r.id for r in found] == [r.id for r in REGIONS if r.id != 500]
