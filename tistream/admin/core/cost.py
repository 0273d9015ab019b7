"""What a month of TiStream costs: an arithmetic of requests, storage, compute and traffic. Pure.

Each position is a product of what a cluster does (stores, MB/s, tasks, consumers), how TiStream is set (flush
intervals, tasks a file, retention) and prices, which are parameters: the defaults are list prices of us-east-1. The
request counts are those that the service's own tests count; storage, compute and traffic are models, and
`mb_per_s_per_vcpu` is a guess until it was measured on the machines in question.

A store that flushes once a second writes 2,592,000 batch files a month, which is 12.96 USD at 5 USD a million: for one
store. A hundred stores are 1,296 USD.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

MONTH_S = 30 * 86_400
_SECONDS_A_DAY = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a cluster does, and how TiStream is set."""

    stores: int  #: TiKV stores that push
    mb_per_s: float  #: of changes, before compression
    tasks: int = 20  #: data and DDL tasks of all tenants
    tasks_per_file: float = 1.0  #: tasks of one tenant on one sorter share their committed file
    flush_s: float = 1.0  #: between two batch files of a store
    idle_flush_s: float = 1.0  #: the same for a store to which nothing is written
    idle_share: float = 0.0  #: of the stores
    commit_s: float = 1.0  #: between two committed files of a sorter and tenant
    snapshot_s: float = 10.0  #: between two snapshots of a task
    objects_per_snapshot: float = 1.0
    consumers: int = 2  #: readers of the whole log
    miss: float = 0.2  #: looks for a batch file that was not there yet, for each that was
    compression: float = 0.4  #: stored bytes for each byte of changes
    retention_days: float = 7.0
    folders_per_store: int = 1  #: batch files that a store writes at each flush; tenants that share one count once
    tenants: int = 1  #: with a KMS key each
    kms_calls_share: float = 0.01  #: KMS requests for each that every file would make: bucket keys, cached data keys
    mb_per_s_per_vcpu: float = 10.0  #: of a sorter's work
    cross_az: bool = False  #: two of three bytes between services cross a zone


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """In USD."""

    put_per_million: float = 5.0  #: PUT, COPY, POST, LIST
    get_per_million: float = 0.4
    storage_gb_month: float = 0.023
    vcpu_month: float = 29.8
    rds_month: float = 373.0
    kms_key_month: float = 1.0
    kms_per_10k: float = 0.03
    cross_az_gb: float = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """One line of the bill."""

    name: str
    usd: float
    how: str  #: what it is made of
    requests: float = 0.0  #: a month, where it is requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    """The whole bill."""

    positions: tuple[Position, ...]

    @property
    def usd(self) -> float:
        return sum(position.usd for position in self.positions)

    @property
    def requests_usd(self) -> float:
        """What the object store's requests come to."""
        return sum(position.usd for position in self.positions if position.requests)

    def of(self, name: str) -> Position:
        """The position of this name."""
        return next(position for position in self.positions if position.name == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One change to how TiStream is set, and what the month comes to with it."""

    name: str
    usd: float
    saves: float  #: USD a month; negative: it costs more


def of_requests(requests: Mapping[str, float], prices: Prices = Prices()) -> float:
    """What requests that were counted come to, in USD. `requests`: operation of an object store -> how many."""
    dear = sum(requests.get(operation, 0) for operation in ("put", "list"))
    cheap = sum(requests.get(operation, 0) for operation in ("get", "get_range", "size"))
    return dear * prices.put_per_million / 1e6 + cheap * prices.get_per_million / 1e6


def batch_files_per_s(load: Load) -> float:
    """Batch files that all stores write in a second."""
    busy = load.stores * (1 - load.idle_share) / load.flush_s
    return load.folders_per_store * (busy + load.stores * load.idle_share / load.idle_flush_s)


def committed_files_per_s(load: Load) -> float:
    """Committed files that all sorters write in a second, at most: a flush without rows writes none."""
    return load.tasks / load.tasks_per_file / load.commit_s


def month(load: Load, prices: Prices = Prices()) -> Month:
    """The bill of 30 days."""
    return Month(positions=(*_requests(load, prices), *_rest(load, prices)))


def levers(load: Load, prices: Prices = Prices()) -> list[Lever]:
    """What single changes would save, the most first."""
    now = month(load, prices).usd
    tried = {
        "flush each 2 s instead (adds a second of lag)": replace(load, flush_s=load.flush_s * 2),
        "flush each 5 s instead (adds four seconds of lag)": replace(load, flush_s=load.flush_s * 5),
        "idle stores flush each 30 s": replace(load, idle_flush_s=30.0),
        "one batch file a store for all tenants": replace(load, folders_per_store=1),
        "four tasks share a committed file": replace(load, tasks_per_file=load.tasks_per_file * 4),
        "snapshots each 30 s": replace(load, snapshot_s=30.0),
        "bucket keys and cached data keys": replace(load, kms_calls_share=0.01),
        "services of one zone talk to each other": replace(load, cross_az=False),
        "twice as fast code": replace(load, mb_per_s_per_vcpu=load.mb_per_s_per_vcpu * 2),
        "half the retention": replace(load, retention_days=load.retention_days / 2),
    }
    proposals = [
        Lever(name=name, usd=month(other, prices).usd, saves=now - month(other, prices).usd)
        for name, other in tried.items()
        if other != load
    ]
    return sorted((lever for lever in proposals if lever.saves), key=lambda lever: -lever.saves)


def _requests(load: Load, prices: Prices) -> Iterator[Position]:
    put, get = prices.put_per_million / 1e6, prices.get_per_million / 1e6
    files, committed = batch_files_per_s(load), committed_files_per_s(load)
    snapshots = load.tasks / load.snapshot_s * load.objects_per_snapshot
    counted = (
        ("batch files, PUT", files, put, "one for each store, flush and folder"),
        ("batch files, GET", files * (1 + load.miss), get, "each file once, and looks that came too early"),
        ("committed files, PUT", committed, put, "at most one for each sorter, tenant and flush"),
        ("snapshots, PUT", snapshots, put, "of each task whose state has changed"),
        ("reading, GET", load.consumers * committed, get, "each committed file once for each consumer"),
        ("compaction", committed, get + put / 30, "each committed file is read, one of 30 is written"),
    )
    for name, per_s, price, how in counted:
        yield Position(name=name, usd=per_s * MONTH_S * price, how=how, requests=per_s * MONTH_S)


def _rest(load: Load, prices: Prices) -> Iterator[Position]:
    stored_mb_s = load.mb_per_s * load.compression
    stored_gb = stored_mb_s * _SECONDS_A_DAY * load.retention_days / 1000 * 1.1
    yield Position(
        name="storage", usd=stored_gb * prices.storage_gb_month, how=f"{stored_gb:,.0f} GB, a tenth of it overlap"
    )
    e = load.mb_per_s_per_vcpu
    vcpus = load.mb_per_s * (1 / (4 * e) + 1 / e + 1 / e + load.consumers / (4 * e)) * 1.5
    yield Position(name="compute", usd=vcpus * prices.vcpu_month, how=f"{vcpus:,.1f} vCPU, half of them spare")
    yield Position(name="database", usd=prices.rds_month, how="RDS in two zones")
    files = (batch_files_per_s(load) + committed_files_per_s(load)) * MONTH_S
    calls = 2 * files * load.kms_calls_share
    kms = load.tenants * prices.kms_key_month + calls * prices.kms_per_10k / 10_000
    yield Position(name="KMS", usd=kms, how=f"{calls:,.0f} calls; keys: {load.tenants}")
    if load.cross_az:
        gb = stored_mb_s * MONTH_S / 1000 * 2 / 3
        yield Position(name="traffic between zones", usd=gb * prices.cross_az_gb, how=f"{gb:,.0f} GB")
