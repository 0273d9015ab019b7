"""`tistream replay`: match a backlog of batch files in bulk, and hand over to the live sorters."""

from __future__ import annotations

import dataclasses
import json
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from tistream.cli import options
from tistream.cli.compact import Engine, pairs
from tistream.cli.options import Bucket, Cluster, Config, Tenant

if TYPE_CHECKING:
    from backfill.executors import Executor
    from tistream.cli.assembly import Parts

_MIB = 1 << 20


def replay(
    cluster: Cluster,
    tenant: Tenant,
    catalog: options.Catalog = None,
    bucket: Bucket = None,
    config: Config = None,
    until: Annotated[str | None, typer.Option(help="Hand over at this timestamp at the latest.")] = None,
    engine: Annotated[Engine, typer.Option(help="spark, or threads of this process.")] = Engine.SPARK,
    master: Annotated[str | None, typer.Option(help="Spark master; spark-submit's own when left out.")] = None,
    spark_conf: Annotated[list[str] | None, typer.Option(help="A Spark setting, NAME=VALUE; may be repeated.")] = None,
    parts: Annotated[
        int, typer.Option(min=0, help="Key ranges that work at once; 0: Spark's cores, or 2 threads.")
    ] = 0,
    leg_mb: Annotated[int, typer.Option(min=1, help="MiB of batch files that are handed over together.")] = 1024,
    memory_mb: Annotated[int, typer.Option(min=0, help="MiB of rows of one part; 0: a share of the machine's.")] = 0,
) -> None:
    """Match a backlog of batch files in bulk, by key range, and hand over to the live sorters."""
    from backfill.job import Replay, ReplaySettings
    from tistream.cli.assembly import load_settings, open_parts
    from tistream.cli.log import configure
    from tistream.cli.progress import Progress
    from tistream.cli.time import moment
    from tistream.ids import Tenant as TenantId

    settings = load_settings(config, {"catalog.url": catalog, "object_store.url": bucket})
    configure(settings.log)
    at = None if until is None else moment(until)
    opened = open_parts(settings)
    with ExitStack() as stack:
        stack.callback(opened.catalog.close)
        shown = stack.enter_context(Progress("replay", sys.stderr))
        executor, width = _executor(opened, engine, master, pairs(spark_conf or []), parts, stack)
        wanted = ReplaySettings(until=at, partitions=width, batch_bytes=leg_mb * _MIB, memory_bytes=memory_mb * _MIB)
        run = Replay(opened.catalog, opened.store, opened.clock, TenantId(cluster, tenant), executor, wanted)
        report = run.run(shown.update)
    print(json.dumps({**dataclasses.asdict(report), "tenant": str(report.tenant)}, indent=2))


def _executor(
    opened: Parts, engine: Engine, master: str | None, conf: dict[str, str], parts: int, stack: ExitStack
) -> tuple[Executor, int]:
    """What runs the parts, and how many at once."""
    from backfill.executors import SparkExecutor, ThreadsExecutor

    if engine is Engine.THREADS:
        return ThreadsExecutor(opened.store, threads=parts or 2), parts or 2
    from compactor.spark import new_session

    session = new_session(master, conf)
    stack.callback(session.stop)
    executor = SparkExecutor(session, opened.settings.object_store.url, opened.clock)
    return executor, parts or session.sparkContext.defaultParallelism
