"""The `tistream` command.

Data goes to standard output, messages to standard error. Exit status: 0 done, 1 a check failed, 2 bad usage or bad
input, 3 something does not exist, 4 not available now, 5 fenced by another process, 70 a defect, 130 interrupted by
Ctrl-C before the work was done (services and `pull --follow` end by Ctrl-C with 0).
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated

import typer

from tistream import __version__
from tistream.errors import ErrorKind, TiStreamError

# Each command and what defines it, in the order of `tistream --help`: MODULE:NAME, a function or a group of commands.
# A module is imported when its command is asked for, which halves the time that a command needs to start.
COMMANDS: Mapping[str, str] = {
    "up": "run:up",
    "meta": "run:meta",
    "dispatch": "run:dispatch",
    "sort": "run:sort",
    "maintain": "run:maintain",
    "serve": "run:serve",
    "spark": "run:spark",
    "demo": "demo:demo",
    "compile": "compiling:compile_all",
    "tenant": "tenant:commands",
    "login": "login:login",
    "key": "key:commands",
    "push": "push:push",
    "pull": "pull:pull",
    "snapshot": "snapshot:snapshot",
    "restore": "snapshot:restore",
    "seed": "seed:seed",
    "status": "status:status",
    "lag": "lag:lag",
    "explain": "explain:commands",
    "cost": "cost:cost",
    "workers": "operate:workers",
    "tasks": "operate:tasks",
    "stops": "operate:stops",
    "store": "store:commands",
    "jobs": "job:commands",
    "api": "operate:api",
    "gaps": "operate:watermark_gaps",
    "events": "operate:events",
    "schema": "schema:commands",
    "config": "settings:commands",
    "doctor": "doctor:doctor",
    "inspect": "files:commands",
    "compact": "jobs:compact",
    "replay": "jobs:replay",
    "tso": "time:show",
    "sim": "sim:sim",
    "chaos": "chaos:chaos",
    "changefeed": "changefeed:commands",
    "audit": "audit:audit",
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
# The extra that brings a package; all others come with `server`.
_EXTRAS = {"pyspark": "spark", "pandas": "spark", "moto": "testing", "hypothesis": "testing"}


def command_line(arguments: Sequence[str] = ()) -> typer.Typer:
    """The command line with the command that the arguments name; with all commands when they name none."""
    app = typer.Typer(
        name="tistream",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(about)
    command = next((each for each in arguments if not each.startswith("-")), "")  # options before it take no values
    if not command and {"--version", "-V"} & set(arguments):
        return app
    for name in [command] if command in COMMANDS else COMMANDS:
        module, _, attribute = COMMANDS[name].partition(":")
        defined = getattr(import_module(f"tistream.cli.{module}"), attribute)
        if isinstance(defined, typer.Typer):
            app.add_typer(defined, name=name)
        else:
            app.command(name)(defined)
    return app


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
    except Exception as e:  # noqa: BLE001 - a defect: the trace belongs into its report
        if package := _not_installed(e):
            print(f"tistream: this command needs the package {package}, which is not installed.", file=sys.stderr)
            print(f"  pip install 'tistream[{_EXTRAS.get(package, 'server')}]'", file=sys.stderr)
            sys.exit(EXIT[ErrorKind.INVALID])
        traceback.print_exc()
        sys.exit(EXIT[ErrorKind.INTERNAL])


def _not_installed(error: Exception) -> str | None:
    """The package of another distribution whose absence is the error; None where the error is another."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    package = error.name.partition(".")[0]
    return package if find_spec(package) is None else None


if __name__ == "__main__":
    main()
