"""The pushers' source follows RawKV of stores that answer over gRPC; regions change, stores die, streams are cut."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

from pusher.flush_schedule import FlushSchedule
from pusher.tikv.core.requests import KvApi
from pusher.tikv.source import SourceOptions, TikvSource
from simulator.dst.raw_reading import RAW_KEYS
from simulator.raw_workload import RawProfile, RawWorkload, raw_cluster
from simulator.serve.faults import STORM
from simulator.serve.served import ServedCluster
from tests.kit.raw_judge import RawJudge
from tistream import ts as tso
from tistream.clock import SystemClock
from tistream.errors import ErrorKind, TiStreamError
from tistream.tikv.core.api_versions import Api
from tistream.tikv.pd import PdClient
from tistream.tikv.region_cache import RegionCache

WRITES, LIMIT_S = 1500, 40.0


def follow(sources: Sequence[TikvSource], judge: RawJudge, done: Callable[[], bool]) -> None:
    """Poll all sources until it is so."""
    deadline = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < deadline, judge.complete_ts
        for source in sources:
            try:
                events = source.poll(0.01, judge.checkpoint_of)
            except TiStreamError as e:
                if e.kind is not ErrorKind.RETRY:
                    raise
                continue
            for event in events:
                judge.hear(source.store_id, event)


def test_every_write_is_there_or_in_a_marked_interval() -> None:
    storm = RawProfile()
    slower = tuple((name, n * 20 if name in ("put", "apply") else n) for name, n in storm.actions)
    profile = replace(storm, puts=4, actions=slower)
    cluster = raw_cluster(profile, floor_ts=tso.compose(SystemClock().unix_ms()))
    workload = RawWorkload(3, cluster, profile)
    with ServedCluster(
        cluster, raw=workload, api=Api.V2, steps_per_s=200, resolved_s=0.1, faults=STORM, seed=3
    ) as served:
        judge, clock = RawJudge(workload), SystemClock()
        with closing(PdClient([served.pd_address])) as pd:
            regions = RegionCache(pd, [RAW_KEYS], clock=clock, refresh_s=0.5)
            regions.start()
            sources = [
                TikvSource(
                    store_id,
                    SourceOptions(kv_api=KvApi.RAW),
                    pd=pd,
                    region_cache=regions,
                    ranges=[RAW_KEYS],
                    clock=clock,
                    schedule=FlushSchedule(clock, flush_s=0.1),
                )
                for store_id in served.store_ids
            ]
            follow(sources, judge, lambda: len(workload.committed) > WRITES)
            end_ts = served.settle()
            follow(sources, judge, lambda: judge.complete_ts >= end_ts)
            for source in sources:
                source.close()
            regions.stop()
    assert workload.disorder == ""
    assert judge.violations(end_ts) == []
    assert judge.rules.missing
