"""`tistream up` and the single services: long-running commands that end by Ctrl-C or SIGTERM.

With `tistream up --sample` a shop keeps writing, as a tenant of the service in this process.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated

import typer

from tistream.cli.leave import leave
from tistream.cli.options import (
    DEFAULT_URL,
    DeploymentOptions,
    Host,
    Master,
    Port,
    PortOptions,
    ProcessOptions,
    SparkConf,
    spark_settings,
)
from tistream.cli.startup import process_name
from tistream.errors import ConfigError
from tistream.ids import Tenant

if TYPE_CHECKING:
    from simulator.sample.running import RunningSample
    from tistream.cli.running import Running
    from tistream.config import Settings
    from tistream.model.problem import Problem
    from tistream.runtime.tls import ClientFiles

_POLL_S = 1.0
# Spark's own page shows plans to everyone who reaches its port; tenants' jobs share the cores.
_SPARK_CONF = {"spark.ui.enabled": "false", "spark.scheduler.mode": "FAIR"}
_EXIT_STOPPED = 5  # a part ended: fenced by another process, or by a defect; a supervisor may restart the process

Auth = Annotated[str | None, typer.Option("--auth", help="none (loopback only), or keys: each request needs one.")]
Name = Annotated[str | None, typer.Option("--name", help="Name of this worker; unique among all workers.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Where a process answers HTTP, and whom."""

    port: Port = None
    host: Host = None
    auth: Auth = None

    def flags(self) -> dict[str, object]:
        """The settings that these options name."""
        return {f"server.{name}": value for name, value in asdict(self).items()}


def up(
    data: Annotated[Path, typer.Option("--data", "-d", help="Folder for catalog and bucket; created when missing.")],
    where: DeploymentOptions,
    listening: ServerOptions,
    ports: PortOptions,
    sample: Annotated[bool, typer.Option("--sample", help="A sample shop keeps writing, as tenant 1/1.")] = False,
) -> None:
    """Run the whole service in one process, kept in a folder; it resumes where it stopped."""
    from tistream.cli import assembly

    settings = where.settings(listening.flags() | ports.flags())
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


def meta(where: ProcessOptions, ports: PortOptions, name: Name = None) -> None:
    """Run a meta server: activation, assignment, collection and retention.

    It answers no API: `tistream serve` does."""
    from tistream.cli import assembly

    _run(assembly.meta(where.open(ports.flags()), name or process_name("meta")))


def dispatch(where: ProcessOptions, ports: PortOptions, name: Name = None, port: Port = None) -> None:
    """Run a dispatcher, which reads batch files and serves them to sorters on --port."""
    from tistream.cli import assembly

    parts = where.open({"dispatcher.port": port, **ports.flags()}, "dispatcher.host")
    _run(assembly.dispatcher(parts, name or process_name("dispatcher")))


def sort(where: ProcessOptions, ports: PortOptions, name: Name = None) -> None:
    """Run a sorter, which orders the changes of its tasks and commits them to the log."""
    from tistream.cli import assembly

    _run(assembly.sorter(where.open(ports.flags()), name or process_name("sorter")))


def maintain(
    where: ProcessOptions,
    ports: PortOptions,
    name: Name = None,
    slots: Annotated[int, typer.Option("--jobs", min=1, max=64, help="Jobs at once.")] = 2,
) -> None:
    """Run maintenance jobs in threads: the merges, bases and replays that the meta server records."""
    from tistream.cli import assembly

    _run(assembly.maintain(where.open(ports.flags()), name or process_name("maintain"), slots))


def replicate(
    where: ProcessOptions,
    ports: PortOptions,
    name: Name = None,
    threads: Annotated[int | None, typer.Option("--threads", help="Lanes at once (replication.threads).")] = None,
) -> None:
    """Write changefeeds to their destinations: other TiKV clusters, object storage."""
    from tistream.cli import assembly

    parts = where.open({"replication.threads": threads, **ports.flags()})
    _run(assembly.replicate(parts, name or process_name("replicate")))


def serve(where: ProcessOptions, listening: ServerOptions, ports: PortOptions) -> None:
    """Run an API server: every route, and the console."""
    from tistream.cli import assembly

    _run(assembly.api_server(where.open(listening.flags() | ports.flags(), "server.host")))


def spark(
    where: ProcessOptions,
    ports: PortOptions,
    name: Name = None,
    master: Master = None,
    jobs: Annotated[int | None, typer.Option("--jobs", help="Jobs at once (setting spark.jobs).")] = None,
    spark_conf: SparkConf = None,
) -> None:
    """Run maintenance jobs on Spark, several at once in one session. Needs Java 17."""
    from tistream.cli import assembly

    parts = where.open({"spark.master": master, "spark.jobs": jobs, **ports.flags()})
    settings = parts.settings
    conf = {**_SPARK_CONF, **spark_settings(settings.spark.conf.splitlines()), **spark_settings(spark_conf or [])}
    if settings.spark.scratch_folder:
        conf["spark.local.dir"] = settings.spark.scratch_folder
    _run(assembly.spark(parts, name or process_name("spark"), conf))


def settings_in(folder: Path, port: int) -> Settings:
    """Settings of a whole service that keeps everything in `folder`, whatever the environment names. It schedules no
    maintenance: the demo compacts as its last act."""
    root = folder.resolve()
    where = DeploymentOptions(catalog=f"sqlite:///{root}/catalog.db", object_store=f"file://{root}/bucket")
    server = ServerOptions(host="127.0.0.1", port=port, auth="none").flags()
    return where.settings({**server, "log.level": "error", "maintenance.enabled": False})


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
    leave(0 if stopped is None else _EXIT_STOPPED)


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


TENANT = Tenant(1, 1)


class Sample:
    """Registers the tenant, and pushes once started."""

    def __init__(self, data: Path) -> None:
        from simulator.sample import kept

        self._path = data / kept.NAME
        self._greeted = False
        self.running: RunningSample | None = None

    def start(self, running: Running) -> None:
        """Begin to push to the service, or continue. StateForbids when the tenant was deleted."""
        from simulator.sample.running import RunningSample
        from tistream.catalog.tenancy.tenants import register_tenant

        register_tenant(running.parts.catalog, TENANT)
        key = self._key(running) if running.parts.settings.server.auth == "keys" else ""
        self.running = RunningSample(running.url, TENANT, self._path, key, self._files(running))

    def greet(self, url: str) -> None:
        """Say what to type next, once it shows rows."""
        if self._greeted or self.running is None or not self.running.push.readable.is_set():
            return
        self._greeted = True
        print(self._words(url), file=sys.stderr, flush=True)

    def _words(self, url: str) -> str:
        at = "" if url == DEFAULT_URL else f" --url {url}"
        return "\n".join(
            (
                f"  sample     a shop writes to tenant {TENANT}. In another terminal:",
                f"               tistream pull shop.orders --follow{at}",
                f"               tistream snapshot shop.customers --as-of latest{at}",
                f"             and on the console: {url}/",
            )
        )

    def stopped(self) -> Problem | None:
        """What ended it early, if anything."""
        from tistream.model.problem import Problem

        error = None if self.running is None else self.running.error
        return None if error is None else Problem.of("the sample", error, fatal=True)

    def stop(self) -> None:
        if self.running is not None:
            self.running.stop()

    def _files(self, running: Running) -> ClientFiles | None:
        """It trusts the certificate of this process, whatever name that has."""
        from tistream.runtime.credentials import files_for

        certificates = running.parts.certificates
        if certificates is None:
            return None
        return replace(files_for(running.url), ca=certificates.files.cert, checks_name=False)

    def _key(self, running: Running) -> str:
        """The key that was kept, if it still counts, else a new one."""
        from simulator.sample import kept
        from tistream.catalog.tenancy.keys import list_keys
        from tistream.http.auth.core.keys import parse_key
        from tistream.http.auth.core.roles import Role
        from tistream.http.auth.issue import issue_key

        state = kept.read(self._path)
        if state is not None and state.key:
            key_id = parse_key(state.key).key_id
            if any(row.key_id == key_id and row.state == "living" for row in list_keys(running.parts.catalog, TENANT)):
                return state.key
        name = f"pushers of {TENANT}"
        return issue_key(running.parts.catalog, name=name, role=Role.PUSHER, tenant=TENANT).text
