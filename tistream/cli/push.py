"""`tistream push`: a source's changes into a tenant's buffer."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tistream.cli.options import DEFAULT_URL, Cluster, Tenant, Url
from tistream.errors import InvalidInput

if TYPE_CHECKING:
    from tistream.ids import Tenant as TenantId
    from tistream.pusher.capture_push import PushProgress, PushResult


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("push")(push)


def push(
    capture: Annotated[Path, typer.Option(help="Folder of a recorded change stream.")],
    cluster: Cluster = 1,
    tenant: Tenant = 1,
    url: Url = DEFAULT_URL,
    speed: Annotated[str, typer.Option(help="N times real time, or max.")] = "1",
) -> None:
    """Push a recorded change stream as its TiKV stores would. Returns when all of it is durable."""
    from tistream.cli.log import configure
    from tistream.cli.progress import Progress
    from tistream.config import LogSettings
    from tistream.ids import Tenant as TenantId

    configure(LogSettings(level="warning"))
    pace = parse_speed(speed)
    with Progress("pushing", sys.stderr) as progress:
        result = push_recording(
            capture, url, TenantId(cluster, tenant), pace, lambda p: progress.update(p.ticks, p.ticks_total, _note(p))
        )
    size = f"{result.rows:,} rows in {result.files:,} files, {result.bytes:,} bytes"
    print(f"pushed {size}, up to {result.last_resolved_ts}", file=sys.stderr)


def push_recording(
    folder: Path,
    url: str,
    tenant: TenantId,
    speed: float | None,
    progress: Callable[[PushProgress], None] = lambda _: None,
) -> PushResult:
    """Push a recording to the service at `url`; what was pushed."""
    from tistream.objectstore.factory import open_store
    from tistream.pusher.capture_push import push_capture
    from tistream.pusher.control import HttpControl

    return push_capture(folder, HttpControl(url, tenant), open_store, speed=speed, progress=progress)


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
