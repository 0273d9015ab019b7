"""Records in the audit log what a command does that opens the catalog by itself: the user and host are who and where.

Commands that ask a service are recorded by the service.
"""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import structlog

from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.audit import Deed, Doer, Ended, Outcome, Result
from tistream.catalog.tenancy.audit_log import add_entries, close_entry, open_entry
from tistream.errors import ErrorKind, TiStreamError

log = structlog.get_logger(__name__)

_REFUSED = (ErrorKind.INVALID, ErrorKind.NOT_FOUND, ErrorKind.FENCED)


@dataclass(slots=True)
class RunningCommand:
    """A command that has an entry."""

    deed: Deed

    def note_target(self, target: str) -> None:
        """What it works on, when that is only known meanwhile. Never a secret."""
        self.deed = replace(self.deed, target=target)


@contextmanager
def recorded(catalog: Catalog, deed: Deed | None) -> Iterator[RunningCommand]:
    """Within the block a command does this deed, whose entry exists before; None has none. CatalogUnavailable: it may
    not begin."""
    if deed is None:
        yield RunningCommand(Deed(operation=""))
        return
    command, entry_no = RunningCommand(deed), open_entry(catalog, _doer(), deed)
    outcome = Outcome(result=Result.FAILED)
    try:
        yield command
        outcome = Outcome(result=Result.DONE)
    except TiStreamError as e:
        outcome = Outcome(result=Result.REFUSED if e.kind in _REFUSED else Result.FAILED, code=e.code)
        raise
    finally:
        try:
            close_entry(catalog, entry_no, command.deed, outcome)
        except TiStreamError as e:
            log.warning("the audit log does not say how the command ended", entry=entry_no, error=str(e))


def record_done(catalog: Catalog, deed: Deed) -> None:
    """Record what a process has done by itself: what cannot be recorded before, or does no harm when it is lost."""
    add_entries(catalog, [Ended(doer=_doer(), deed=deed, outcome=Outcome(result=Result.DONE))])


def _doer() -> Doer:
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container runs as a user without a name
        user = f"uid {os.getuid()}"
    return Doer(key_id="", principal=user, role="command", address=socket.gethostname())
