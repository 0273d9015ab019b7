"""Builds services from settings: the composition root.

`embedded` runs the whole service in one process over a folder; the other functions build one service each for
deployments with a process per role.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tistream import config
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.generation import check_bucket, has_exported
from tistream.catalog.rows.audit import Deed
from tistream.catalog.rows.workers import WorkerKind
from tistream.catalog.work.gauges import CatalogGauges
from tistream.cli.executors import maintenance_rules, outbound_terms, replication_worker, spark_worker, threads_worker
from tistream.cli.ports import Certificates, check_ports
from tistream.cli.presence import Presence, present_command
from tistream.cli.process_memory import keep_freed_memory, keep_pandas_out
from tistream.cli.recorded import recorded
from tistream.cli.running import Parts, Running
from tistream.cli.startup import answers, process_name
from tistream.clock import SystemClock
from tistream.config import Settings
from tistream.errors import ConfigError
from tistream.http.readiness import Probes, catalog_answers, lease_age, lease_holds, none_stopped, store_answers
from tistream.model.problem import Problem
from tistream.objectstore.generations import FIRST, GenerationWatch, WatchedStore
from tistream.objectstore.metered import open_metered
from tistream.runtime import credentials
from tistream.runtime.metrics import Collect
from tistream.runtime.service import Service, ServiceGroup

if TYPE_CHECKING:
    from fastapi import FastAPI

    from apiserver.control.push_access import CredentialIssuer
    from dispatcher.worker import DispatcherWorker
    from metaserver.loop import MetaWorker
    from sorter.worker.worker import SorterWorker
    from tistream.exports.exporter import Exporter
    from tistream.feed.hints import Look, Notifications
    from tistream.feed.protocol import Feed
    from tistream.http.auth.authenticator import Authenticator

_NICE = 10  # of the threads that compact in `tistream up`: pushers and readers go first
_TICK_S = 0.6  # pushers write a file each second: the next one is not looked for sooner


def load_settings(path: Path | None, flags: Mapping[str, object]) -> Settings:
    """Settings from file, environment and flags."""
    return config.load(path, _environ(), flags)


def setting_sources(path: Path | None) -> dict[str, str]:
    """The source of each setting that is not at its default."""
    return config.sources(path, _environ())


def _environ() -> dict[str, str]:
    """Some variables belong to the client commands."""
    of_clients = {"TISTREAM_URL", "TISTREAM_KEY", "TISTREAM_CONFIG", *credentials.FILES.values()}
    return {name: value for name, value in os.environ.items() if name not in of_clients}


def open_parts(settings: Settings) -> Parts:
    """Open catalog and object store, which every service needs."""
    if not settings.catalog.url or not settings.object_store.url:
        raise ConfigError("Name catalog and bucket: --catalog and --object-store, or [catalog] and [object_store].")
    keep_pandas_out()
    catalog, store = Catalog(settings.catalog.url), open_metered(settings.object_store.url)
    answers(catalog.ping, f"The catalog {settings.catalog.url}", "catalog.url")
    answers(
        store_answers(store), f"The object store {settings.object_store.url}", "object_store.url and AWS_* variables"
    )
    catalog.migrate()
    clock = SystemClock()
    generation = catalog.generation or FIRST
    with catalog.reading() as conn:
        exported = has_exported(conn)
    check_bucket(generation, store, exported=exported)
    watch = GenerationWatch(store, generation, clock)
    return Parts(settings=settings, catalog=catalog, store=WatchedStore(store, watch), clock=clock, watch=watch)


def open_process(settings: Settings, *ports: str) -> Parts:
    """The same for a process with ports; `ports`: the settings of their addresses. ConfigError, before the catalog is
    touched, when one may not be opened or the files of its certificates cannot be used."""
    check_ports(settings, *ports)
    certificates = Certificates.of(settings.tls, SystemClock())
    parts = open_parts(settings)
    parts.certificates = certificates
    return parts


@contextmanager
def opened(settings: Settings, deed: Deed | None) -> Iterator[Parts]:
    """`open_parts` for a command, which is in the list of workers while it runs. The catalog is closed at the end.
    `deed`: what the audit log says of it; None: it only reads."""
    parts = open_parts(settings)
    try:
        with present_command(parts.catalog, parts.clock), recorded(parts.catalog, deed):
            yield parts
    finally:
        parts.catalog.close()


def embedded(settings: Settings, data: Path, *, warm_up: bool = True) -> Running:
    """The whole service in one process, kept in `data`: catalog.db and bucket/. `warm_up`: compile in a thread."""
    root = data.resolve()
    try:
        (root / "bucket").mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ConfigError(f"Cannot keep data in {root}: {e.strerror}.") from e
    where = {
        "catalog": settings.catalog.model_copy(update={"url": settings.catalog.url or f"sqlite:///{root}/catalog.db"}),
        "object_store": config.ObjectStoreSettings(url=settings.object_store.url or f"file://{root}/bucket"),
    }
    keep_freed_memory()
    keep_pandas_out()
    if warm_up:
        _warm_up()
    parts = open_process(settings.model_copy(update=where), "server.host")
    follow = _dispatcher(parts, "dispatcher-1")
    sorters = [_sorter(parts, name, follow) for name in ("sorter-1", "sorter-2")]
    members: list[Service] = [_meta(parts, "meta-1"), follow, *sorters]
    if parts.settings.maintenance.threads:
        members.append(threads_worker(parts, "maintain-1", slots=parts.settings.maintenance.threads, nice=_NICE))
    if parts.settings.replication.threads:
        members.append(replication_worker(parts, "replicate-1"))
    collect: list[Collect] = [CatalogGauges(parts.catalog, parts.clock), follow.measured, _of_tasks(parts, sorters)]
    notifications = _notifications(parts, follow.look)
    members += _queue_readers(parts, "meta-1", notifications)
    app = _api(parts, members, collect=collect, sorters=sorters, notifications=notifications)
    return Running(parts, members, app, has_console=True)


def meta(parts: Parts, name: str) -> Running:
    """A meta server. It answers no API: the API servers share its routes."""
    present = Presence(parts.catalog, parts.clock, name, WorkerKind.META)
    worker = _meta(parts, name)
    readers = _queue_readers(parts, name, _notifications(parts))
    group = ServiceGroup(name, [present, worker, *readers], parts.clock)
    probes = _probes(parts, group, worker.lease_age_s, CatalogGauges(parts.catalog, parts.clock))
    return Running(parts, group.members, probes=probes)


def dispatcher(parts: Parts, name: str) -> Running:
    """A dispatcher with its Flight port."""
    from dispatcher.flight_server import FlightDispatcher
    from dispatcher.port_access import AcceptedTokens
    from tistream.catalog.work.service_tokens import accepted_tokens
    from tistream.feed.tls import FeedTlsFiles

    settings, tls = parts.settings.dispatcher, FeedTlsFiles.of(parts.settings.feed)
    worker = _dispatcher(parts, name)
    listening = FlightDispatcher(
        worker,
        AcceptedTokens(partial(accepted_tokens, parts.catalog), parts.clock),
        parts.clock,
        host=settings.host,
        port=settings.port,
        advertise=settings.advertise_host,
        tls=tls,
    )
    probes = _probes(parts, listening, worker.lease_age_s, worker.measured)
    return Running(parts, [listening], probes=probes, drains=worker, drain_timeout_s=settings.drain_timeout_s)


def sorter(parts: Parts, name: str) -> Running:
    """A sorter that subscribes to the dispatchers the catalog names."""
    from tistream.feed.flight import FlightFeed, locate_by_catalog, token_of_catalog
    from tistream.feed.tls import FeedTlsFiles

    keep_freed_memory()
    tls = FeedTlsFiles.of(parts.settings.feed)
    if tls is not None:
        tls.read()  # a wrong file ends the process at its start
    locate, bearer = locate_by_catalog(parts.catalog, parts.clock), token_of_catalog(parts.catalog)
    feed = FlightFeed(locate, bearer, parts.clock, tls=tls)
    worker = _sorter(parts, name, feed)
    probes = _probes(parts, worker, worker.lease_age_s, _of_tasks(parts, [worker]))
    timeout_s = parts.settings.sorter.drain_timeout_s
    return Running(parts, [worker], closing=feed.close, probes=probes, drains=worker, drain_timeout_s=timeout_s)


def _warm_up() -> None:
    """Compile in a thread what readers need."""
    from tistream.cli import warm

    warm.start()


def api_server(parts: Parts) -> Running:
    """An API server: every route, and the console."""
    _warm_up()
    present = Presence(parts.catalog, parts.clock, process_name("api"), WorkerKind.API)
    return Running(parts, [present], _api(parts, [], notifications=_notifications(parts)), has_console=True)


def maintain(parts: Parts, name: str, slots: int) -> Running:
    """An executor of maintenance jobs, with threads."""
    keep_freed_memory()
    worker = threads_worker(parts, name, slots=slots)
    return Running(parts, [worker], probes=_probes(parts, worker, worker.lease_age_s))


def replicate(parts: Parts, name: str) -> Running:
    """A worker that writes changefeeds to their destinations."""
    keep_freed_memory()
    worker, timeout_s = replication_worker(parts, name), parts.settings.replication.drain_timeout_s
    probes = _probes(parts, worker, worker.lease_age_s)
    return Running(parts, [worker], probes=probes, drains=worker, drain_timeout_s=timeout_s)


def spark(parts: Parts, name: str, conf: Mapping[str, str]) -> Running:
    """A Spark session that takes maintenance jobs. `conf`: settings of Spark."""
    from compactor.session import SessionWatch, new_session

    session = new_session(parts.settings.spark.master or None, conf, "tistream spark")
    watch = SessionWatch(session, parts.clock, name)
    worker = spark_worker(parts, name, session, watch)
    both = ServiceGroup(name, [worker, watch], parts.clock)
    probes = _probes(parts, both, worker.lease_age_s)
    return Running(parts, both.members, closing=watch.end_session, probes=probes)


def _probes(parts: Parts, worker: Service, age_s: Callable[[], float | None], measured: Collect = list) -> Probes:
    """Probes of a worker without an HTTP port."""

    def problems() -> list[Problem]:
        return [problem for service in (worker, *parts.own_services) for problem in service.problems()]

    return Probes(
        checks={
            "catalog": catalog_answers(parts.catalog, parts.clock),
            "object store": store_answers(parts.store),
            "lease": lease_holds(age_s),
            "services": none_stopped(problems),
        },
        problems=lambda: [problem.shown() for problem in problems()],
        collect=[lease_age(age_s), measured],
    )


def _of_tasks(parts: Parts, sorters: Sequence[SorterWorker]) -> Collect:
    from sorter.worker import measures
    from tistream.catalog.work.stream_ends import StreamEnds

    ends = StreamEnds(parts.catalog, parts.clock)
    return lambda: measures.collect([report for sorter in sorters for report in sorter.reports], parts.clock, ends())


def _api(
    parts: Parts,
    services: Sequence[Service],
    *,
    collect: Sequence[Collect] = (),
    sorters: Sequence[SorterWorker] = (),
    notifications: Notifications | None = None,
) -> FastAPI:
    """The application of an API server: every route of TiStream on one port. `services` run in the same process."""
    from apiserver.app import create_app
    from apiserver.control.push_access import PushPlace
    from reading.log.memory import ReadMemory
    from reading.served.services import Process, Services
    from tistream.admin.problems import ReportedProblems

    _keep_journal(parts)

    def problems() -> list[Problem]:
        return [problem for service in (*services, *parts.own_services) for problem in service.problems()]

    process = Process(
        checks={"services": none_stopped(problems)},
        problems=lambda: [problem.shown() for problem in problems()],
        reported=list if services else ReportedProblems(parts.catalog, parts.clock),
        collect=collect,
        reports=lambda: [report for sorter in sorters for report in sorter.reports],
        explain=lambda task_id: [str(s) for sorter in sorters for s in sorter.explain(task_id)],
    )
    wired = Services.create(
        parts.catalog,
        parts.store,
        parts.clock,
        process,
        retention_hours=parts.settings.meta.retention_hours,
        skew_max_ms=parts.settings.catalog.clock_skew_max_ms,
        outbound=outbound_terms(parts.settings),
        read_memory=ReadMemory(parts.settings.server.read_memory_mib << 20),
    )
    push = PushPlace(url=parts.settings.object_store.url, issuer=push_issuer(parts.settings))
    webhooks = []
    if notifications is not None and parts.settings.notifications.webhook_token:
        from apiserver.routes import notifications as webhook

        webhooks.append(webhook.router(notifications, parts.settings.notifications.webhook_token))
    return create_app(wired, webhooks, push=push, authenticator=_authenticator(parts), **_bounds(parts.settings.server))


def _notifications(parts: Parts, look: Look | None = None) -> Notifications | None:
    """Takes notifications of the bucket; None when the settings name no source. `look`: a dispatcher of this process,
    else those of the catalog are called."""
    from tistream.feed.flight import locate_by_catalog, token_of_catalog
    from tistream.feed.hints import LookByFlight, Notifications
    from tistream.feed.tls import FeedTlsFiles
    from tistream.objectstore.factory import s3_place

    place, settings = s3_place(parts.settings.object_store.url), parts.settings.notifications
    if place is None or not (settings.sqs_queue_url or settings.webhook_token):
        return None
    if look is None:
        locate, bearer = locate_by_catalog(parts.catalog, parts.clock), token_of_catalog(parts.catalog)
        look = LookByFlight(locate, bearer, tls=FeedTlsFiles.of(parts.settings.feed))
    return Notifications(parts.catalog, look, place.bucket, place.prefix)


def _queue_readers(parts: Parts, name: str, notifications: Notifications | None) -> list[Service]:
    """The reader of the queue, if there is one."""
    from tistream.feed.queue_reader import QueueReader
    from tistream.objectstore.factory import s3_place

    place, settings = s3_place(parts.settings.object_store.url), parts.settings.notifications
    if notifications is None or place is None or not settings.sqs_queue_url:
        return []
    return [
        QueueReader(
            name,
            notifications,
            parts.clock,
            queue_url=settings.sqs_queue_url,
            region=place.region,
            endpoint=settings.sqs_endpoint or None,
        )
    ]


def _bounds(server: config.ServerSettings) -> dict[str, Any]:
    from apiserver.request_limits import RateLimits
    from apiserver.stream.followers import FollowLimits

    return {
        "follow": FollowLimits(
            streams_max=server.caller_streams_max,
            waits_max=server.caller_waits_max,
            slow_consumer_s=server.slow_consumer_s,
        ),
        "rates": RateLimits(
            caller_requests_per_s=server.caller_requests_per_s,
            caller_mib_per_s=server.caller_mib_per_s,
            tenant_requests_per_s=server.tenant_requests_per_s,
            tenant_mib_per_s=server.tenant_mib_per_s,
            burst_s=server.rate_burst_s,
        ),
    }


def _authenticator(parts: Parts) -> Authenticator | None:
    """The authenticator; None: no keys are required."""
    from tistream.http.auth.authenticator import Authenticator

    return Authenticator(parts.catalog, parts.clock) if parts.settings.server.auth == "keys" else None


def push_issuer(settings: Settings) -> CredentialIssuer | None:
    """The issuer of pushers' credentials for the bucket; None: pushers use their own."""
    from apiserver.control.push_access import CredentialIssuer
    from apiserver.control.push_policy import PushTerms
    from tistream.objectstore.factory import s3_place

    place, push = s3_place(settings.object_store.url), settings.push
    if not push.role_arn:
        return None
    if place is None:
        raise ConfigError("push.role_arn needs an S3 bucket, and this store is none.")
    terms = PushTerms(bucket=place.bucket, prefix=place.prefix, role_arn=push.role_arn, kms_key_arn=push.kms_key_arn)
    return CredentialIssuer(terms, duration_s=push.duration_s, endpoint=push.sts_endpoint or None, region=place.region)


def _keep_journal(parts: Parts) -> None:
    """Put into the bucket what a restore must not lose, as long as the catalog is exported."""
    from tistream.exports.journal import Journal
    from tistream.exports.pieces import Sealing

    sealing = Sealing.of_file(parts.settings.exports.key_file)
    parts.catalog.journal = Journal(parts.catalog, parts.store, parts.watch, sealing)


def _exporter(parts: Parts) -> Exporter | None:
    from tistream.exports.exporter import Exporter
    from tistream.exports.pieces import Sealing

    settings = parts.settings.exports
    if not settings.interval_s:
        return None
    sealing = Sealing.of_file(settings.key_file)
    return Exporter(parts.catalog, parts.store, parts.watch, sealing=sealing, keep=settings.keep)


def _meta(parts: Parts, name: str) -> MetaWorker:
    from metaserver.activation import LONGEST_PAUSE_S
    from metaserver.loop import MetaOptions, MetaWorker
    from metaserver.reshape import ReshapeSettings

    _keep_journal(parts)
    settings, announced = parts.settings.meta, parts.settings.notifications
    floor_s = max(announced.floor_s, LONGEST_PAUSE_S)
    reshape = ReshapeSettings(
        split_bytes_per_s=settings.split_mb_per_s * 1e6,
        split_after_s=settings.split_after_s,
        merge_bytes_per_s=settings.merge_mb_per_s * 1e6,
        merge_after_s=settings.merge_after_s,
        tasks_min=settings.data_tasks,
        tasks_max=settings.tasks_max,
    )
    options = MetaOptions(
        interval_s=settings.interval_ms / 1000,
        data_tasks=settings.data_tasks,
        reshape=reshape,
        retention_hours=settings.retention_hours,
        service_token_hours=settings.service_token_hours,
        skew_max_ms=parts.settings.catalog.clock_skew_max_ms,
        audit_retention_s=settings.audit_retention_s,
        retention_interval_s=settings.retention_interval_s,
        collect_interval_s=settings.collect_interval_s,
        grace_ms=round(settings.collect_grace_s * 1000),
        maintenance=maintenance_rules(parts.settings),
        maintenance_interval_s=parts.settings.maintenance.interval_s,
        exporter=_exporter(parts),
        export_interval_s=parts.settings.exports.interval_s,
        waiting_bytes_max=parts.settings.exports.waiting_bytes_max,
        activation_pause_max_s=floor_s if announced.sqs_queue_url or announced.webhook_token else LONGEST_PAUSE_S,
    )
    return MetaWorker(parts.catalog, parts.store, parts.clock, name, options)


def _dispatcher(parts: Parts, name: str) -> DispatcherWorker:
    from dispatcher.tail import TailTiming
    from dispatcher.worker import DispatcherWorker

    settings = parts.settings.dispatcher
    return DispatcherWorker(
        parts.catalog,
        parts.store,
        parts.clock,
        name,
        timing=TailTiming(
            poll_s=settings.poll_interval_ms / 1000,
            tick_s=_TICK_S,
            announced_poll_max_s=parts.settings.notifications.floor_s,
        ),
        reclaim_s=settings.reclaim_interval_ms / 1000,
        skew_max_ms=parts.settings.catalog.clock_skew_max_ms,
    )


def _sorter(parts: Parts, name: str, feed: Feed) -> SorterWorker:
    from sorter.worker.spill import Spill, default_budget_bytes
    from sorter.worker.worker import SorterWorker

    settings = parts.settings.sorter
    return SorterWorker(
        parts.catalog,
        parts.store,
        feed,
        parts.clock,
        worker_id=name,
        flush_interval_s=settings.flush_interval_ms / 1000,
        snapshot_interval_s=settings.snapshot_interval_ms / 1000,
        spill=Spill(
            settings.memory_mb << 20 or default_budget_bytes(),
            Path(settings.spill_folder) if settings.spill_folder else None,
        ),
    )
