"""`tistream push`: pushes the changes of a source into a tenant's buffer."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from tistream.cli import cluster_options as of_cluster
from tistream.cli.options import Cluster, MetricsHost, MetricsPort, PortOptions, Tenant
from tistream.cli.process_memory import keep_pandas_out
from tistream.cli.run import on_signals
from tistream.cli.service import ServiceOptions
from tistream.errors import InvalidInput

if TYPE_CHECKING:
    from pusher.control import HttpControl
    from pusher.logbackup.push import LogPushProgress
    from pusher.tikv_options import TikvPushOptions, TikvPushProgress
    from simulator.push.recording_push import PushProgress, PushResult
    from tistream.ids import Tenant as TenantId
    from tistream.objectstore.protocol import ObjectStore
    from tistream.tikv.channels import Tls

StartTs = Annotated[
    int | None,
    typer.Option(
        help="The TSO at which a tenant begins. Of a cluster: instead of now, if PD still has that history. Of a log"
        " backup: when it was started (`br log status`), before the cluster had tables."
    ),
]
Snapshot = Annotated[
    Path | None, typer.Option(help="The schema a tenant begins with, as JSON, of a cluster or a log backup.")
]
UntilCaughtUp = Annotated[
    bool, typer.Option(help="Of a log backup: end when everything up to its global checkpoint is pushed.")
]
Check = Annotated[
    bool, typer.Option("--check", help="Push nothing: check that everything is there that this push needs.")
]
_POLL_S = 0.1
_STALLED_S = 10.0
_LINE_EVERY_S = 10.0


def push(
    *,
    context: typer.Context,
    capture: Annotated[Path | None, typer.Option(help="Folder of a recorded change stream.")] = None,
    recording: Annotated[
        Path | None, typer.Option(help="Folder of the recorded traffic of a real cluster, served again and followed.")
    ] = None,
    log_backup: Annotated[
        str | None, typer.Option(help="Where TiKV's log backup writes: file:///folder or s3://bucket/prefix.")
    ] = None,
    pd: of_cluster.Pd = None,
    cluster: Cluster = 1,
    tenant: Tenant = 1,
    speed: Annotated[str, typer.Option(help="Of a recording: N times real time, or max.")] = "1",
    start_ts: StartTs = None,
    schema_snapshot: Snapshot = None,
    until_caught_up: UntilCaughtUp = False,
    follow: of_cluster.FollowOptions,
    secured: of_cluster.TlsOptions,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    ports: PortOptions,
    check: Check = False,
    to: ServiceOptions,
) -> None:
    """Push a change stream: a live cluster's, a recorded one, or that of TiKV's log backup.

    Give one of --pd, --capture, --recording and --log-backup; with --check none is needed. A recording ends when all of
    it is durable and, within some seconds, can be pulled; the others are followed until Ctrl-C. A new tenant begins
    with the current schema, or that of --start-ts; a log backup needs --start-ts or --schema-snapshot once."""
    from tistream.cli.doctor import check_push, show_findings
    from tistream.cli.log import configure
    from tistream.config import LogSettings
    from tistream.ids import Tenant as TenantId

    sources = sum(source is not None for source in (capture, recording, log_backup, pd))
    if sources > 1 or not (sources or check):
        raise InvalidInput("give one of --pd, --capture, --recording and --log-backup")
    url, who, tls = to.url, TenantId(cluster, tenant), secured.tls()
    to_pd = None if pd is None else of_cluster.endpoints(pd)
    configure(LogSettings(level="error" if check else "warning"))
    if check:
        room = None if follow.spill is None else (follow.spill, follow.spill_mib << 20)
        checks = check_push(url, who, capture, recording, log_backup, to_pd, tls, follow.keyspace, room)
        return show_findings(f"pushing to tenant {who} at {url}", checks, to.output)
    context.with_resource(pusher_probes(url, who, metrics_host, metrics_port, ports))
    if to_pd is not None:
        snapshot = None if schema_snapshot is None else first_schema(schema_snapshot, start_ts)
        return follow_cluster(url, who, to_pd, options_of(follow, tls, start_ts, snapshot))
    if log_backup is not None:
        upto = follow_log(url, who, log_backup, first_schema(schema_snapshot, start_ts), until_caught_up)
    else:
        upto = _play(capture, recording, url, who, speed)
    if not wait_until_served(url, who, upto):
        print("the service is still sorting; `tistream status` shows its progress", file=sys.stderr)


def _play(capture: Path | None, recording: Path | None, url: str, tenant: TenantId, speed: str) -> int:
    """Push the given recording, showing progress; returns its watermark."""
    from tistream.cli.progress import Progress

    folder = capture or recording
    assert folder is not None
    pace = parse_speed(speed)
    with Progress("pushing", sys.stderr) as progress:

        def show(p: PushProgress) -> None:
            progress.update(p.ticks, p.ticks_total, f"{p.phase}: {p.problem}" if p.problem else p.phase)

        result = push_recording(folder, url, tenant, pace, show, is_traffic=capture is None)
    size = f"{result.rows:,} rows in {result.files:,} files, {result.bytes:,} bytes"
    print(f"pushed {size}, up to {result.last_resolved_ts}", file=sys.stderr)
    return result.last_resolved_ts


def push_recording(
    folder: Path,
    url: str,
    tenant: TenantId,
    speed: float | None,
    progress: Callable[[PushProgress], None] = lambda _: None,
    stop: threading.Event | None = None,
    *,
    is_traffic: bool = False,
) -> PushResult:
    """Push a recording to the service at `url`, until its end or until `stop` is set. `is_traffic`: it is the traffic
    of a cluster, which is served again and followed."""
    from simulator.push.capture_push import push_capture
    from simulator.push.playback_push import push_playback

    play = push_playback if is_traffic else push_capture
    with control_of(url, tenant) as (control, open_bucket):
        return play(folder, control, open_bucket, speed=speed, progress=progress, stop=stop)


def wait_until_served(url: str, tenant: TenantId, ts: int) -> bool:
    """Wait until the published frontier has reached `ts`; False when it has not advanced for a while."""
    from tistream.errors import TiStreamError

    reached, advanced_at = 0, time.monotonic()
    with control_of(url, tenant) as (control, _):
        while time.monotonic() - advanced_at < _STALLED_S:
            try:
                durable_ts = min((entry.durable_ts for entry in control.frontier()), default=0)
            except TiStreamError:
                durable_ts = 0  # what was pushed is safe, whatever happens to the service
            if durable_ts >= ts:
                return True
            if durable_ts > reached:
                reached, advanced_at = durable_ts, time.monotonic()
            time.sleep(_POLL_S)
        return False


def parse_speed(text: str) -> float | None:
    """'max' -> None, a positive number -> itself."""
    if text == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = math.nan
    if not (speed > 0 and math.isfinite(speed)):
        raise InvalidInput(f"--speed {text}: give a positive number, or max.")
    return speed


@contextmanager
def control_of(url: str, tenant: TenantId) -> Iterator[tuple[HttpControl, Callable[[str], ObjectStore]]]:
    """The control plane at `url`, and what opens the tenant's bucket."""
    from pusher.control import HttpControl
    from pusher.tenant_store import opening

    keep_pandas_out()
    control = HttpControl(url, tenant)
    try:
        yield control, opening(control)
    finally:
        control.close()


def follow_cluster(url: str, tenant: TenantId, endpoints: Sequence[str], options: TikvPushOptions) -> None:
    """Push the cluster to the service at `url`, until Ctrl-C or SIGTERM."""
    from pusher.tikv_push import push_cluster

    stop, show = threading.Event(), cluster_progress(sys.stderr)
    on_signals(stop.set)
    with control_of(url, tenant) as (control, open_bucket):
        done = push_cluster(endpoints, control, open_bucket, options, progress=show, stop=stop)
    print(f"pushed {done.rows:,} rows in {done.files:,} files, {done.bytes:,} bytes", file=sys.stderr)


def follow_log(url: str, tenant: TenantId, log_url: str, snapshot: bytes | None, until_caught_up: bool) -> int:
    """Push the log backup at `log_url` to the service at `url`, until Ctrl-C. Returns the watermark up to which all of
    it is durable."""
    from pusher.logbackup.push import push_log_backup
    from tistream.objectstore.factory import open_store

    try:
        with control_of(url, tenant) as (control, open_bucket):
            done = push_log_backup(
                open_store(log_url, foreign=True),
                control,
                open_bucket,
                schema_snapshot=snapshot,
                until_caught_up=until_caught_up,
                progress=log_progress(sys.stderr),
                stop=threading.Event(),
            )
    except KeyboardInterrupt:
        if until_caught_up:
            raise
        return 0  # what was not uploaded is pushed again next time
    print(f"pushed {done.rows:,} rows in {done.files:,} files, {done.bytes:,} bytes", file=sys.stderr)
    return done.promised_ts


def first_schema(file: Path | None, start_ts: int | None) -> bytes | None:
    """The schema snapshot that a tenant begins with: the file's, or at `start_ts` that of a cluster without tables."""
    from pusher.schema_push import empty_snapshot

    if file is not None and start_ts is not None:
        raise InvalidInput("--schema-snapshot has its own timestamp: leave out --start-ts")
    if file is None:
        return None if start_ts is None else empty_snapshot(start_ts)
    try:
        return file.read_bytes()
    except OSError as e:
        raise InvalidInput(f"the schema snapshot cannot be read: {e}", file=str(file)) from e


def options_of(
    follow: of_cluster.FollowOptions, tls: Tls | None, start_ts: int | None, schema_snapshot: bytes | None
) -> TikvPushOptions:
    """Options of a cluster's push from those of the command. InvalidInput for a table without a database."""
    from pusher.tikv_options import TikvPushOptions

    tables = follow.table or ()
    for name in tables:
        if not all(name.partition(".")):
            raise InvalidInput(f"--table {name}: write db.table.")
    return TikvPushOptions(
        tls=tls,
        names=(*tables, *(follow.database or ())),
        keyspace=follow.keyspace,
        index_keys=follow.index_keys,
        store_ids=frozenset(follow.store_id or ()),
        schema_snapshot=schema_snapshot,
        start_ts=start_ts,
        seed=follow.seed,
        spill=follow.spill,
        spill_bytes_max=follow.spill_mib << 20,
        cap_s=follow.history_cap * 3600,
        scans_max=follow.scans,
        idle_interval_s=follow.idle_interval,
        filter_loop=follow.filter_loop,
        rate_bytes_s=int(follow.scan_rate * (1 << 20)),
        resolve_locks=follow.resolve_locks,
    )


def cluster_line(p: TikvPushProgress) -> str:
    """One line: the service's watermark, what was pushed, and what is wrong."""
    from tistream.ts import to_text

    parts = [p.phase]
    if p.stores:
        watermark = f"{p.frontier_ts} ({to_text(p.frontier_ts)})" if p.frontier_ts else "not known yet"
        parts = [f"{p.phase}: stores {', '.join(map(str, p.stores))}; watermark of the service {watermark}"]
        parts.append(f"{p.rows:,} rows in {p.files:,} files")
    if p.seed_tables_left:
        parts.append(f"seed: {p.seed_rows:,} rows read, {p.seed_tables_left:,} tables left")
    if p.stores and not p.held_ts:
        parts.append("the cluster's history is not protected from GC")
    if p.overflows:
        parts.append(f"streams dropped: {p.overflows}")
    shown = p.problems[:3]
    parts += [*shown, f"and {len(p.problems) - len(shown)} more problems"] if len(p.problems) > len(shown) else shown
    return "; ".join(parts)


def log_line(p: LogPushProgress) -> str:
    """One line: the watermark of the log, what is not served yet, and what is wrong."""
    from tistream.ts import to_text

    watermark = f"watermark {p.promised_ts} ({to_text(p.promised_ts)})" if p.promised_ts else "no watermark yet"
    return "; ".join(part for part in (f"{p.phase}: {watermark}", p.problem or p.ahead) if part)


def cluster_progress(out: TextIO) -> Callable[[TikvPushProgress], None]:
    """Prints the status line of a cluster's push. Call it as often as you like."""
    show = _when_changed(out)
    return lambda p: show(cluster_line(p), (p.phase, p.stores, bool(p.problems), bool(p.held_ts)))


def log_progress(out: TextIO) -> Callable[[LogPushProgress], None]:
    """Prints the status line of a log backup's push, and each new note on undefined tables."""
    show, noted = _when_changed(out), [""]

    def update(p: LogPushProgress) -> None:
        show(log_line(p), (p.phase, bool(p.problem)))
        if p.undefined != noted[-1]:
            noted.append(p.undefined)
            print(f"note: {p.undefined}", file=out, flush=True)

    return update


def _when_changed(out: TextIO) -> Callable[[str, tuple[object, ...]], None]:
    """Prints a line when its state differs from the last one's, and every ten seconds."""
    last: tuple[object, ...] = ()
    printed_at = 0.0

    def show(line: str, state: tuple[object, ...]) -> None:
        nonlocal last, printed_at
        now = time.monotonic()
        if state != last or now - printed_at >= _LINE_EVERY_S:
            last, printed_at = state, now
            print(line, file=out, flush=True)

    return show


@contextmanager
def pusher_probes(url: str, tenant: TenantId, host: str, port: int | None, ports: PortOptions) -> Iterator[None]:
    """Serve probes and metrics of a push; None: do not. ConfigError when the port is taken or may not be opened. A
    pusher has no catalog and no lease: it is ready when the control plane knows its tenant."""
    if port is None:
        yield
        return
    from tistream.cli.ports import Certificates, check_listening
    from tistream.cli.server import HttpServer
    from tistream.clock import SystemClock
    from tistream.config import load
    from tistream.http.probes import probe_app
    from tistream.http.readiness import Probes

    settings = load(None, {}, ports.flags())
    certificates = Certificates.of(settings.tls, SystemClock())
    check_listening("--metrics-host", host, has_tls=certificates is not None, insecure=settings.insecure.listen)
    with control_of(url, tenant) as (control, _):

        def control_plane() -> None:
            control.push_bundle()

        def problems() -> list[Mapping[str, object]]:
            return [] if certificates is None else [problem.shown() for problem in certificates.problems()]

        probes = Probes(checks={"control plane": control_plane}, problems=problems)
        server = HttpServer(probe_app(probes), host, port, certificates=certificates)
        with ExitStack() as running:
            if certificates is not None:
                certificates.start()
                running.callback(certificates.stop)
            server.start()
            running.callback(server.stop)
            print(f"probes at {server.url}", file=sys.stderr, flush=True)
            yield
