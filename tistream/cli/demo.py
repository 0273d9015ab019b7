"""`tistream demo`: runs the demonstration with a service in this process, the recording and a clock."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tistream.cli.jobs import Engine, EngineOption
from tistream.cli.options import Port
from tistream.cli.run import on_signals, settings_in

if TYPE_CHECKING:
    from tistream.catalog.rows.tasks import TaskRow
    from tistream.cli.running import Running
    from tistream.runtime.service import Service

_KILL_SHARE = 0.4  # share of a limited demo after which a sorter is killed


def demo(
    port: Port = None,
    seconds: Annotated[float | None, typer.Option(help="Stop after this many seconds, whatever was played.")] = None,
    stay: Annotated[
        bool, typer.Option("--stay", help="When everything was played, let a sample shop write until Ctrl-C.")
    ] = False,
    speed: Annotated[str, typer.Option(help="Speed of the recording: N times real time, or max.")] = "4",
    kill_after: Annotated[
        float | None, typer.Option(help="Kill a sorter after this many seconds; by default 45, or 0.4 of --seconds.")
    ] = None,
    engine: EngineOption = Engine.SPARK,
) -> None:
    """Play a recorded change stream of a real TiDB through TiStream, in a temporary folder.

    A modelled cluster writes too; then a sorter is killed, and a checker verifies that nothing is lost, repeated or out
    of order. The last act compacts the log, on Spark where Java and PySpark are installed or can be (as root, or with
    sudo), else in threads, and reads it again. A summary ends it. Exit status 1 when something is wrong, or when no
    change was read."""
    from simulator import demo as demonstration
    from tistream.cli import assembly, push
    from tistream.cli.printable_console import PrintableConsole

    pace = push.parse_speed(speed)
    ended = threading.Event()
    on_signals(ended.set)

    def start(folder: Path) -> _Demonstrated:
        running = assembly.embedded(settings_in(folder, port or 0), folder)
        running.start()
        return _Demonstrated(running)

    def feed(url: str, stop: threading.Event) -> None:
        push.push_recording(demonstration.RECORDING, url, demonstration.TENANT, pace, stop=stop)

    kill_after_s = (
        demonstration.KILL_AFTER_S if seconds is None else min(demonstration.KILL_AFTER_S, _KILL_SHARE * seconds)
    )
    if kill_after is not None:
        kill_after_s = kill_after
    with_spark = engine is Engine.SPARK
    seen = demonstration.run(
        start,
        feed,
        time=demonstration.Time(ended, seconds),
        out=PrintableConsole(),
        kill_after_s=kill_after_s,
        with_spark=with_spark,
        stay=stay,
    )
    if not seen.held or (seconds is not None and not seen.kinds):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Demonstrated:
    """The service for the demonstration."""

    running: Running

    @property
    def url(self) -> str:
        return self.running.url

    @property
    def catalog_url(self) -> str:
        return self.running.parts.settings.catalog.url

    @property
    def store_url(self) -> str:
        return self.running.parts.settings.object_store.url

    @property
    def parts(self) -> Sequence[Service]:
        return self.running.services.members

    def tasks(self) -> Sequence[TaskRow]:
        from tistream.catalog.work.tasks import list_tasks

        return list_tasks(self.running.parts.catalog)

    def kill(self, name: str) -> None:
        from sorter.worker.worker import SorterWorker

        for member in self.running.services.members:
            if member.name == name and isinstance(member, SorterWorker):
                member.crash()

    def close(self) -> None:
        self.running.close()
