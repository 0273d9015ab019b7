"""The `tistream` command: one roof over all rooms.

Standard output is data, standard error is talk. Exit status: 0 done, 1 a check found something wrong, 2 bad usage or
bad input, 3 something does not exist, 4 not available now, 5 fenced by another process, 70 a defect,
130 interrupted by Ctrl-C before the work was done (services and `pull --follow` end by Ctrl-C with 0).
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated

import typer

from tistream import __version__
from tistream.errors import ErrorKind, TiStreamError

# The module of each command, in the order of `tistream --help`. Only what is asked for is imported and built: a command
# starts in half the time.
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "run": ("up", "meta", "dispatch", "sort", "serve"),
    "demo": ("demo",),
    "compiling": ("compile",),
    "tenant": ("tenant",),
    "login": ("login",),
    "key": ("key",),
    "push": ("push",),
    "pull": ("pull",),
    "snapshot": ("snapshot", "restore"),
    "seed": ("seed",),
    "status": ("status",),
    "lag": ("lag",),
    "cost": ("cost",),
    "operate": ("workers", "tasks", "api", "gaps", "stops", "events"),
    "schema": ("schema",),
    "settings": ("config",),
    "doctor": ("doctor",),
    "files": ("inspect",),
    "compact": ("compact",),
    "replay": ("replay",),
    "time": ("tso",),
    "sim": ("sim",),
    "chaos": ("chaos",),
    "changefeed": ("changefeed",),
    "audit": ("audit",),
}
EXIT = {
    ErrorKind.INVALID: 2,
    ErrorKind.NOT_FOUND: 3,
    ErrorKind.RETRY: 4,
    ErrorKind.FENCED: 5,
    ErrorKind.CORRUPT: 1,
    ErrorKind.INTERNAL: 70,
}
EXIT_INTERRUPTED = 130


def command_line(arguments: Sequence[str] = ()) -> typer.Typer:
    """The command with what these arguments ask for; with all of its commands where they name none of them."""
    app = typer.Typer(
        name="tistream",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(about)
    for name in _asked(arguments):
        import_module(f"tistream.cli.{name}").add_to(app)
    return app


def _asked(arguments: Sequence[str]) -> Sequence[str]:
    """The modules of these arguments' command: options before it take no values."""
    command = next((each for each in arguments if not each.startswith("-")), None)
    if command is None and {"--version", "-V"} & set(arguments):
        return ()
    return [name for name, commands in COMMANDS.items() if command in commands] or list(COMMANDS)


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
        command_line(sys.argv[1:])()
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
