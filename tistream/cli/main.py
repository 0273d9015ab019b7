"""The `tistream` command: one roof over all rooms.

Standard output is data, standard error is talk. Exit status: 0 done, 1 a check found something wrong, 2 bad usage or
bad input, 3 something does not exist, 4 not available now, 5 fenced by another process, 70 a defect,
130 interrupted by Ctrl-C before the work was done (services and `pull --follow` end by Ctrl-C with 0).
"""

from __future__ import annotations

import sys
import traceback
from typing import Annotated

import typer

from tistream import __version__
from tistream.cli import (
    audit,
    changefeed,
    chaos,
    compact,
    compiling,
    cost,
    demo,
    doctor,
    files,
    key,
    lag,
    login,
    operate,
    pull,
    push,
    replay,
    run,
    schema,
    seed,
    settings,
    sim,
    snapshot,
    status,
    tenant,
    time,
)
from tistream.errors import ErrorKind, TiStreamError

app = typer.Typer(
    name="tistream",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
EXIT = {
    ErrorKind.INVALID: 2,
    ErrorKind.NOT_FOUND: 3,
    ErrorKind.RETRY: 4,
    ErrorKind.FENCED: 5,
    ErrorKind.CORRUPT: 1,
    ErrorKind.INTERNAL: 70,
}
EXIT_INTERRUPTED = 130
run.add_to(app)
demo.add_to(app)
compiling.add_to(app)
tenant.add_to(app)
login.add_to(app)
key.add_to(app)
push.add_to(app)
pull.add_to(app)
snapshot.add_to(app)
seed.add_to(app)
status.add_to(app)
lag.add_to(app)
cost.add_to(app)
operate.add_to(app)
schema.add_to(app)
settings.add_to(app)
doctor.add_to(app)
files.add_to(app)
compact.add_to(app)
replay.add_to(app)
time.add_to(app)
sim.add_to(app)
chaos.add_to(app)
changefeed.add_to(app)
audit.add_to(app)


@app.callback(invoke_without_command=True)
def about(
    version: Annotated[bool, typer.Option("--version", "-V", help="Show the version and end.", is_eager=True)] = False,
) -> None:
    """The ordered change log of TiDB and TiKV clusters in object storage."""
    if version:
        typer.echo(f"TiStream {__version__}")
        raise typer.Exit


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except TiStreamError as e:
        print(f"tistream: {e} [{e.code}]", file=sys.stderr)
        if e.hint:
            print(f"  {e.hint}", file=sys.stderr)
        sys.exit(EXIT[e.kind])
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except Exception:  # noqa: BLE001 - a defect: its trace is what a report needs
        traceback.print_exc()
        sys.exit(EXIT[ErrorKind.INTERNAL])


if __name__ == "__main__":
    main()
