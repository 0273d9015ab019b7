"""`tistream compact`: merge the small files of a tenant's log."""

from __future__ import annotations

import dataclasses
import json
import sys
from contextlib import ExitStack
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tistream.cli import options
from tistream.cli.options import Bucket, Cluster, Config, Tenant
from tistream.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from compactor.base_job import BaseReport
    from compactor.job import Report
    from compactor.local import LocalExecutor
    from compactor.spark import SparkExecutor
    from tistream.cli.assembly import Parts

_MIB = 1 << 20


class Engine(StrEnum):
    """What runs the job."""

    SPARK = "spark"
    THREADS = "threads"


def compact(
    cluster: Cluster,
    tenant: Tenant,
    catalog: options.Catalog = None,
    bucket: Bucket = None,
    config: Config = None,
    engine: Annotated[Engine, typer.Option(help="spark, or threads of this process.")] = Engine.SPARK,
    master: Annotated[str | None, typer.Option(help="Spark master; spark-submit's own when left out.")] = None,
    spark_conf: Annotated[list[str] | None, typer.Option(help="A Spark setting, NAME=VALUE; may be repeated.")] = None,
    lag_s: Annotated[float, typer.Option(min=0, help="Leave alone what is younger, in seconds of the log.")] = 60.0,
    budget_mb: Annotated[int, typer.Option(min=1, help="MiB of input that one job takes at most.")] = 8192,
    target_mb: Annotated[int, typer.Option(min=1, help="MiB of input that become one file.")] = 16,
    inputs_min: Annotated[int, typer.Option(min=2, help="Merge no fewer files than this.")] = 4,
    merge: Annotated[bool, typer.Option(help="Merge files.")] = True,
    bases: Annotated[bool, typer.Option(help="Build bases of tables, for reads as of a timestamp.")] = True,
    base_tail_ratio: Annotated[
        float, typer.Option(min=0, help="A table gets a base when its log since the last one is so many times that.")
    ] = 1.0,
    base_tail_mb: Annotated[int, typer.Option(min=0, help="... and has so many MiB.")] = 4,
    base_window_h: Annotated[
        float, typer.Option(min=0, help="Hours of the log in which each moment keeps the base that is near it.")
    ] = 168.0,
) -> None:
    """Merge small committed files into Parquet files, ordered by table and commit timestamp, and build bases from which
    reads as of a timestamp start. Reads stay the same. A group of files that cannot be merged and a table whose
    base cannot be built are left out and named under `failed`, and the exit status is 1."""
    from compactor.base_job import BaseSettings, build_tenant_bases
    from compactor.core.base_plan import BasePlanSettings
    from compactor.core.plan import PlanSettings
    from compactor.job import JobSettings, compact_tenant
    from compactor.stops import Role, record_excluded
    from schemas.registry.schema_registry import SchemaRegistry
    from tistream.catalog.tenancy.tenants import get_tenant, kept_s
    from tistream.cli.assembly import load_settings, open_parts
    from tistream.cli.log import configure
    from tistream.cli.progress import Progress
    from tistream.ids import Tenant as TenantId

    settings = load_settings(config, {"catalog.url": catalog, "object_store.url": bucket})
    configure(settings.log)
    wanted = JobSettings(
        lag_ms=int(lag_s * 1000),
        plan=PlanSettings(target_bytes=target_mb * _MIB, inputs_min=inputs_min, budget_bytes=budget_mb * _MIB),
    )
    who, done, parts = TenantId(cluster, tenant), dict[str, Any](), open_parts(settings)
    kept_ms = kept_s(get_tenant(parts.catalog, who), settings.meta.retention_hours) * 1000
    wanted_bases = BaseSettings(
        lag_ms=int(lag_s * 1000),
        window_ms=max(int(base_window_h * 3_600_000), kept_ms),
        due_ms=kept_ms // 2,
        plan=BasePlanSettings(
            tail_ratio=base_tail_ratio, tail_bytes_min=base_tail_mb * _MIB, budget_bytes=budget_mb * _MIB
        ),
    )
    with ExitStack() as stack:
        stack.callback(parts.catalog.close)
        shown = stack.enter_context(Progress("compaction", sys.stderr))
        executor = _executor(parts, engine, master, pairs(spark_conf or []), stack, shown.update)
        if merge:
            report = compact_tenant(parts.catalog, who, executor, wanted, parts.clock, progress=shown.update)
            done = _shown(report)
            record_excluded(parts.catalog, who, Role.COMPACTION, report.failed)
        if bases:
            registry = SchemaRegistry(parts.catalog, parts.store, clock=parts.clock)
            built = build_tenant_bases(
                parts.catalog, registry, who, executor.bases, wanted_bases, parts.clock, progress=shown.update
            )
            record_excluded(parts.catalog, who, Role.BASES, built.failed)
            done["bases"] = _shown_bases(built)
    _report(done)


def _report(done: dict[str, Any]) -> None:
    """Print what was done. typer.Exit when something was left out."""
    print(json.dumps(done, indent=2))
    if done.get("failed") or done.get("bases", {}).get("failed"):
        raise typer.Exit(1)


def _executor(
    parts: Parts,
    engine: Engine,
    master: str | None,
    conf: dict[str, str],
    stack: ExitStack,
    progress: Callable[[int, int], None],
) -> LocalExecutor | SparkExecutor:
    if engine is Engine.THREADS:
        from compactor.local import LocalExecutor

        return LocalExecutor(parts.store)
    from compactor.spark import SparkExecutor, new_session

    session = new_session(master, conf)
    stack.callback(session.stop)
    return SparkExecutor(session, parts.settings.object_store.url, parts.clock, progress)


def pairs(given: list[str]) -> dict[str, str]:
    """Spark settings as they were given. InvalidInput for one without a name or a value."""
    out: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidInput(f"'{text}' is not a Spark setting: write NAME=VALUE.")
        out[name] = value
    return out


def _shown_bases(report: BaseReport) -> dict[str, Any]:
    return {**dataclasses.asdict(report), "ts": str(report.ts), "seconds": round(report.seconds, 3)}


def _shown(report: Report) -> dict[str, Any]:
    return {**dataclasses.asdict(report), "tenant": str(report.tenant), "seconds": round(report.seconds, 3)}
