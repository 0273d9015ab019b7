"""Admin actions on replications: pause, resume, remove, and decisions about a refused change.

Each says in words what it does or would do.
"""

from __future__ import annotations

from typing import Any

from tistream import ts as tso
from tistream.admin import actions
from tistream.admin.views import Sources
from tistream.catalog.tenancy.changefeeds import FeedState, get_changefeed, remove_changefeed, switch_changefeed
from tistream.catalog.work.replications import decide_refusal, resume_replication
from tistream.errors import InvalidInput, StateForbids
from tistream.ids import Tenant


def pause(sources: Sources, tenant: Tenant, name: str, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Write nothing more."""
    row = get_changefeed(sources.catalog, tenant, name)
    if row.state is not FeedState.NORMAL:
        raise StateForbids(f"Changefeed {name} is {row.state}.", state=row.state)
    if not dry_run:
        switch_changefeed(sources.catalog, tenant, name, FeedState.STOPPED)
    words = (
        f"Nothing more is written to {_place(row.sink_uri)} after the stretch that is being written. The checkpoint "
    )
    return actions.outcome("pause", f"changefeed {name}", dry_run, words + "and the log above it are kept.")


def resume(sources: Sources, tenant: Tenant, name: str, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Write again, and try everything that was refused again."""
    row = get_changefeed(sources.catalog, tenant, name)
    if row.state is FeedState.FINISHED:
        raise StateForbids(f"Changefeed {name} is finished.", state=row.state)
    if not dry_run:
        resume_replication(sources.catalog, tenant, name, actor=actor)
    words = f"Writing continues above {tso.described(row.checkpoint_ts)}, and refused changes are tried again."
    return actions.outcome("resume", f"changefeed {name}", dry_run, words)


def remove(sources: Sources, tenant: Tenant, name: str, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Forget the changefeed."""
    row = get_changefeed(sources.catalog, tenant, name)
    if not dry_run:
        remove_changefeed(sources.catalog, tenant, name)
    words = f"Changefeed {name} and its checkpoint {tso.described(row.checkpoint_ts)} are removed for good. What "
    words += f"{_place(row.sink_uri)} has stays there."
    log = " The log above its checkpoint is no longer kept for it." if row.holds_log else ""
    return actions.outcome("remove", f"changefeed {name}", dry_run, words + log)


def retry(sources: Sources, tenant: Tenant, name: str, number: int, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Try the refused change of a lane again."""
    error = decide_refusal(sources.catalog, tenant, name, number, leave_out=False, dry_run=dry_run)
    words = f"The change at {_change(error)} is tried again. If it is refused again, the lane stops again."
    return actions.outcome("retry", f"lane {number} of changefeed {name}", dry_run, words)


def skip(
    sources: Sources,
    tenant: Tenant,
    name: str,
    number: int,
    *,
    change: tuple[str, int] | None,
    dry_run: bool,
    actor: str,
) -> dict[str, Any]:
    """Leave the refused change of a lane out. `change`: the one that a dry run has shown, under `fields`; another one
    may stop the lane meanwhile."""
    if change is None and not dry_run:
        raise InvalidInput("Name the change to leave out: its key and its commit_ts.")
    error = decide_refusal(sources.catalog, tenant, name, number, leave_out=True, dry_run=dry_run, change=change)
    words = f"The change at {_change(error)} is never written. The destination differs from the source there until the "
    words += "row changes again."
    fields = {"key": error["key"], "commit_ts": error["commit_ts"]}
    return actions.outcome("skip", f"lane {number} of changefeed {name}", dry_run, words, fields=fields)


def _change(error: dict[str, Any]) -> str:
    if not {"key", "commit_ts"} <= error.keys():
        return "a place that the destination did not name"
    table = f" of {error['db']}.{error['table']}" if "table" in error else ""
    return f"{tso.described(int(error['commit_ts']))}{table}, key {error['key']},"


def _place(sink_uri: str) -> str:
    return sink_uri.partition("?")[0]
