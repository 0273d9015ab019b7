"""`tistream upgrade`: what an upgrade to this release would change, and its migrations."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tistream.cli.options import Catalog, Config, catalog_of
from tistream.cli.output import OutputForm, OutputOption, show_facts
from tistream.errors import InvalidInput

if TYPE_CHECKING:
    from tistream.catalog.database.engine import Catalog as Database
    from tistream.catalog.work.upgrade import Upgrade

_LOOK_S = 2.0


def upgrade(
    check: Annotated[bool, typer.Option("--check", help="Change nothing: check what an upgrade would do.")] = False,
    run: Annotated[bool, typer.Option("--run", help="Run the migrations now.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until no older process lives and every feature is on.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="With --wait: seconds to wait at most; 0 = for ever.", min=0)] = 0,
    catalog: Catalog = None,
    config: Config = None,
    output: OutputOption = OutputForm.TABLE,
) -> None:
    """Check an upgrade to this release, or run its migrations.

    docs/compatibility.md has the order of an upgrade. It works on the catalog that --catalog or the settings name,
    beside running processes. Exit status 0: it can be run, or is done; 4: processes of an earlier release must be
    replaced first, or a migration has failed and can be repeated; 5: a later release does not allow this one."""
    if check == run or (wait and not run):
        raise InvalidInput("Give --check or --run; --wait belongs to --run.")
    from tistream.catalog.rows.audit import Deed
    from tistream.catalog.work.upgrade import look
    from tistream.cli.recorded import record_done

    with catalog_of(catalog, config, must_exist=check) as database:
        state = look(database)
        if run:
            state.refuse_to_fence()
            database.migrate(note=lambda each: _say(f"migration {each.revision}: {each.title}"))
            if (revision := database.revision()) != state.revision:  # the audit log may be one of the new tables
                record_done(database, Deed(operation="tistream upgrade", target=f"revision={revision}"))
            state = _waited(database, timeout) if wait else look(database)
        show_facts(_facts(state), output)
        state.refuse_to_fence()


def _waited(database: Database, timeout_s: float) -> Upgrade:
    """Wait until the upgrade is done. OlderProcesses after `timeout_s` seconds; 0 = no limit."""
    from tistream.catalog.work.upgrade import look, some_of
    from tistream.release import OlderProcesses

    began, said = time.monotonic(), ""
    while not (state := look(database)).is_done:
        names = some_of(state.older) or "the leading meta server, which switches on " + ", ".join(state.off)
        if names != said:
            said = names
            _say(f"waits for {names}")
        if timeout_s and time.monotonic() - began > timeout_s:
            raise OlderProcesses(f"After {timeout_s:g} s the upgrade still waits for {names}.", release=state.release)
        time.sleep(_LOOK_S)
    return state


def _facts(state: Upgrade) -> dict[str, Any]:
    running = Counter(str(release) for release in state.processes.values())
    return {
        "release": str(state.release),
        "revision": state.revision,
        "migrated_by": None if state.revision is None else str(state.migrated_by),
        "min_release": None if state.revision is None else str(state.min_release),
        "min_release_after": str(state.lowest_after),
        "migrations": [f"{each.revision} {each.title}" for each in state.migrations],
        "processes": dict(sorted(running.items())),
        "older_processes": state.older,
        "features_on": sorted(state.switched_on),
        "features_off": state.off,
        "done": state.is_done,
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
