"""The sources that `tistream push` follows until it is stopped: a live cluster and a log backup."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tistream.cli.no_pandas import keep_pandas_out
from tistream.cli.run import on_signals
from tistream.errors import InvalidInput

if TYPE_CHECKING:
    from pusher.control import HttpControl
    from pusher.logbackup.push import LogPushProgress
    from pusher.tikv_options import TikvPushOptions, TikvPushProgress
    from tistream.ids import Tenant
    from tistream.objectstore.protocol import ObjectStore
    from tistream.tikv.channels import Tls

_LINE_EVERY_S = 10.0


@contextmanager
def control_of(url: str, tenant: Tenant) -> Iterator[tuple[HttpControl, Callable[[str], ObjectStore]]]:
    """The control plane at `url`, and what opens the tenant's bucket."""
    from pusher.control import HttpControl
    from pusher.tenant_store import opening

    keep_pandas_out()
    control = HttpControl(url, tenant)
    try:
        yield control, opening(control)
    finally:
        control.close()


def follow_cluster(url: str, tenant: Tenant, endpoints: Sequence[str], options: TikvPushOptions) -> None:
    """Push the cluster to the service at `url`, until Ctrl-C or SIGTERM."""
    from pusher.tikv_push import push_cluster

    stop, show = threading.Event(), cluster_progress(sys.stderr)
    on_signals(stop.set)
    with control_of(url, tenant) as (control, open_bucket):
        done = push_cluster(endpoints, control, open_bucket, options, progress=show, stop=stop)
    print(f"pushed {done.rows:,} rows in {done.files:,} files, {done.bytes:,} bytes", file=sys.stderr)


def follow_log(url: str, tenant: Tenant, log_url: str, snapshot: bytes | None, until_caught_up: bool) -> int:
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
        raise InvalidInput("--schema-snapshot has a timestamp of its own: leave out --start-ts")
    if file is None:
        return None if start_ts is None else empty_snapshot(start_ts)
    try:
        return file.read_bytes()
    except OSError as e:
        raise InvalidInput(f"the schema snapshot cannot be read: {e}", file=str(file)) from e


def options_of(given: Mapping[str, Any], tls: Tls | None) -> TikvPushOptions:
    """Options of a cluster's push from the command's parameters. InvalidInput for a table without a database."""
    from pusher.tikv_options import TikvPushOptions

    tables, snapshot = given["table"] or (), given["schema_snapshot"]
    for name in tables:
        if not all(name.partition(".")):
            raise InvalidInput(f"--table {name}: write db.table.")
    same = ("keyspace", "index_keys", "start_ts", "seed", "spill", "filter_loop", "resolve_locks")
    return TikvPushOptions(
        **{name: given[name] for name in same},
        tls=tls,
        names=(*tables, *(given["database"] or ())),
        store_ids=frozenset(given["store_id"] or ()),
        schema_snapshot=None if snapshot is None else first_schema(snapshot, given["start_ts"]),
        spill_bytes_max=given["spill_mib"] << 20,
        cap_s=given["history_cap"] * 3600,
        scans_max=given["scans"],
        idle_interval_s=given["idle_interval"],
        rate_bytes_s=int(given["scan_rate"] * (1 << 20)),
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
    """One line: the watermark of the log, what lies beyond, and what is wrong."""
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
def pusher_probes(url: str, tenant: Tenant, host: str, port: int | None) -> Iterator[None]:
    """Serve probes and metrics of a push; None: do not. ConfigError when the port is taken. A pusher has no catalog and
    no lease: it is ready when the control plane knows its tenant."""
    if port is None:
        yield
        return
    from tistream.cli.server import HttpServer
    from tistream.http.probes import probe_app
    from tistream.http.readiness import Probes

    with control_of(url, tenant) as (control, _):

        def control_plane() -> None:
            control.push_bundle()

        server = HttpServer(probe_app(Probes(checks={"control plane": control_plane})), host, port)
        server.start()
        print(f"probes at {server.url}", file=sys.stderr, flush=True)
        try:
            yield
        finally:
            server.stop()
