"""`tistream sim --serve-tikv`: serves a modelled cluster with a workload as PD and TiKV, on the loopback interface."""

from __future__ import annotations

import sys
from dataclasses import replace

_STORM_RESOLVED_S = 0.5


def serve_tikv(*, seed: int, stores: int, regions: int, rate: float, storm: bool) -> None:
    """Serve until Ctrl-C. PD's address goes to standard output."""
    from simulator.profiles import SLOW_STORM, STEADY
    from simulator.serve.content import workload_cluster
    from simulator.serve.faults import CALM, STORM
    from simulator.serve.served import ServedCluster
    from simulator.workload import Workload
    from tistream import ts
    from tistream.cli.run import wait_for_signal
    from tistream.clock import SystemClock

    clock = SystemClock()
    profile = replace(SLOW_STORM if storm else STEADY, stores=stores)
    cluster = workload_cluster(profile, floor_ts=ts.compose(clock.unix_ms()), regions=regions)
    workload = Workload(seed, cluster, profile, whole_meta=True)
    with ServedCluster(
        cluster,
        stores=stores,
        workload=workload,
        steps_per_s=rate,
        resolved_s=_STORM_RESOLVED_S if storm else 1.0,
        faults=STORM if storm else CALM,
        seed=seed,
    ) as served:
        print(served.pd_address, flush=True)
        print(
            f"PD at {served.pd_address}, {stores} stores, {len(cluster.regions())} regions, seed {seed}; "
            f"history begins at {cluster.floor_ts}; Ctrl-C ends it",
            file=sys.stderr,
            flush=True,
        )
        wait_for_signal(served.check)
        print(f"{len(workload.committed)} changes committed; {dict(served.feed.counts)}", file=sys.stderr, flush=True)
