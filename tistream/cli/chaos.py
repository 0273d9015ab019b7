"""`tistream chaos`: runs a whole deployment on this machine under random faults; nothing may be lost."""

from __future__ import annotations

import json
import sys
import threading
from typing import Annotated

import typer

from tistream.cli.run import on_signals


def chaos(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long faults are injected.")] = 3.0,
    seed: Annotated[int | None, typer.Option(help="Seed of the faults and of the upstream; random by default.")] = None,
    pause: Annotated[float, typer.Option(min=0.5, help="Seconds between two events, about.")] = 5.0,
    sorters: Annotated[int, typer.Option(min=1, help="How many of them.")] = 2,
    dispatchers: Annotated[int, typer.Option(min=1, help="How many of them.")] = 2,
    rate: Annotated[float, typer.Option(help="Steps of the modelled workload per second.")] = 200.0,
) -> None:
    """Run a deployment under random faults, while readers follow its log.

    It runs on a MariaDB and an S3 server, fed by a modelled cluster; its processes are killed, paused, cut off and
    restarted. Needs Debian's mariadb-server-core, mariadb-client-core and libfaketime, and the extra testing.

    The report goes to standard output as JSON. Exit status 0: no promise was violated."""
    import secrets

    from simulator.chaos.rig import Size
    from simulator.chaos.run import run

    stop = threading.Event()
    on_signals(stop.set)
    chosen = secrets.randbelow(1 << 31) if seed is None else seed
    size = Size(sorters=sorters, dispatchers=dispatchers, steps_per_s=rate)
    report = run(minutes * 60, chosen, size, _say, every_s=pause, stop=stop)
    print(json.dumps(report.shown(), indent=2))
    if not report.held:
        raise typer.Exit(1)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
