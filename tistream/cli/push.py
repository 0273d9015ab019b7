"""`tistream push`: a source's changes into a tenant's buffer."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tistream.cli import cluster_options as of_cluster
from tistream.cli.options import DEFAULT_URL, ApiKey, Cluster, MetricsHost, MetricsPort, Tenant, Url
from tistream.cli.output import Output, OutputOption
from tistream.errors import InvalidInput

if TYPE_CHECKING:
    from simulator.push.recording_push import PushProgress, PushResult
    from tistream.ids import Tenant as TenantId


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
    bool, typer.Option("--check", help="Push nothing: look whether everything is there that this push would need.")
]
PushFolder = Callable[..., "PushResult"]  #: (folder, url, tenant, speed, progress): what was pushed

_LOOK_EVERY_S = 0.1
_STANDS_STILL_S = 10.0


def push(
    context: typer.Context,
    capture: Annotated[Path | None, typer.Option(help="Folder of a recorded change stream.")] = None,
    replay: Annotated[
        Path | None, typer.Option(help="Folder of the recorded traffic of a real cluster, served again and followed.")
    ] = None,
    log_backup: Annotated[
        str | None, typer.Option(help="Where TiKV's log backup writes: file:///folder or s3://bucket/prefix.")
    ] = None,
    pd: of_cluster.Pd = None,
    cluster: Cluster = 1,
    tenant: Tenant = 1,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    speed: Annotated[str, typer.Option(help="Of a recording: N times real time, or max.")] = "1",
    start_ts: StartTs = None,
    schema_snapshot: Snapshot = None,
    until_caught_up: UntilCaughtUp = False,
    store_id: of_cluster.StoreId = None,
    seed: of_cluster.Seed = False,
    history_cap: of_cluster.HistoryCap = 24.0,
    scans: of_cluster.Scans = 32,
    scan_rate: of_cluster.ScanRate = 16.0,
    idle_interval: of_cluster.IdleInterval = None,
    table: of_cluster.Table = None,
    database: of_cluster.Database = None,
    index_keys: of_cluster.IndexKeys = True,
    filter_loop: of_cluster.FilterLoop = False,
    resolve_locks: of_cluster.ResolveLocks = True,
    keyspace: of_cluster.Keyspace = None,
    spill: of_cluster.Spill = None,
    spill_mib: of_cluster.SpillMib = 1024,
    ca: of_cluster.Ca = None,
    cert: of_cluster.Cert = None,
    key: of_cluster.Key = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    check: Check = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Push a change stream: a living cluster's, a recorded one, or that of TiKV's log backup. Give one of --pd,
    --capture, --replay and --log-backup; with --check none is needed.

    A recording ends when all of it is durable and, if that takes no longer than some seconds, can be pulled. The others
    are followed until Ctrl-C. A tenant that has not begun yet begins with the schema of now, or of --start-ts; of a
    log backup it needs --start-ts or --schema-snapshot once, and the log must be whole from that time on."""
    from tistream.ids import Tenant as TenantId

    sources = sum(source is not None for source in (capture, replay, log_backup, pd))
    if sources > 1 or not (sources or check):
        raise InvalidInput("give one of --pd, --capture, --replay and --log-backup")
    to, secured = TenantId(cluster, tenant), of_cluster.tls(ca, cert, key)
    to_pd = None if pd is None else of_cluster.endpoints(pd)
    if check:
        return _check(output, url, to, capture, replay, log_backup, to_pd, secured, keyspace)
    _prepare(context, url, to, metrics_host, metrics_port)
    if to_pd is not None:
        from tistream.cli.push_cluster import begin_of, follow_cluster, limits_of

        begin = begin_of(schema_snapshot, start_ts, table or (), database or (), index_keys, seed)
        limits = limits_of(begin, store_id or (), history_cap, scans, scan_rate, resolve_locks)
        whole = replace(limits, tls=secured, filter_loop=filter_loop, keyspace=keyspace, idle_interval_s=idle_interval)
        follow_cluster(url, to, to_pd, replace(whole, spill=spill, spill_bytes_max=spill_mib << 20))
        return
    if log_backup is not None:
        upto = _follow_log(url, to, log_backup, schema_snapshot, start_ts, until_caught_up)
    else:
        upto = _play(capture, replay, url, to, speed)
    if not wait_until_served(url, to, upto):
        print("the service is still sorting; `tistream status` shows how far it is", file=sys.stderr)


def _check(output: Output, url: str, tenant: TenantId, *of_source: Any) -> None:
    """Look, and end with status 1 when something is missing."""
    from tistream.cli.doctor import check_push, show_findings
    from tistream.cli.log import configure
    from tistream.config import LogSettings

    configure(LogSettings(level="error"))
    show_findings(f"pushing to tenant {tenant} at {url}", check_push(url, tenant, *of_source), output)


def _prepare(context: typer.Context, url: str, tenant: TenantId, host: str, port: int | None) -> None:
    """The log, and the port of probes if there is to be one."""
    from tistream.cli.log import configure
    from tistream.cli.push_probes import pusher_probes
    from tistream.config import LogSettings

    configure(LogSettings(level="warning"))
    context.with_resource(pusher_probes(url, tenant, host, port))


def _follow_log(
    url: str, tenant: TenantId, log_backup: str, snapshot: Path | None, start_ts: int | None, until_caught_up: bool
) -> int:
    """Push a log backup; how far it came."""
    from tistream.cli.push_log import first_schema, follow

    return follow(url, tenant, log_backup, first_schema(snapshot, start_ts), until_caught_up)


def _play(capture: Path | None, replay: Path | None, url: str, tenant: TenantId, speed: str) -> int:
    """Push the recording that is given; how far it came."""
    if capture is not None:
        return _push_folder(push_recording, capture, url, tenant, speed)
    assert replay is not None
    return _push_folder(push_traffic, replay, url, tenant, speed)


def _push_folder(push_folder: PushFolder, folder: Path, url: str, tenant: TenantId, speed: str) -> int:
    """Push a recording, and say how far it came."""
    from tistream.cli.progress import Progress

    pace = parse_speed(speed)
    with Progress("pushing", sys.stderr) as progress:
        result = push_folder(folder, url, tenant, pace, lambda p: progress.update(p.ticks, p.ticks_total, _note(p)))
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
) -> PushResult:
    """Push a recording to the service at `url`, until its end or until `stop` is set; what was pushed."""
    from pusher.control import HttpControl
    from pusher.tenant_store import opening
    from simulator.push.capture_push import push_capture

    control = HttpControl(url, tenant)
    return push_capture(folder, control, opening(control), speed=speed, progress=progress, stop=stop)


def push_traffic(
    folder: Path,
    url: str,
    tenant: TenantId,
    speed: float | None,
    progress: Callable[[PushProgress], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> PushResult:
    """Follow a recorded cluster and push what it says to the service at `url`; what was pushed."""
    from pusher.control import HttpControl
    from pusher.tenant_store import opening
    from simulator.push.replay_push import push_replay

    control = HttpControl(url, tenant)
    return push_replay(folder, control, opening(control), speed=speed, progress=progress, stop=stop)


def wait_until_served(url: str, tenant: TenantId, ts: int) -> bool:
    """Wait until the published frontier has reached `ts`; False when it has not moved for a while."""
    from pusher.control import HttpControl
    from tistream.errors import TiStreamError

    control = HttpControl(url, tenant)
    reached, moved_at = 0, time.monotonic()
    try:
        while time.monotonic() - moved_at < _STANDS_STILL_S:
            try:
                durable_ts = min((entry.durable_ts for entry in control.frontier()), default=0)
            except TiStreamError:
                durable_ts = 0  # what was pushed is safe, whatever the service does meanwhile
            if durable_ts >= ts:
                return True
            if durable_ts > reached:
                reached, moved_at = durable_ts, time.monotonic()
            time.sleep(_LOOK_EVERY_S)
        return False
    finally:
        control.close()


def _note(progress: PushProgress) -> str:
    return f"{progress.phase}: {progress.problem}" if progress.problem else progress.phase


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
