"""`tistream compact` and `tistream replay`: batch jobs over catalog and bucket, on Spark or in threads."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tistream.cli.options import DeploymentOptions, Master, SparkConf, spark_settings
from tistream.cli.output import OutputForm, OutputOption, show_facts
from tistream.cli.service import TenantOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from backfill.replay import Executor
    from compactor.base_job import BaseReport
    from compactor.job import JobReport
    from compactor.local import LocalExecutor
    from compactor.spark import SparkExecutor
    from tistream.catalog.rows.audit import Deed
    from tistream.cli.running import Parts

_MIB = 1 << 20


class Engine(StrEnum):
    """What runs the job."""

    SPARK = "spark"
    THREADS = "threads"


EngineOption = Annotated[Engine, typer.Option("--engine", help="spark, or threads of this process.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What runs the job."""

    engine: EngineOption = Engine.SPARK
    master: Master = None
    spark_conf: SparkConf = None

    def session(self, stack: ExitStack) -> SparkSession:
        """A Spark session, which ends with the stack."""
        from compactor.session import new_session

        session = new_session(self.master, spark_settings(self.spark_conf or []))
        stack.callback(session.stop)
        return session


def compact(
    of: TenantOptions,
    where: DeploymentOptions,
    on: EngineOptions,
    lag_s: Annotated[float, typer.Option(min=0, help="Leave out what is younger, in seconds of the log.")] = 60.0,
    budget_mb: Annotated[int, typer.Option(min=1, help="MiB of input that one job takes at most.")] = 8192,
    target_mb: Annotated[int, typer.Option(min=1, help="MiB of input that become one file.")] = 16,
    inputs_min: Annotated[int, typer.Option(min=2, help="Merge no fewer files than this.")] = 4,
    merge: Annotated[bool, typer.Option(help="Merge files.")] = True,
    bases: Annotated[bool, typer.Option(help="Build bases of tables, for reads as of a timestamp.")] = True,
    base_tail_ratio: Annotated[
        float, typer.Option(min=0, help="Build a base when the log since the last one is this many times its size ...")
    ] = 1.0,
    base_tail_mb: Annotated[int, typer.Option(min=0, help="... and at least this many MiB.")] = 4,
    base_window_h: Annotated[
        float, typer.Option(min=0, help="Hours of the log in which each moment keeps a base near it.")
    ] = 168.0,
    output: OutputOption = OutputForm.JSON,
) -> None:
    """Merge small committed files into Parquet files, and build bases for reads as of a timestamp.

    The files are ordered by table and commit timestamp; reads stay the same. A group of files that cannot be merged and
    a table whose base cannot be built are left out and named under `failed`, and the exit status is 1."""
    from compactor.base_job import BaseSettings
    from compactor.core.base_plan import BasePlanSettings
    from compactor.core.plan import PlanSettings
    from compactor.job import JobSettings
    from compactor.maintenance import build_bases_of, merge_tenant
    from tistream.catalog.log.exclusions import forget_exclusions
    from tistream.catalog.rows.audit import Deed
    from tistream.catalog.tenancy.tenants import get_tenant, kept_s
    from tistream.ids import Tenant as TenantId

    who, lag_ms, done = TenantId(of.cluster, of.tenant), int(lag_s * 1000), dict[str, Any]()
    plan = PlanSettings(target_bytes=target_mb * _MIB, inputs_min=inputs_min, budget_bytes=budget_mb * _MIB)
    base_plan = BasePlanSettings(
        tail_ratio=base_tail_ratio, tail_bytes_min=base_tail_mb * _MIB, budget_bytes=budget_mb * _MIB
    )
    with ExitStack() as stack:
        parts, progress = _begin(stack, "compaction", where, Deed(operation="tistream compact", tenant=who))
        kept_ms = kept_s(get_tenant(parts.catalog, who), parts.settings.meta.retention_hours) * 1000
        window_ms = max(int(base_window_h * 3_600_000), kept_ms)
        base_settings = BaseSettings(lag_ms=lag_ms, window_ms=window_ms, due_ms=kept_ms // 2, plan=base_plan)
        executor = _compactor(parts, on, stack, progress)
        if merge:
            settings = JobSettings(lag_ms=lag_ms, plan=plan)
            forget_exclusions(parts.catalog, who)  # an operator may have restored what was left out
            report = merge_tenant(parts.catalog, who, executor, settings, parts.clock, progress)
            done = {**_shown(report), "tenant": str(who)}
        if bases:
            built = build_bases_of(parts.catalog, parts.store, who, executor, base_settings, parts.clock, progress)
            done["bases"] = {**_shown(built), "ts": str(built.ts)}
    show_facts(done, output)
    if done.get("failed") or done.get("bases", {}).get("failed"):
        raise typer.Exit(1)


def replay(
    of: TenantOptions,
    where: DeploymentOptions,
    on: EngineOptions,
    until: Annotated[str | None, typer.Option(help="Hand over at this timestamp at the latest.")] = None,
    parts: Annotated[int, typer.Option(min=0, help="Key ranges in parallel; 0: Spark's cores, or 2 threads.")] = 0,
    leg_mb: Annotated[int, typer.Option(min=1, help="MiB of batch files that are handed over together.")] = 1024,
    memory_mb: Annotated[int, typer.Option(min=0, help="MiB of rows of one part; 0: a share of the machine's.")] = 0,
    output: OutputOption = OutputForm.JSON,
) -> None:
    """Replay a backlog of batch files in bulk, by key range, and hand over to the live sorters."""
    from backfill.job import Replay, ReplaySettings
    from tistream.catalog.rows.audit import Deed
    from tistream.cli.time import moment
    from tistream.ids import Tenant as TenantId

    at, who = None if until is None else moment(until), TenantId(of.cluster, of.tenant)
    with ExitStack() as stack:
        opened, progress = _begin(stack, "replay", where, Deed(operation="tistream replay", tenant=who))
        executor, width = _replayer(opened, on, parts, stack)
        settings = ReplaySettings(
            until=at,
            partitions=width,
            batch_bytes=leg_mb * _MIB,
            memory_bytes=memory_mb * _MIB,
            skew_max_ms=opened.settings.catalog.clock_skew_max_ms,
        )
        run = Replay(opened.catalog, opened.store, opened.clock, who, executor, settings)
        report = run.run(progress)
    show_facts({**asdict(report), "tenant": str(report.tenant)}, output)


def _begin(stack: ExitStack, title: str, where: DeploymentOptions, deed: Deed) -> tuple[Parts, Callable[..., None]]:
    """Catalog and bucket, and what shows progress. `deed`: for the audit log."""
    from tistream.cli.assembly import opened
    from tistream.cli.progress import Progress

    parts = stack.enter_context(opened(where.settings(), deed))
    return parts, stack.enter_context(Progress(title, sys.stderr)).update


def _compactor(
    parts: Parts, on: EngineOptions, stack: ExitStack, progress: Callable[[int, int], None]
) -> LocalExecutor | SparkExecutor:
    if on.engine is Engine.THREADS:
        from compactor.local import LocalExecutor

        return LocalExecutor(parts.store)
    from compactor.spark import SparkExecutor

    session = on.session(stack)
    return SparkExecutor(session, parts.settings.object_store.url, parts.clock, progress)


def _replayer(opened: Parts, on: EngineOptions, parts: int, stack: ExitStack) -> tuple[Executor, int]:
    """What runs the key ranges, and how many in parallel."""
    from backfill.replay import SparkReplayExecutor, ThreadsExecutor

    if on.engine is Engine.THREADS:
        return ThreadsExecutor(opened.store, threads=parts or 2), parts or 2
    session = on.session(stack)
    executor = SparkReplayExecutor(session, opened.settings.object_store.url, opened.clock)
    return executor, parts or session.sparkContext.defaultParallelism


def _shown(report: BaseReport | JobReport) -> dict[str, Any]:
    return {**asdict(report), "seconds": round(report.seconds, 3)}
