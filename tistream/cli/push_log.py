"""The part of `tistream push` that follows a log backup: what it prints, and how a tenant's first schema is found."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tistream.errors import InvalidInput

if TYPE_CHECKING:
    from pusher.logbackup.push import LogPushProgress
    from tistream.ids import Tenant

_LINE_EVERY_S = 10.0


def follow(url: str, tenant: Tenant, log_url: str, snapshot: bytes | None, until_caught_up: bool) -> int:
    """Push the log backup at `log_url` to the service at `url`; Ctrl-C ends it. Up to where all of it is durable."""
    import threading

    from pusher.control import HttpControl
    from pusher.logbackup.push import push_log_backup
    from pusher.tenant_store import opening
    from tistream.objectstore.factory import open_store

    control = HttpControl(url, tenant)
    lines, stop = StatusLines(sys.stderr), threading.Event()
    try:
        done = push_log_backup(
            open_store(log_url, foreign=True),
            control,
            opening(control),
            schema_snapshot=snapshot,
            until_caught_up=until_caught_up,
            progress=lines.update,
            stop=stop,
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
        raise InvalidInput("--schema-snapshot has a timestamp of its own: leave out --start-ts")
    if file is None:
        return None if start_ts is None else empty_snapshot(start_ts)
    try:
        return file.read_bytes()
    except OSError as e:
        raise InvalidInput(f"the schema snapshot cannot be read: {e}", file=str(file)) from e


def status_line(p: LogPushProgress) -> str:
    """One line: up to where the log is complete, what lies beyond and what is wrong."""
    from tistream.ts import to_text

    upto = f"complete up to {p.promised_ts} ({to_text(p.promised_ts)})" if p.promised_ts else "nothing is complete yet"
    return "; ".join(part for part in (f"{p.phase}: {upto}", p.problem or p.ahead) if part)


class StatusLines:
    """The status line, when something begins or ends and every ten seconds."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._said: tuple[str, bool] | None = None
        self._said_at = 0.0
        self._undefined = ""

    def update(self, p: LogPushProgress) -> None:
        """Call as often as you like."""
        now, what = time.monotonic(), (p.phase, bool(p.problem))
        if what != self._said or now - self._said_at >= _LINE_EVERY_S:
            self._said, self._said_at = what, now
            print(status_line(p), file=self._out, flush=True)
        if p.undefined != self._undefined:
            self._undefined = p.undefined
            print(f"note: {p.undefined}", file=self._out, flush=True)
