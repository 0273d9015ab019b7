"""`tistream push`: pushes the changes of a source into a tenant's buffer."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tistream.cli import cluster_options as of_cluster
from tistream.cli.options import DEFAULT_URL, Cluster, Key, MetricsHost, MetricsPort, Tenant, Url
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
    bool, typer.Option("--check", help="Push nothing: check that everything is there that this push needs.")
]
_POLL_S = 0.1
_STALLED_S = 10.0


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
    key: Key = None,
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
    ca_path: of_cluster.CaPath = None,
    cert_path: of_cluster.CertPath = None,
    key_path: of_cluster.KeyPath = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    check: Check = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Push a change stream: a live cluster's, a recorded one, or that of TiKV's log backup.

    Give one of --pd, --capture, --replay and --log-backup; with --check none is needed. A recording ends when all of
    it is durable and, within some seconds, can be pulled; the others are followed until Ctrl-C. A new tenant begins
    with the current schema, or that of --start-ts; a log backup needs --start-ts or --schema-snapshot once."""
    from tistream.cli.doctor import check_push, show_findings
    from tistream.cli.log import configure
    from tistream.cli.push_sources import first_schema, follow_cluster, follow_log, options_of, pusher_probes
    from tistream.config import LogSettings
    from tistream.ids import Tenant as TenantId

    sources = sum(source is not None for source in (capture, replay, log_backup, pd))
    if sources > 1 or not (sources or check):
        raise InvalidInput("give one of --pd, --capture, --replay and --log-backup")
    to, secured = TenantId(cluster, tenant), of_cluster.tls(ca_path, cert_path, key_path)
    to_pd = None if pd is None else of_cluster.endpoints(pd)
    configure(LogSettings(level="error" if check else "warning"))
    if check:
        found = check_push(url, to, capture, replay, log_backup, to_pd, secured, keyspace)
        return show_findings(f"pushing to tenant {to} at {url}", found, output)
    context.with_resource(pusher_probes(url, to, metrics_host, metrics_port))
    if to_pd is not None:
        return follow_cluster(url, to, to_pd, options_of(context.params, secured))
    if log_backup is not None:
        upto = follow_log(url, to, log_backup, first_schema(schema_snapshot, start_ts), until_caught_up)
    else:
        upto = _play(capture, replay, url, to, speed)
    if not wait_until_served(url, to, upto):
        print("the service is still sorting; `tistream status` shows its progress", file=sys.stderr)


def _play(capture: Path | None, replay: Path | None, url: str, tenant: TenantId, speed: str) -> int:
    """Push the given recording, showing progress; returns its watermark."""
    from tistream.cli.progress import Progress

    folder = capture or replay
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
    from simulator.push.replay_push import push_replay
    from tistream.cli.push_sources import control_of

    play = push_replay if is_traffic else push_capture
    with control_of(url, tenant) as (control, open_bucket):
        return play(folder, control, open_bucket, speed=speed, progress=progress, stop=stop)


def wait_until_served(url: str, tenant: TenantId, ts: int) -> bool:
    """Wait until the published frontier has reached `ts`; False when it has not advanced for a while."""
    from tistream.cli.push_sources import control_of
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
