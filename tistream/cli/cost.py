"""`tistream cost`: what a month of a cluster would cost, by position, and what single changes would save."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated

import typer

from tistream.cli.output import OutputForm, OutputOption, show_data, show_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tistream.admin.core.cost import Lever, Load, Month


def _number(name: str, words: str, least: float = 0.0) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(name, min=least, help=words)
    return option


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Fields of a Load."""

    stores: Annotated[int, _number("--stores", "TiKV stores that push.", 1)] = 3
    mb_per_s: Annotated[float, _number("--mb-per-s", "Changes, MB/s before compression.")] = 1.0
    tasks: Annotated[int, _number("--tasks", "Data and DDL tasks of all tenants.", 1)] = 20
    tasks_per_file: Annotated[float, _number("--tasks-per-file", "Tasks that share a committed file.", 0.01)] = 1.0
    flush_s: Annotated[float, _number("--flush-s", "Seconds between batch files of a store.", 0.01)] = 1.0
    idle_flush_s: Annotated[float, _number("--idle-flush-s", "The same for an idle store.", 0.01)] = 1.0
    idle_share: Annotated[float, typer.Option(min=0, max=1, help="Share of the stores that are idle.")] = 0.0
    commit_s: Annotated[float, _number("--commit-s", "Seconds between committed files.", 0.01)] = 1.0
    snapshot_s: Annotated[float, _number("--snapshot-s", "Seconds between snapshots of a task.", 0.1)] = 10.0
    folders_per_store: Annotated[int, _number("--folders", "Batch files of a store at each flush.", 1)] = 1
    consumers: Annotated[int, _number("--consumers", "Readers of the whole log.")] = 2
    tenants: Annotated[int, _number("--tenants", "Tenants with a KMS key each.")] = 1
    retention_days: Annotated[float, _number("--retention-days", "Days that the log is kept.")] = 7.0
    mb_per_s_per_vcpu: Annotated[float, _number("--vcpu-mb-per-s", "MB/s of one vCPU; measure it.", 0.01)] = 10.0
    cross_az: Annotated[bool, typer.Option("--cross-az", help="Services talk across zones.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceOptions:
    """Fields of Prices."""

    put_per_million: Annotated[float, _number("--put-price", "USD a million PUT and LIST.")] = 5.0
    get_per_million: Annotated[float, _number("--get-price", "USD a million GET.")] = 0.4
    storage_gb_month: Annotated[float, _number("--storage-price", "USD a GB and month.")] = 0.023
    vcpu_month: Annotated[float, _number("--vcpu-price", "USD a vCPU and month.")] = 29.8
    rds_month: Annotated[float, _number("--rds-price", "USD a month for the database.")] = 373.0


def cost(*, size: LoadOptions, paid: PriceOptions, output: OutputOption = OutputForm.TABLE) -> None:
    """Estimate the month's bill of a cluster of this size, and what single changes would save.

    No service is asked."""
    from tistream.admin.core.cost import Load, Prices, levers, month

    size = replace(size, idle_flush_s=max(size.idle_flush_s, size.flush_s))
    load, prices = Load(**asdict(size)), Prices(**asdict(paid))
    bill, changes = month(load, prices), levers(load, prices)
    if output is OutputForm.TABLE:
        _show(load, bill, changes)
    else:
        show_data(_plain(bill, changes), output)


def _plain(bill: Month, changes: list[Lever]) -> dict[str, object]:
    return {
        "usd": round(bill.usd, 2),
        "requests_usd": round(bill.requests_usd, 2),
        "positions": [{**asdict(p), "usd": round(p.usd, 2), "requests": round(p.requests)} for p in bill.positions],
        "levers": [{**asdict(c), "usd": round(c.usd, 2), "saves": round(c.saves, 2)} for c in changes],
    }


def _show(load: Load, bill: Month, changes: list[Lever]) -> None:
    positions = [(p.name, f"{p.usd:,.2f}", f"{p.requests:,.0f}" if p.requests else "", p.how) for p in bill.positions]
    total = ("together", f"{bill.usd:,.2f}", "", f"requests {bill.requests_usd:,.2f}")
    _table(
        f"30 days of {load.stores} stores at {load.mb_per_s:g} MB/s",
        ("position", "USD", "requests", "made of"),
        [*positions, total],
    )
    savings = [(change.name, f"{change.saves:,.2f}", f"{change.usd:,.2f}") for change in changes]
    _table("single changes", ("change", "saves USD", "month"), savings)


def _table(title: str, headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    columns = [(heading, itemgetter(n)) for n, heading in enumerate(headings)]
    show_rows(rows, OutputForm.TABLE, columns, title=title, numbers=("USD", "requests", "saves USD", "month"))
