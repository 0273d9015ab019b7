"""Model clusters to be served: of given keys, of a recording's snapshot, of a random workload's tables.

Regions are cut at keys, leaders dealt out to the stores 1, 2, 3 ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from simulator.capture import SNAPSHOT, read_lines
from simulator.core.cluster import Cluster, Region
from simulator.core.mvcc import Version
from simulator.profiles import FIRST_TABLE_ID, WorkloadProfile
from tistream.codec.table_key import META_RANGE, table_prefix
from tistream.keyrange import KeyRange
from tistream.model.change import Op

_FIRST_IDLE_TABLE_ID = 1_000_000  #: tables from here on are not written


def cluster_of(
    versions: Iterable[tuple[bytes, Version]], *, floor_ts: int, regions: int = 8, stores: int = 3
) -> Cluster:
    """A cluster with these versions (of one key the older first, all at or below `floor_ts`), in about `regions`
    regions of equally many keys."""
    content = list(versions)
    keys = sorted({key for key, _ in content})
    bounds = [keys[len(keys) * i // regions] for i in range(1, regions)] if keys else []
    cluster = Cluster(_regions(sorted(set(bounds)), stores), floor_ts=floor_ts)
    for key, version in content:
        cluster.load(key, version)
    return cluster


def recorded_versions(directory: Path) -> Iterator[tuple[bytes, Version]]:
    """The rows at the start of a recording, from its `snapshot_kv.ndjson.zst`. CorruptObject when that is damaged."""
    for _, line in read_lines(directory / SNAPSHOT):
        start_ts, commit_ts = int(line["start_ts"]), int(line["commit_ts"])
        yield bytes.fromhex(line["key"]), Version(start_ts, commit_ts, Op.PUT, bytes.fromhex(line["value"]), None)


def recorded_cluster(directory: Path, *, floor_ts: int, regions: int = 8, stores: int = 3) -> Cluster:
    """A cluster with the rows at the start of a recording."""
    return cluster_of(recorded_versions(directory), floor_ts=floor_ts, regions=regions, stores=stores)


def workload_cluster(profile: WorkloadProfile, *, floor_ts: int, regions: int = 0) -> Cluster:
    """An empty cluster for a workload of this profile: a region for each of its tables, one before and one after them,
    and regions of unwritten tables to make `regions` in all."""
    bounds = [META_RANGE.end, *(table_prefix(FIRST_TABLE_ID + 10 * i) for i in range(profile.tables))]
    idle = max(0, regions - len(bounds) - 1)
    bounds += [table_prefix(_FIRST_IDLE_TABLE_ID + i) for i in range(idle)]
    return Cluster(_regions(bounds, profile.stores), floor_ts=floor_ts)


def _regions(bounds: Sequence[bytes], stores: int) -> Iterable[Region]:
    for i, (start, end) in enumerate(zip([b"", *bounds], [*bounds, b""], strict=True)):
        yield Region(region_id=i + 1, version=1, store_id=i % stores + 1, range=KeyRange(start, end))
