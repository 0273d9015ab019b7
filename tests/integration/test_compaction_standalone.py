"""Compaction and bases on a standalone Spark: a master and two workers, from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.api_world import ApiWorld, api_world
from tests.kit.spark_cluster import spark_cluster
from tests.kit.spark_session import SPARK_OPTIONS
from tistream.objectstore.local import LocalStore


def bodies(world: ApiWorld) -> list[bytes]:
    tables = ("acct", "customers", "p_range", "evolve")
    rows = [world.ok(f"/databases/shop/tables/{name}/rows").content for name in tables]
    return [world.ok(format="ndjson", limit=200_000).content, *rows]


@pytest.mark.slow
def test_two_workers_merge_and_build_what_is_read_the_same(tmp_path: Path) -> None:
    with api_world(tmp_path, LocalStore(tmp_path / "bucket")) as world:
        world.log.build(12).seed()
        before = bodies(world)
        path = os.pathsep.join(p for p in sys.path if p)
        conf = {**SPARK_OPTIONS, "spark.executor.memory": "512m", "spark.executorEnv.PYTHONPATH": path}
        conf |= {"spark.driver.host": "127.0.0.1", "spark.cores.max": "2"}
        (tmp_path / "spark").mkdir()
        with spark_cluster(tmp_path / "spark", workers=2) as master:
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "tistream.cli.main", "compact", "--cluster=1", "--tenant=1"),
                    *(f"--catalog=sqlite:///{tmp_path}/catalog.db", f"--object-store=file://{tmp_path}/bucket"),
                    *("--lag-s=0", "--inputs-min=2", "--target-mb=1", "--base-tail-mb=0", f"--master={master}"),
                    *(f"--spark-conf={name}={value}" for name, value in conf.items()),
                ],
                env={**os.environ, "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"},
                capture_output=True,
                check=False,
                timeout=240,
            )
        assert done.returncode == 0, done.stderr[-3000:]
        report = json.loads(done.stdout)
        assert (report["end"], report["bases"]["end"]) == ("swapped", "swapped")
        executors = [p for n in (0, 1) for p in (tmp_path / "spark" / f"worker-{n}").glob("app-*/*/stderr")]
        assert len({p.parents[2].name for p in executors}) == 2, "each worker ran an executor"
        assert bodies(world) == before
        base_ts = world.ok("/databases/shop/tables/acct/rows").headers["TiStream-Base-Ts"]
        assert base_ts == str(report["bases"]["ts"])
