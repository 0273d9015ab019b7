"""The part of `tistream push` that follows a living cluster: what it prints, and how it ends."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tistream.cli.run import on_signals
from tistream.errors import InvalidInput

if TYPE_CHECKING:
    from pusher.tikv_options import TikvPushOptions, TikvPushProgress
    from tistream.ids import Tenant

_LINE_EVERY_S = 10.0


def follow_cluster(url: str, tenant: Tenant, endpoints: Sequence[str], options: TikvPushOptions) -> None:
    """Push the cluster to the service at `url`, until Ctrl-C or SIGTERM."""
    from pusher.control import HttpControl
    from pusher.tenant_store import opening
    from pusher.tikv_push import push_cluster

    stop, lines = threading.Event(), StatusLines(sys.stderr)
    on_signals(stop.set)
    control = HttpControl(url, tenant)
    try:
        done = push_cluster(endpoints, control, opening(control), options, progress=lines.update, stop=stop)
    finally:
        control.close()
    print(f"pushed {done.rows:,} rows in {done.files:,} files, {done.bytes:,} bytes", file=sys.stderr)


def begin_of(
    schema_snapshot: Path | None,
    start_ts: int | None,
    tables: Sequence[str],
    databases: Sequence[str],
    index_keys: bool,
    seed: bool,
) -> TikvPushOptions:
    """How a new tenant begins, as the command line says."""
    from pusher.tikv_options import TikvPushOptions
    from tistream.cli.push_log import first_schema

    for name in tables:
        if not all(name.partition(".")):
            raise InvalidInput(f"--table {name}: write db.table.")
    return TikvPushOptions(
        schema_snapshot=None if schema_snapshot is None else first_schema(schema_snapshot, start_ts),
        start_ts=start_ts,
        names=(*tables, *databases),
        index_keys=index_keys,
        seed=seed,
    )


def limits_of(
    options: TikvPushOptions,
    store_ids: Sequence[int],
    history_cap_h: float,
    scans: int,
    scan_rate_mib_s: float,
    resolve_locks: bool,
) -> TikvPushOptions:
    """The options, and how much of the cluster may be asked or done there, as the command line says."""
    return replace(
        options,
        store_ids=frozenset(store_ids),
        cap_s=history_cap_h * 3600,
        scans_max=scans,
        rate_bytes_s=int(scan_rate_mib_s * (1 << 20)),
        resolve_locks=resolve_locks,
    )


def status_line(p: TikvPushProgress) -> str:
    """One line: how far the service is, what was pushed, and what is wrong."""
    from tistream.ts import to_text

    parts = [p.phase]
    if p.stores:
        upto = f"up to {p.frontier_ts} ({to_text(p.frontier_ts)})" if p.frontier_ts else "not known yet"
        parts = [f"{p.phase}: stores {', '.join(map(str, p.stores))}; the service is complete {upto}"]
        parts.append(f"{p.rows:,} rows in {p.files:,} files")
    if p.seed_tables_left:
        parts.append(f"seed: {p.seed_rows:,} rows read, {p.seed_tables_left:,} tables left")
    if p.stores and not p.held_ts:
        parts.append("the cluster's history is not held")
    if p.overflows:
        parts.append(f"streams given up: {p.overflows}")
    shown = p.problems[:3]
    parts += [*shown, f"and {len(p.problems) - len(shown)} more problems"] if len(p.problems) > len(shown) else shown
    return "; ".join(parts)


class StatusLines:
    """The status line, when something begins or ends and every ten seconds."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._said: tuple[object, ...] = ()
        self._said_at = 0.0

    def update(self, p: TikvPushProgress) -> None:
        """Call as often as you like."""
        now, what = time.monotonic(), (p.phase, p.stores, bool(p.problems), bool(p.held_ts))
        if what != self._said or now - self._said_at >= _LINE_EVERY_S:
            self._said, self._said_at = what, now
            print(status_line(p), file=self._out, flush=True)
