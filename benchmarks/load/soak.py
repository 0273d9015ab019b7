"""The part of a long run that kills processes and looks whether the deployment keeps its size."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import func, select

from benchmarks.load.deployment import Deployment
from benchmarks.load.measure import Run, say
from tistream.catalog.database.tables import metadata
from tistream.objectstore.metered import open_metered

GROWTH = 1.1
DOWN_S = 5.0  #: from a kill to the restart
SAMPLE_S = 15.0
API_KILLS_S = 240.0  #: later none: the read lease of a dead API server keeps replaced objects for 15 minutes

Sizes = dict[str, float]  #: objects, catalog rows, and the memory of the largest process of each service


def settings(retention_minutes: float) -> tuple[tuple[str, str], ...]:
    """With these, what is replaced or too old is gone within the run."""
    return (
        ("TISTREAM_META_RETENTION_HOURS", str(retention_minutes / 60)),
        ("TISTREAM_META_RETENTION_INTERVAL_S", "30"),
        ("TISTREAM_META_COLLECT_INTERVAL_S", "30"),
        ("TISTREAM_META_COLLECT_GRACE_S", "60"),
    )


def endure(run: Run, seconds: float, kill_every_s: float, seed: int) -> list[Sizes]:
    """Kill one process after the other and start it again; samples of the sizes."""
    d, rand, samples = run.d, random.Random(seed), list[Sizes]()
    began, sample_at, kill_at = time.monotonic(), 0.0, kill_every_s
    while (now := time.monotonic() - began) < seconds:
        if now >= kill_at:
            name = rand.choice([n for n in sorted(d.processes) if now < API_KILLS_S or not n.startswith("api")])
            run.kill(name)
            time.sleep(DOWN_S)
            d.start(name)
            kill_at = now + kill_every_s
        if now >= sample_at:
            samples.append(_sizes(d))
            sample_at = now + SAMPLE_S
            say(f"{now:6.0f} s, {len(run.report.kills)} kills: {json.dumps(samples[-1])}")
        time.sleep(0.2)
    d.wait_until_ready()
    return samples


def _sizes(d: Deployment) -> Sizes:
    """Events and the audit log are pruned by age, so they grow during any run, and do not count."""
    counted = [table for name, table in metadata.tables.items() if name not in ("events", "audit_log")]
    with d.catalog.transaction() as conn:
        rows = sum(conn.execute(select(func.count()).select_from(table)).scalar_one() for table in counted)
    sizes: Sizes = {"objects": sum(1 for _ in open_metered(d.bucket_url).list("")), "catalog rows": rows}
    for name, usage in d.usage().items():
        if name not in ("mariadb", "s3"):
            figure = f"MB of {name.partition('-')[0]}"
            sizes[figure] = max(round(usage.rss_mb), sizes.get(figure, 0.0))
    return sizes


def quarters(samples: list[Sizes]) -> dict[str, tuple[float, float]]:
    """Figure -> its value in the third and in the last quarter: the largest for memory, else the mean."""
    half = samples[len(samples) // 2 :]
    parts = half[: len(half) // 2], half[len(half) // 2 :]
    return {name: (_one(parts[0], name), _one(parts[1], name)) for name in half[-1]}


def _one(samples: list[Sizes], name: str) -> float:
    """A killed process has no memory in a sample, so a service of one process may be missing there."""
    values = [sample[name] for sample in samples if name in sample]
    return float(np.max(values) if name.startswith("MB of ") else np.mean(values)) if values else 0.0


def levels_off(samples: list[Sizes]) -> bool:
    """Print the quarters; whether no figure of the last is more than GROWTH times that of the one before."""
    for name, (third, last) in quarters(samples).items():
        print(f"{name:24} {third:12,.0f} {last:12,.0f}  {last / third if third else 0:.3f}")
    return all(last <= GROWTH * third for third, last in quarters(samples).values())


def jobs(d: Deployment) -> Counter[Any]:
    """Maintenance jobs by kind and state."""
    table = metadata.tables["jobs"]
    with d.catalog.transaction() as conn:
        return Counter(f"{kind} {state}" for kind, state in conn.execute(select(table.c.kind, table.c.state)))


def is_audited(d: Deployment) -> bool:
    """Whether every object in the catalog exists; `tistream audit` prints what is missing."""
    command: list[str | Path] = [Path(sys.executable).parent / "tistream", "audit"]
    return subprocess.run(command, env=d.environment, check=False).returncode == 0
