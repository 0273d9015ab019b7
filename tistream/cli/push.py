"""`tistream push`: a source's changes into a tenant's buffer."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tistream.cli.options import DEFAULT_URL, Cluster, Tenant, Url
from tistream.errors import InvalidInput

if TYPE_CHECKING:
    from tistream.ids import Tenant as TenantId
    from tistream.pusher.capture_push import PushProgress, PushResult


_LOOK_EVERY_S = 0.1
_STANDS_STILL_S = 10.0


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("push")(push)


def push(
    capture: Annotated[Path | None, typer.Option(help="Folder of a recorded change stream.")] = None,
    replay: Annotated[
        Path | None, typer.Option(help="Folder of the recorded traffic of a real cluster, served again and followed.")
    ] = None,
    cluster: Cluster = 1,
    tenant: Tenant = 1,
    url: Url = DEFAULT_URL,
    speed: Annotated[str, typer.Option(help="N times real time, or max.")] = "1",
) -> None:
    """Push a recorded change stream as its TiKV stores would. Give one of --capture and --replay.

    Returns when all of it is durable and, if that takes no longer than some seconds, can be pulled.
    """
    from tistream.cli.log import configure
    from tistream.cli.progress import Progress
    from tistream.config import LogSettings
    from tistream.ids import Tenant as TenantId

    configure(LogSettings(level="warning"))
    pace = parse_speed(speed)
    folder = capture or replay
    if folder is None or (capture and replay):
        raise InvalidInput("Give one of --capture and --replay.")
    push_folder = push_recording if capture else push_traffic
    with Progress("pushing", sys.stderr) as progress:
        result = push_folder(
            folder, url, TenantId(cluster, tenant), pace, lambda p: progress.update(p.ticks, p.ticks_total, _note(p))
        )
    size = f"{result.rows:,} rows in {result.files:,} files, {result.bytes:,} bytes"
    print(f"pushed {size}, up to {result.last_resolved_ts}", file=sys.stderr)
    if not wait_until_served(url, TenantId(cluster, tenant), result.last_resolved_ts):
        print("the service is still sorting; `tistream status` shows how far it is", file=sys.stderr)


def push_recording(
    folder: Path,
    url: str,
    tenant: TenantId,
    speed: float | None,
    progress: Callable[[PushProgress], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> PushResult:
    """Push a recording to the service at `url`, until its end or until `stop` is set; what was pushed."""
    from tistream.objectstore.factory import open_store
    from tistream.pusher.capture_push import push_capture
    from tistream.pusher.control import HttpControl

    return push_capture(folder, HttpControl(url, tenant), open_store, speed=speed, progress=progress, stop=stop)


def push_traffic(
    folder: Path,
    url: str,
    tenant: TenantId,
    speed: float | None,
    progress: Callable[[PushProgress], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> PushResult:
    """Follow a recorded cluster and push what it says to the service at `url`; what was pushed."""
    from tistream.demo import RECORDING
    from tistream.objectstore.factory import open_store
    from tistream.pusher.control import HttpControl
    from tistream.pusher.replay_push import push_replay

    job_table = (RECORDING / "schema_snapshot.json").read_bytes()
    control = HttpControl(url, tenant)
    return push_replay(folder, job_table, control, open_store, speed=speed, progress=progress, stop=stop)


def wait_until_served(url: str, tenant: TenantId, ts: int) -> bool:
    """Wait until the published frontier has reached `ts`; False when it has not moved for a while."""
    from tistream.errors import TiStreamError
    from tistream.pusher.control import HttpControl

    control = HttpControl(url, tenant)
    reached, moved_at = 0, time.monotonic()
    try:
        while time.monotonic() - moved_at < _STANDS_STILL_S:
            try:
                upper = min((entry.upper for entry in control.frontier()), default=0)
            except TiStreamError:
                upper = 0  # what was pushed is safe, whatever the service does meanwhile
            if upper >= ts:
                return True
            if upper > reached:
                reached, moved_at = upper, time.monotonic()
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
