"""`tistream up` and the single services: long-running commands that end by Ctrl-C or SIGTERM."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from tistream.cli.jobs import Master, SparkConf, pairs
from tistream.cli.options import Bucket, Catalog, Config, Host, MetricsPort, Port
from tistream.errors import ConfigError

if TYPE_CHECKING:
    from tistream.cli.running import Running
    from tistream.cli.sample import Sample
    from tistream.config import Settings

_POLL_S = 1.0
# Spark's own page shows plans to everyone who reaches its port; tenants' jobs share the cores.
_SPARK_CONF = {"spark.ui.enabled": "false", "spark.scheduler.mode": "FAIR"}
_EXIT_STOPPED = 5  # a part ended: fenced by another process, or by a defect; a supervisor may restart the process

Auth = Annotated[str | None, typer.Option("--auth", help="none (loopback only), or keys: each request needs one.")]
Name = Annotated[str | None, typer.Option("--name", help="Name of this worker; unique among all workers.")]


def up(
    data: Annotated[Path, typer.Option("--data", "-d", help="Folder for catalog and bucket; created when missing.")],
    sample: Annotated[bool, typer.Option("--sample", help="A sample shop keeps writing, as tenant 1/1.")] = False,
    port: Port = None,
    host: Host = None,
    auth: Auth = None,
    catalog: Catalog = None,
    object_store: Bucket = None,
    config: Config = None,
) -> None:
    """Run the whole service in one process, kept in a folder; it resumes where it stopped."""
    from tistream.cli import assembly
    from tistream.cli.sample import Sample

    settings = settings_of(config, host, port, auth, catalog=catalog, object_store=object_store)
    with claimed(data):
        _run(assembly.embedded(settings, data), Sample(data) if sample else None)


@contextmanager
def claimed(data: Path) -> Iterator[None]:
    """Keep a folder for this process. ConfigError when another one has it. The kernel frees it when a process dies."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        file = (data / "lock").open("a+", encoding="ascii")
    except OSError as e:
        raise ConfigError(f"Cannot keep data in {data.resolve()}: {e.strerror}.") from e
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            file.seek(0)
            pid = file.read() or "unknown"
            raise ConfigError(f"Process {pid} already runs on {data.resolve()}. Stop it or use another folder.") from e
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def meta(
    name: Name = None,
    catalog: Catalog = None,
    object_store: Bucket = None,
    metrics_port: MetricsPort = None,
    config: Config = None,
) -> None:
    """Run a meta server: activation, assignment, collection and retention.

    It answers no API: `tistream serve` does."""
    from tistream.cli import assembly

    settings = settings_of(config, catalog=catalog, object_store=object_store, more={"metrics.port": metrics_port})
    _run(assembly.meta(assembly.open_parts(settings), name or _default_name("meta")))


def dispatch(
    name: Name = None,
    catalog: Catalog = None,
    object_store: Bucket = None,
    port: Port = None,
    metrics_port: MetricsPort = None,
    config: Config = None,
) -> None:
    """Run a dispatcher, which reads batch files and serves them to sorters on --port."""
    from tistream.cli import assembly

    ports: dict[str, object] = {"dispatcher.port": port, "metrics.port": metrics_port}
    settings = settings_of(config, catalog=catalog, object_store=object_store, more=ports)
    _run(assembly.dispatcher(assembly.open_parts(settings), name or _default_name("dispatcher")))


def sort(
    name: Name = None,
    catalog: Catalog = None,
    object_store: Bucket = None,
    metrics_port: MetricsPort = None,
    config: Config = None,
) -> None:
    """Run a sorter, which orders the changes of its tasks and commits them to the log."""
    from tistream.cli import assembly

    settings = settings_of(config, catalog=catalog, object_store=object_store, more={"metrics.port": metrics_port})
    _run(assembly.sorter(assembly.open_parts(settings), name or _default_name("sorter")))


def maintain(
    name: Name = None,
    slots: Annotated[int, typer.Option("--jobs", min=1, max=64, help="Jobs at once.")] = 2,
    catalog: Catalog = None,
    object_store: Bucket = None,
    metrics_port: MetricsPort = None,
    config: Config = None,
) -> None:
    """Run maintenance jobs in threads: the merges, bases and replays that the meta server records."""
    from tistream.cli import assembly

    settings = settings_of(config, catalog=catalog, object_store=object_store, more={"metrics.port": metrics_port})
    _run(assembly.maintain(assembly.open_parts(settings), name or _default_name("maintain"), slots))


def replicate(
    name: Name = None,
    threads: Annotated[int | None, typer.Option("--threads", help="Lanes at once (replication.threads).")] = None,
    catalog: Catalog = None,
    object_store: Bucket = None,
    metrics_port: MetricsPort = None,
    config: Config = None,
) -> None:
    """Write changefeeds to their destinations: other TiKV clusters, object storage."""
    from tistream.cli import assembly

    more: dict[str, object] = {"replication.threads": threads, "metrics.port": metrics_port}
    settings = settings_of(config, catalog=catalog, object_store=object_store, more=more)
    _run(assembly.replicate(assembly.open_parts(settings), name or _default_name("replicate")))


def serve(
    port: Port = None,
    host: Host = None,
    auth: Auth = None,
    catalog: Catalog = None,
    object_store: Bucket = None,
    metrics_port: MetricsPort = None,
    config: Config = None,
) -> None:
    """Run an API server: every route, and the console."""
    from tistream.cli import assembly

    more: dict[str, object] = {"metrics.port": metrics_port}
    settings = settings_of(config, host, port, auth, catalog=catalog, object_store=object_store, more=more)
    _run(assembly.api_server(assembly.open_parts(settings)))


def spark(
    name: Name = None,
    master: Master = None,
    jobs: Annotated[int | None, typer.Option("--jobs", help="Jobs at once (setting spark.jobs).")] = None,
    spark_conf: SparkConf = None,
    catalog: Catalog = None,
    object_store: Bucket = None,
    metrics_port: MetricsPort = None,
    config: Config = None,
) -> None:
    """Run maintenance jobs on Spark, several at once in one session. Needs Java 17."""
    from tistream.cli import assembly

    more: dict[str, object] = {"spark.master": master, "spark.jobs": jobs, "metrics.port": metrics_port}
    settings = settings_of(config, catalog=catalog, object_store=object_store, more=more)
    conf = {**_SPARK_CONF, **pairs(settings.spark.conf.splitlines()), **pairs(spark_conf or [])}
    if settings.spark.scratch_folder:
        conf["spark.local.dir"] = settings.spark.scratch_folder
    _run(assembly.spark(assembly.open_parts(settings), name or _default_name("spark"), conf))


def settings_of(
    path: Path | None,
    host: str | None = None,
    port: int | None = None,
    auth: str | None = None,
    *,
    catalog: str | None,
    object_store: str | None,
    more: dict[str, object] | None = None,
) -> Settings:
    """Settings from file, environment and these flags; the log is configured by them. `more`: other settings."""
    from tistream.cli import assembly
    from tistream.cli.log import configure

    flags = {"server.host": host, "server.port": port, "server.auth": auth}
    settings = assembly.load_settings(
        path, {**flags, "catalog.url": catalog, "object_store.url": object_store, **(more or {})}
    )
    configure(settings.log)
    return settings


def settings_in(folder: Path, port: int) -> Settings:
    """Settings of a whole service that keeps everything in `folder`, whatever the environment names. It schedules no
    maintenance: the demo compacts as its last act."""
    root = folder.resolve()
    urls = {"catalog": f"sqlite:///{root}/catalog.db", "object_store": f"file://{root}/bucket"}
    return settings_of(
        None, "127.0.0.1", port, "none", **urls, more={"log.level": "error", "maintenance.enabled": False}
    )


def _run(running: Running, sample: Sample | None = None) -> None:
    """Start, print the address, wait for the end, stop in order. An error of the sample ends it too. The first signal
    lets a worker drain, the second ends the draining, the third ends the process."""
    ended, skip_drain = threading.Event(), threading.Event()
    on_signals(ended.set, skip_drain.set)
    running.start()
    stopped = None
    try:
        print(running.greeting(), file=sys.stderr, flush=True)
        if sample is not None:  # its pushers' key comes behind the first owner's, which the greeting makes
            sample.start(running)
        while not ended.wait(_POLL_S) and stopped is None:
            stopped = running.stopped()
            if sample is not None:
                sample.greet(running.url)
                stopped = stopped or sample.stopped()
        if stopped is None:
            running.drain(skip_drain)
    finally:
        if sample is not None:
            sample.stop()
        running.close()
    if stopped is not None:
        print(f"tistream: {stopped.source} has stopped: {stopped.message} [{stopped.code}]", file=sys.stderr)
    _leave(0 if stopped is None else _EXIT_STOPPED)


def _leave(status: int) -> NoReturn:
    """End the process, whose parts have been closed, without finalizing the interpreter: a thread that still waits
    inside a library for its peer would return into a finalized interpreter and crash the process."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed before the process began
            with suppress(OSError):  # its reader is gone
                stream.flush()
    os._exit(status)


def wait_for_signal(check: Callable[[], None]) -> None:
    """Wait for Ctrl-C or SIGTERM; `check` is called each second, and may raise."""
    ended = threading.Event()
    on_signals(ended.set)
    while not ended.wait(_POLL_S):
        check()


def on_signals(stop: Callable[[], None], *later: Callable[[], None]) -> None:
    """Call `stop` at the first Ctrl-C or SIGTERM and the `later` ones at the next; the one behind the last of `later`
    ends the process. Without `later` each signal calls `stop`. They run in a thread of their own: a handler that waits
    for a lock which the main thread holds would wait for ever."""
    # Importing Polars sets a handler that raises KeyboardInterrupt in any thread with a running query. A handler that
    # is set after the import replaces it.
    import polars  # noqa: F401

    calls: SimpleQueue[Callable[[], None]] = SimpleQueue()  # its put may interrupt itself
    left = [stop, *later]
    numbers = (signal.SIGINT, signal.SIGTERM)

    def handle(*_: object) -> None:
        if left:
            calls.put(left.pop(0) if later else stop)
        if not left:
            for number in numbers:
                signal.signal(number, signal.SIG_DFL)

    def call() -> None:
        while True:
            calls.get()()

    threading.Thread(target=call, name="signals", daemon=True).start()
    for number in numbers:
        signal.signal(number, handle)


def _default_name(kind: str) -> str:
    import socket

    return f"{kind}-{socket.gethostname()}-{os.getpid()}"
