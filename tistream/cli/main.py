"""The `tistream` command.

Data goes to standard output, messages to standard error. Exit status: 0 done, 1 a check failed, 2 bad usage or bad
input, 3 something does not exist, 4 not available now, 5 fenced by another process, 70 a defect, 130 interrupted by
Ctrl-C before the work was done (services and `pull --follow` end by Ctrl-C with 0).
"""

from __future__ import annotations

import atexit
import io
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated

import typer
from typer.core import TyperGroup

from tistream import __version__
from tistream.cli.leave import leave
from tistream.cli.service import share_in, with_shared_options
from tistream.cli.terminal import clean_lines, guard
from tistream.errors import ErrorKind, NotFound, TiStreamError

#: code -> the hint in the words of the command line, where those of the API speak of parameters and headers
HINTS = {
    "TS-1003": "Give --cursor as a pull printed it, for the same tables, or start again with --since.",
    "TS-1004": "Give a moment up to now, or --since latest; --follow waits for changes.",
    "TS-1005": "--since earliest starts at the beginning of the log; earlier rows must come from a dump of the source.",
    "TS-1007": "Retry when the watermark has passed it, give --timeout SECONDS, or read --as-of latest.",
    "TS-1009": "Pull the table by its new name, with --since at the timestamp of the rename.",
    "TS-1012": (
        "Read --as-of readable_upto_ts or earlier, --as-of readable_from_ts or later if it is given, or without the"
        " column (--columns). Or add a seed of the table, taken after the column change, with tistream seed."
    ),
    "TS-1014": "Check the current state: tistream workers list and tistream tasks list.",
    "TS-1015": "Look at it again, and repeat the command.",
    "TS-1022": "Start again with --snapshot and without --cursor, and replace what the first snapshot delivered.",
    "TS-1080": "Pass --key or set TISTREAM_KEY; tistream login keeps a key for an address.",
    "TS-1081": "Use a key of a role with this permission: tistream key create. tistream key list shows their roles.",
    "TS-1082": "Repeat the command.",
    "TS-1090": "Wait a little, and ask for less at once.",
}


_PATTERN = "A name is exact here. A pattern is an option: tistream pull --tables 'DATABASE.*'."
_NOT_FOUND = "tistream tenant list shows the tenants, and tistream schema show -c C -t T the tables of one."


def hint_of(error: TiStreamError) -> str:
    """The hint for who typed a command; empty without one."""
    if isinstance(error, NotFound) and {"*", "?"} & {*str(error.facts.get("database")), *str(error.facts.get("table"))}:
        return _PATTERN
    if isinstance(error, NotFound) and error.hint.startswith("GET /"):
        return _NOT_FOUND
    return HINTS.get(error.code, error.hint)


# The groups of `tistream --help`, and the commands of each with what defines it: MODULE:NAME, a function or a group of
# commands. A module is imported when its command is asked for, which halves the time that a command needs to start.
PANELS: Mapping[str, Mapping[str, str]] = {
    "Start here": {
        "up": "run:up",
        "demo": "demo:demo",
        "compile": "compiling:compile_all",
        "login": "key:login",
        "doctor": "doctor:doctor",
        "status": "status:status",
    },
    "Push": {"push": "push:push", "seed": "seed:seed"},
    "Read": {
        "pull": "pull:pull",
        "changefeed": "changefeed:commands",
        "consumer": "consumer:commands",
        "snapshot": "snapshot:snapshot",
        "restore": "snapshot:restore",
        "schema": "schema:commands",
        "raw": "raw:commands",
        "verify": "verify:verify",
    },
    "Tenants, keys and stores": {"tenant": "tenant:commands", "key": "key:commands", "store": "operate:stores"},
    "Operate": {
        "lag": "status:lag",
        "explain": "status:explain",
        "gaps": "operate:watermark_gaps",
        "stops": "operate:stops",
        "events": "operate:events",
        "audit-log": "audit_log:audit_log",
        "workers": "operate:workers",
        "tasks": "operate:tasks",
        "jobs": "operate:jobs",
        "compact": "jobs:compact",
        "replay": "jobs:replay",
        "cost": "cost:cost",
        "upgrade": "upgrade:upgrade",
        "catalog": "catalog:commands",
        "config": "settings:commands",
    },
    "Look inside": {"audit": "files:audit", "inspect": "files:commands", "tso": "time:show", "api": "operate:api"},
    "Services": {
        "serve": "run:serve",
        "meta": "run:meta",
        "dispatch": "run:dispatch",
        "sort": "run:sort",
        "maintain": "run:maintain",
        "replicate": "run:replicate",
        "spark": "run:spark",
    },
    "Development": {"sim": "sim:sim", "chaos": "sim:chaos"},
}
COMMANDS: Mapping[str, str] = {name: target for panel in PANELS.values() for name, target in panel.items()}
_PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}
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


class _InOrder(TyperGroup):
    """The top of the command line, which lists its commands in the order of the groups."""

    def list_commands(self, ctx: object) -> list[str]:
        """Typer alone lists groups of commands behind all others."""
        del ctx
        return [name for name in COMMANDS if name in self.commands]


def command_line(arguments: Sequence[str] = ()) -> typer.Typer:
    """The command line with the command that the arguments name; with all commands when they name none."""
    app = typer.Typer(
        name="tistream",
        cls=_InOrder,
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
            share_in(defined)
            app.add_typer(defined, name=name, rich_help_panel=_PANEL_OF[name])
        else:
            app.command(name, rich_help_panel=_PANEL_OF[name])(with_shared_options(defined))
    return app


def about(
    version: Annotated[bool, typer.Option("--version", "-V", help="Show the version and end.", is_eager=True)] = False,
) -> None:
    """The ordered change log of TiDB and TiKV clusters in object storage."""
    if version:
        typer.echo(f"TiStream {__version__}")
        raise typer.Exit


_LARGE_FRAMES = (["sort"], ["maintain"])  #: roles that use all processors for a frame


_REPOSITORY_ONLY = ("simulator.chaos", "simulator.dst")  #: infra/server leaves them out


def main() -> None:
    """Entry point of the console script: run a command, and end the process with its status."""
    status = EXIT[ErrorKind.INTERNAL]
    # Registered before all others, so that it runs when they have.
    atexit.register(lambda: leave(status))
    try:
        run_command()
        status = 0
    except SystemExit as e:
        status = int(e.code or 0)


def run_command() -> None:
    """Run the command of `sys.argv`. SystemExit with its status, where that is not 0."""
    # Before Polars is loaded. Most frames are small, and each part of a service has a thread. On busy processors the
    # threads of Polars, which look for more work after each frame, take as long again as all the rest.
    if sys.argv[1:2] not in _LARGE_FRAMES:
        os.environ.setdefault("POLARS_MAX_THREADS", "1")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names may have characters that the terminal's encoding has not
            stream.reconfigure(errors="backslashreplace")
    guard()
    try:
        command_line(sys.argv[1:])()
    except TiStreamError as e:
        print(clean_lines(f"tistream: {e} [{e.code}]"), file=sys.stderr)
        if hint := hint_of(e):
            print(clean_lines(f"  {hint}"), file=sys.stderr)
        sys.exit(EXIT[e.kind])
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except Exception as e:  # noqa: BLE001 - a defect: the trace belongs into its report
        if isinstance(e, ModuleNotFoundError) and e.name in _REPOSITORY_ONLY:
            print("tistream: this command tests TiStream itself: it is part of the repository only.", file=sys.stderr)
            sys.exit(EXIT[ErrorKind.INVALID])
        if package := _not_installed(e):
            print(f"tistream: this command needs the package {package}, which is not installed.", file=sys.stderr)
            print(f"  It comes with the extra '{_EXTRAS.get(package, 'server')}' of tistream.", file=sys.stderr)
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
