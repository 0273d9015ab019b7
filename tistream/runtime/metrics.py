"""Everything that a process measures of itself, by name: the one place where metrics are declared.

    ROWS.labels("sorter", "in").inc(batch.num_rows)        counters, histograms and gauges of REGISTRY
    collected("tistream_problems")                          families that a collector fills while it is scraped

Names follow TiCDC's where there is a counterpart (`checkpoint_lag`, `resolved_ts_lag`). Bounds:

- measuring is per batch, per request or per flush, never per row;
- no label names a table, a key or an object. Tenants are labels of two families only, and of those at most
  TENANTS_SHOWN_MAX are shown, the ones that lag most; the rest are counted by `tistream_tenants_not_shown`;
- what is asked of the catalog is asked at most each CATALOG_LOOK_S, however often the process is scraped.

It does not serve anything (`tistream.http.probes` does) and knows none of the services.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.core import Metric as Metric  # noqa: PLC0414 - handed on
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from tistream import __version__

TENANTS_SHOWN_MAX = 100
CATALOG_LOOK_S = 5.0

STAGES = (
    "upstream_flush",
    "fetch",
    "match",
    "watermark_gap_wait",
    "flush",
    "serve",
)  #: of the way from a commit to a reader
SERVICES = ("pusher", "dispatcher", "sorter", "api")

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

Collect = Callable[[], Iterable[Metric]]
"""Gives families that are known only when somebody asks."""

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
REGISTRY = CollectorRegistry(auto_describe=True)
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A family of metrics as people read about it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    words: str


_declared: list[Described] = []


def _counter(name: str, words: str, *labels: str) -> Counter:
    _declared.append(Described(name=name, kind="counter", labels=labels, words=words))
    return Counter(name, words, labels, registry=REGISTRY)


def _gauge(name: str, words: str, *labels: str) -> Gauge:
    _declared.append(Described(name=name, kind="gauge", labels=labels, words=words))
    return Gauge(name, words, labels, registry=REGISTRY)


def _histogram(name: str, words: str, *labels: str) -> Histogram:
    _declared.append(Described(name=name, kind="histogram", labels=labels, words=words))
    return Histogram(name, words, labels, registry=REGISTRY, buckets=_SECONDS)


BUILD = _gauge("tistream_build_info", "1; the label says what runs", "version")
BUILD.labels(__version__).set(1)

# -- the way of the data ------------------------------------------------------------------------------------------

ROWS = _counter("tistream_rows_total", "Rows that a service took in or gave out", "service", "direction")
BYTES = _counter("tistream_bytes_total", "Bytes that a service took in or gave out", "service", "direction")
LEFT_OUT = _counter(
    "tistream_rows_left_out_total", "Records that were read for an answer and belong to no table, by reason", "status"
)
STAGE = _histogram("tistream_stage_seconds", "Time that one step of the way took, by the process's own clock", "stage")
FILE_AGE = _histogram(
    "tistream_file_age_seconds",
    "Age of a batch file (wall time less its cut) when a dispatcher has read it, and when a sorter takes it in",
    "point",
)
COMMIT_TO_FLUSH = _histogram(
    "tistream_commit_to_flush_seconds", "Age of a task's watermark when everything up to it became visible"
)
FLUSHES = _counter("tistream_flushes_total", "Flushes of a tenant's tasks that moved a watermark")
UPLOAD_QUEUE_BYTES = _gauge("tistream_upload_queue_bytes", "Encoded batch files that wait for the object store")
UPLOAD_RETRIES = _counter("tistream_upload_retries_total", "Uploads of batch files that failed and were tried again")
STREAMS_DROPPED = _counter("tistream_streams_dropped_total", "Streams given up because uploads could not keep up")

# -- the stores ---------------------------------------------------------------------------------------------------

STORE_REQUESTS = _counter(
    "tistream_object_store_requests_total",
    "Requests to the object store, by operation, by the kind of object, and by how they ended",
    "operation",
    "kind",
    "outcome",
)
STORE_BYTES = _counter(
    "tistream_object_store_bytes_total", "Bytes put into and got from the object store", "operation", "kind"
)
STORE_SECONDS = _histogram("tistream_object_store_seconds", "Time that a request to the object store took", "operation")
CATALOG_STATEMENTS = _counter("tistream_catalog_statements_total", "SQL statements", "outcome")
CATALOG_TRANSACTIONS = _counter("tistream_catalog_transactions_total", "Write transactions", "outcome")
CATALOG_SECONDS = _histogram("tistream_catalog_statement_seconds", "Time that a SQL statement took")

HTTP_REQUESTS = _counter("tistream_http_requests_total", "Answered HTTP requests", "method", "status")


def _collected(*families: tuple[str, str, tuple[str, ...]]) -> dict[str, Described]:
    return {name: Described(name=name, kind="gauge", labels=labels, words=words) for name, words, labels in families}


_OF_TENANT = ("cluster", "tenant")
COLLECTED = _collected(
    (
        "tistream_checkpoint_lag_seconds",
        "Age of what can be served of an active tenant: wall time less the lowest durable watermark of its tasks",
        _OF_TENANT,
    ),
    (
        "tistream_resolved_ts_lag_seconds",
        "Age of what this process has whole of a tenant: wall time less the lowest watermark of its tasks here",
        _OF_TENANT,
    ),
    ("tistream_checkpoint_lag_max_seconds", "The largest checkpoint lag of an active tenant", ()),
    ("tistream_tenants", "Tenants by state", ("state",)),
    ("tistream_tenants_not_shown", "Active tenants without a checkpoint lag of their own here", ()),
    ("tistream_tasks", "Tasks: running, waiting for an owner, or stopped by an error", ("state",)),
    ("tistream_stops", "Tenants, stores and jobs that an error has stopped, besides tasks", ("scope",)),
    ("tistream_workers", "Processes by kind; up, draining, silent for longer than a lease, or gone", ("kind", "state")),
    ("tistream_owner_age_seconds", "Time since the elected meta server was last heard of", ()),
    ("tistream_owner_epoch", "How often a meta server was elected", ()),
    ("tistream_catalog_up", "Whether the catalog answered when it was last asked", ()),
    ("tistream_problems", "What is wrong in this process now, by error code", ("code", "fatal")),
    ("tistream_lease_age_seconds", "Time since this process last renewed its lease", ()),
    ("tistream_sorter_tasks", "Tasks that this process owns", ()),
    ("tistream_sorter_open_rows", "Prewrites whose transaction is not decided", ()),
    ("tistream_sorter_ready_rows", "Committed rows that wait for the watermark or the flush", ()),
    ("tistream_sorter_held_bytes", "Memory that tasks take", ()),
    ("tistream_sorter_spill_bytes", "Rows on the local disk", ()),
    ("tistream_sorter_inbox_bytes", "Batches that wait for a task's core", ()),
    ("tistream_sorter_watermark_gaps", "Parts of the key space of which no store speaks", ()),
    ("tistream_dispatcher_stores", "Stores that this process dispatches", ()),
    ("tistream_dispatcher_cache_bytes", "Decoded batch files in memory", ()),
)


def collected(name: str) -> GaugeMetricFamily:
    """An empty family of COLLECTED, for a collector to fill."""
    found = COLLECTED[name]
    return GaugeMetricFamily(name, found.words, labels=found.labels or None)


def single(name: str, value: float) -> GaugeMetricFamily:
    """A family of COLLECTED without labels."""
    return GaugeMetricFamily(name, COLLECTED[name].words, value=value)


def described() -> list[Described]:
    """Every family that any process may show, by name. Those of the Python runtime are left out."""
    return sorted([*_declared, *COLLECTED.values()], key=lambda d: d.name)


class _Asked:
    """A collector for the registry of one process, made of functions."""

    def __init__(self, sources: Iterable[Collect]) -> None:
        self._sources = tuple(sources)

    def describe(self) -> Iterable[Metric]:
        return ()  # not asked before somebody scrapes

    def collect(self) -> Iterable[Metric]:
        for source in self._sources:
            yield from source()


def exposition(sources: Iterable[Collect] = ()) -> bytes:
    """REGISTRY and what `sources` give now, in Prometheus' text form."""
    asked = CollectorRegistry()
    asked.register(_Asked(sources))
    return prometheus_client.generate_latest(REGISTRY) + prometheus_client.generate_latest(asked)
