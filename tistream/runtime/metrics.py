"""Declarations of all metrics.

    ROWS.labels("sorter", "in").inc(batch.num_rows)        counters, histograms and gauges in REGISTRY
    collected("tistream_problems")                          families that a collector fills at each scrape

Names follow TiCDC's where it has a counterpart (`checkpoint_lag`, `resolved_ts_lag`). Rules:

- measurements are per batch, request or flush, never per row;
- no label names a table, a key or an object. Tenants are labels of two families only, of at most TENANTS_SHOWN_MAX
  tenants, the slowest; `tistream_tenants_not_shown` counts the rest. Consumers are labels of OF_CONSUMERS only, of at
  most CONSUMERS_SHOWN_MAX, those without a request for longest; changefeeds are labels of
  OF_CHANGEFEEDS, of at most CHANGEFEEDS_SHOWN_MAX, those with errors and the slowest;
- the catalog is queried at most once in CATALOG_LOOK_S, however often the process is scraped.

`tistream.http.probes` serves them.
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
CONSUMERS_SHOWN_MAX = 100
CHANGEFEEDS_SHOWN_MAX = 100
TABLES_SHOWN_MAX = 100
CATALOG_LOOK_S = 5.0

LAG_PARTS = ("resolved_ts", "queue", "destination")  #: of the age of a changefeed's checkpoint

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

Collect = Callable[[], Iterable[Metric]]
"""Returns the families computed at scrape time."""

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
REGISTRY = CollectorRegistry(auto_describe=True)
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A family of metrics, for the reference page."""

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


BUILD = _gauge("tistream_build_info", "1; the label is the running version", "version")
BUILD.labels(__version__).set(1)

CERTIFICATE_NOT_AFTER = _gauge(
    "tistream_certificate_not_after_seconds",
    "When the certificate of the HTTP ports (http) or of the Flight port (flight) ends, in seconds since 1970",
    "kind",
)

# -- the data path -------------------------------------------------------------------------------------------------

ROWS = _counter("tistream_rows_total", "Rows received and sent by a service", "service", "direction")
BYTES = _counter("tistream_bytes_total", "Bytes received and sent by a service", "service", "direction")
LEFT_OUT = _counter(
    "tistream_rows_left_out_total", "Records read for an answer that are not delivered, by reason", "status"
)
REPLICATION_WRITE = _histogram(
    "tistream_replication_write_seconds", "Time to write one stretch of a changefeed's lane to its destination"
)
REPLICATION_RETRIES = _counter("tistream_replication_retries_total", "Stretches of changefeeds that are tried again")
_OF_TABLE = ("cluster", "tenant", "changefeed", "table")
REPLICATION_TABLE_ROWS = _counter(
    "tistream_replication_table_rows_total",
    "Changes that this process has written to a changefeed's destination; an empty table = all beyond the first 100",
    *_OF_TABLE,
)
REPLICATION_TABLE_BYTES = _counter(
    "tistream_replication_table_bytes_total",
    "Bytes of keys and values of these changes, as the log has them",
    *_OF_TABLE,
)
STAGE = _histogram("tistream_stage_seconds", "Duration of one stage, by the process's clock", "stage")
FILE_AGE = _histogram(
    "tistream_file_age_seconds",
    "Age of a batch file (wall time minus its cut) when a dispatcher has read it, and when a sorter processes it",
    "point",
)
COMMIT_TO_FLUSH = _histogram(
    "tistream_commit_to_flush_seconds", "Age of a task's watermark when its flush became visible"
)
FLUSHES = _counter("tistream_flushes_total", "Flushes of a tenant's tasks that advanced a watermark")
UPLOAD_QUEUE_BYTES = _gauge("tistream_upload_queue_bytes", "Encoded batch files waiting for the object store")
UPLOAD_RETRIES = _counter("tistream_upload_retries_total", "Retried uploads of batch files")
STREAMS_DROPPED = _counter("tistream_streams_dropped_total", "Streams dropped because uploads could not keep up")

# -- the stores ---------------------------------------------------------------------------------------------------

STORE_REQUESTS = _counter(
    "tistream_object_store_requests_total",
    "Requests to the object store, by operation, kind of object and outcome",
    "operation",
    "kind",
    "outcome",
)
STORE_BYTES = _counter(
    "tistream_object_store_bytes_total", "Bytes written to and read from the object store", "operation", "kind"
)
STORE_SECONDS = _histogram("tistream_object_store_seconds", "Duration of object store requests", "operation")
CATALOG_STATEMENTS = _counter("tistream_catalog_statements_total", "SQL statements", "outcome")
CATALOG_TRANSACTIONS = _counter("tistream_catalog_transactions_total", "Write transactions", "outcome")
CATALOG_SECONDS = _histogram("tistream_catalog_statement_seconds", "Duration of SQL statements")

FEED_REFUSED = _counter(
    "tistream_feed_refused_total",
    "Calls of a dispatcher's Flight port that were refused: no_token, wrong_token, wrong_name (of the certificate), "
    "not_owner (of the task)",
    "reason",
)

NOTIFICATIONS = _counter(
    "tistream_notifications_total",
    "Notifications of the S3 server: about files that a dispatcher awaits (passed_on), about anything else (ignored), "
    "unreadable (invalid), or not passed on (failed)",
    "outcome",
)
AWAITED_FILES = _counter(
    "tistream_awaited_files_total",
    "Batch files that a dispatcher has waited for, found after a notification (announced) or by looking (polled)",
    "kind",
)

HTTP_REQUESTS = _counter("tistream_http_requests_total", "Answered HTTP requests", "method", "status")
CONNECTIONS_DROPPED = _counter(
    "tistream_http_connections_dropped_total",
    "HTTP connections that the server ended: no HTTP (invalid), a head, body or trailer without end (too_long), a "
    "request that did not come in time (too_slow), an answer that was not read (not_read), too many of one address "
    "(too_many)",
    "reason",
)


def _collected(*families: tuple[str, str, tuple[str, ...]]) -> dict[str, Described]:
    return {name: Described(name=name, kind="gauge", labels=labels, words=words) for name, words, labels in families}


_OF_TENANT = ("cluster", "tenant")
_OF_CONSUMER = ("cluster", "tenant", "consumer")
_OF_CHANGEFEED = ("cluster", "tenant", "changefeed")
OF_CONSUMERS = (
    ("tistream_consumer_lag_seconds", "Watermark minus checkpoint of a consumer that is neither paused nor finished"),
    ("tistream_consumer_members", "Members of a consumer whose lease runs"),
    ("tistream_consumer_partitions_unread", "Partitions of a consumer that no member with a lease holds"),
    ("tistream_consumer_idle_seconds", "Time since the last request of a consumer"),
    (
        "tistream_consumer_idle_limit_seconds",
        "Idle for longer, a consumer no longer holds the log; 0 = it holds for ever",
    ),
)
OF_CHANGEFEEDS = (
    ("tistream_replication_state", "1; the label is the state of a changefeed"),
    (
        "tistream_replication_lag_seconds",
        "Age of the checkpoint of a changefeed that runs, its RPO, in parts: from now to the served watermark "
        "(resolved_ts), from there to what is being written (queue), from there to the checkpoint (destination)",
    ),
    ("tistream_replication_rows", "Changes that the lanes of a changefeed have written, since it was cut into them"),
    ("tistream_replication_bytes", "Bytes of these changes"),
    ("tistream_replication_tries", "Failed tries of the stretches that are being written"),
    ("tistream_replication_lanes_stopped", "Lanes that wait for a decision about a refused change"),
    ("tistream_replication_dead_letters", "Refused changes that were written as dead letters, since it was created"),
    ("tistream_replication_unmoved_seconds", "Time since the checkpoint of a changefeed that runs has moved"),
)
_MORE_LABELS = {"tistream_replication_state": ("state",), "tistream_replication_lag_seconds": ("part",)}
COLLECTED = _collected(
    (
        "tistream_checkpoint_lag_seconds",
        "Lag of an active tenant: wall time, or the end of its stream, minus the lowest durable watermark of its tasks",
        _OF_TENANT,
    ),
    (
        "tistream_resolved_ts_lag_seconds",
        "Lag of a tenant in this process: wall time, or the end of its stream, minus the lowest watermark of its tasks",
        _OF_TENANT,
    ),
    ("tistream_checkpoint_lag_max_seconds", "The largest checkpoint lag of an active tenant", ()),
    ("tistream_tenants", "Tenants by state", ("state",)),
    ("tistream_tenants_not_shown", "Active tenants whose checkpoint lag is not shown", ()),
    *((name, words, _OF_CONSUMER) for name, words in OF_CONSUMERS),
    *((name, words, (*_OF_CHANGEFEED, *_MORE_LABELS.get(name, ()))) for name, words in OF_CHANGEFEEDS),
    ("tistream_tasks", "Tasks: running, waiting for an owner, or stopped by an error", ("state",)),
    ("tistream_stops", "Tenants, stores and jobs stopped by an error", ("scope",)),
    (
        "tistream_jobs",
        "Maintenance jobs: offered, queued, running, or failed and not repeated with success since",
        ("state",),
    ),
    ("tistream_job_oldest_queued_seconds", "Age of the oldest maintenance job that is due and has no executor", ()),
    ("tistream_job_bytes_read", "Bytes that ended maintenance jobs have read, since the catalog was made", ()),
    ("tistream_job_requests_saved", "Requests that they save a reader of the whole log, since then", ()),
    ("tistream_workers", "Processes by kind; up, draining, silent for longer than a lease, or gone", ("kind", "state")),
    ("tistream_owner_age_seconds", "Time since the last heartbeat of the elected meta server", ()),
    ("tistream_owner_epoch", "Number of elections of a meta server", ()),
    ("tistream_catalog_up", "Whether the catalog answered the last query", ()),
    ("tistream_catalog_export_age_seconds", "Age of the newest export that the catalog can be restored from", ()),
    ("tistream_catalog_waiting_bytes", "Replaced objects that may be deleted once the catalog is exported", ()),
    ("tistream_catalog_unconfirmed", "Whether a restored catalog waits for an operator, and deletes nothing", ()),
    ("tistream_problems", "Present problems of this process, by error code", ("code", "fatal")),
    ("tistream_lease_age_seconds", "Time since this process last renewed its lease", ()),
    ("tistream_sorter_tasks", "Tasks that this process owns", ()),
    ("tistream_sorter_open_rows", "Prewrites of undecided transactions", ()),
    ("tistream_sorter_ready_rows", "Committed rows waiting for the watermark or a flush", ()),
    ("tistream_sorter_held_bytes", "Memory used by tasks", ()),
    ("tistream_sorter_spill_bytes", "Rows on the local disk", ()),
    ("tistream_sorter_inbox_bytes", "Batches waiting for a task's core", ()),
    ("tistream_sorter_watermark_gaps", "Parts of the key space that no store covers", ()),
    ("tistream_dispatcher_stores", "Stores that this process dispatches", ()),
    ("tistream_dispatcher_files_held", "Batch files that wait because they are ahead of the catalog's clock", ()),
    ("tistream_dispatcher_cache_bytes", "Decoded batch files in memory", ()),
)


def collected(name: str) -> GaugeMetricFamily:
    """An empty family of COLLECTED, for a collector to fill."""
    collector = COLLECTED[name]
    return GaugeMetricFamily(name, collector.words, labels=collector.labels or None)


def single(name: str, value: float) -> GaugeMetricFamily:
    """A family of COLLECTED without labels."""
    return GaugeMetricFamily(name, COLLECTED[name].words, value=value)


def described() -> list[Described]:
    """Every family of any process, by name, without those of the Python runtime."""
    return sorted([*_declared, *COLLECTED.values()], key=lambda d: d.name)


class _Asked:
    """A collector that calls functions at each scrape."""

    def __init__(self, sources: Iterable[Collect]) -> None:
        self._sources = tuple(sources)

    def describe(self) -> Iterable[Metric]:
        return ()  # unknown before a scrape

    def collect(self) -> Iterable[Metric]:
        for source in self._sources:
            yield from source()


def exposition(sources: Iterable[Collect] = ()) -> bytes:
    """REGISTRY and the families of `sources`, in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Asked(sources))
    return prometheus_client.generate_latest(REGISTRY) + prometheus_client.generate_latest(registry)
