"""`tistream cost`: what a month of a cluster would cost, by position, and what single changes would save."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tistream.cli.output import Output

if TYPE_CHECKING:
    from tistream.admin.core.cost import Lever, Load, Month


def _number(name: str, words: str, least: float = 0.0) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(name, min=least, help=words)
    return option


def cost(
    stores: Annotated[int, _number("--stores", "TiKV stores that push.", 1)] = 3,
    mb_per_s: Annotated[float, _number("--mb-per-s", "Changes, MB/s before compression.")] = 1.0,
    tasks: Annotated[int, _number("--tasks", "Data and DDL tasks of all tenants.", 1)] = 20,
    tasks_per_file: Annotated[float, _number("--tasks-per-file", "Tasks that share a committed file.", 0.01)] = 1.0,
    flush_s: Annotated[float, _number("--flush-s", "Seconds between batch files of a store.", 0.01)] = 1.0,
    idle_flush_s: Annotated[float, _number("--idle-flush-s", "The same for an idle store.", 0.01)] = 1.0,
    idle_share: Annotated[float, typer.Option(min=0, max=1, help="Share of the stores that are idle.")] = 0.0,
    commit_s: Annotated[float, _number("--commit-s", "Seconds between committed files.", 0.01)] = 1.0,
    snapshot_s: Annotated[float, _number("--snapshot-s", "Seconds between snapshots of a task.", 0.1)] = 10.0,
    folders: Annotated[int, _number("--folders", "Batch files of a store at each flush.", 1)] = 1,
    consumers: Annotated[int, _number("--consumers", "Readers of the whole log.")] = 2,
    tenants: Annotated[int, _number("--tenants", "Tenants with a KMS key each.")] = 1,
    retention_days: Annotated[float, _number("--retention-days", "Days that the log is kept.")] = 7.0,
    vcpu_mb_per_s: Annotated[float, _number("--vcpu-mb-per-s", "MB/s of one vCPU; measure it.", 0.01)] = 10.0,
    cross_az: Annotated[bool, typer.Option("--cross-az", help="Services talk across zones.")] = False,
    put_price: Annotated[float, _number("--put-price", "USD a million PUT and LIST.")] = 5.0,
    get_price: Annotated[float, _number("--get-price", "USD a million GET.")] = 0.4,
    storage_price: Annotated[float, _number("--storage-price", "USD a GB and month.")] = 0.023,
    vcpu_price: Annotated[float, _number("--vcpu-price", "USD a vCPU and month.")] = 29.8,
    rds_price: Annotated[float, _number("--rds-price", "USD a month for the database.")] = 373.0,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to show it.")] = Output.TABLE,
) -> None:
    """The month's bill of a cluster of this size, and what single changes would save. Nothing is asked of a service."""
    from tistream.admin.core.cost import Load, Prices, levers, month

    load = Load(
        stores=stores,
        mb_per_s=mb_per_s,
        tasks=tasks,
        tasks_per_file=tasks_per_file,
        flush_s=flush_s,
        idle_flush_s=max(idle_flush_s, flush_s),
        idle_share=idle_share,
        commit_s=commit_s,
        snapshot_s=snapshot_s,
        folders_per_store=folders,
        consumers=consumers,
        tenants=tenants,
        retention_days=retention_days,
        mb_per_s_per_vcpu=vcpu_mb_per_s,
        cross_az=cross_az,
    )
    prices = Prices(
        put_per_million=put_price,
        get_per_million=get_price,
        storage_gb_month=storage_price,
        vcpu_month=vcpu_price,
        rds_month=rds_price,
    )
    bill, changes = month(load, prices), levers(load, prices)
    if output is Output.JSON:
        print(json.dumps(_plain(bill, changes), indent=2))
    else:
        _show(load, bill, changes)


def _plain(bill: Month, changes: list[Lever]) -> dict[str, object]:
    return {
        "usd": round(bill.usd, 2),
        "requests_usd": round(bill.requests_usd, 2),
        "positions": [{**asdict(p), "usd": round(p.usd, 2), "requests": round(p.requests)} for p in bill.positions],
        "levers": [{**asdict(c), "usd": round(c.usd, 2), "saves": round(c.saves, 2)} for c in changes],
    }


def _show(load: Load, bill: Month, changes: list[Lever]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=f"30 days of {load.stores} stores at {load.mb_per_s:g} MB/s", title_justify="left")
    table.add_column("position")
    table.add_column("USD", justify="right")
    table.add_column("requests", justify="right")
    table.add_column("made of")
    for p in bill.positions:
        table.add_row(p.name, f"{p.usd:,.2f}", f"{p.requests:,.0f}" if p.requests else "", p.how)
    table.add_section()
    table.add_row("together", f"{bill.usd:,.2f}", "", f"requests {bill.requests_usd:,.2f}")
    console.print(table)
    savings = Table(title="single changes", title_justify="left")
    savings.add_column("change")
    savings.add_column("saves USD", justify="right")
    savings.add_column("month", justify="right")
    for change in changes:
        savings.add_row(change.name, f"{change.saves:,.2f}", f"{change.usd:,.2f}")
    console.print(savings)
