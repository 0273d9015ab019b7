"""What a destination of a changefeed does: plans the writes of a stretch of the log, and writes them.

    read (after, upto] of the log -> plan -> record attempted_ts and the plan's record -> write -> checkpoint = upto

Writing may stop at any instruction. The next try, in the same process or in another, has the same stretch and the
record of the first, so a destination that must write the same bytes again can: what the stretch does not determine,
such as the numbers of files, is in the record.

A destination belongs to one lane and is used from one thread at a time.

Errors of `plan` and `write`: DestinationUnavailable when a later try may succeed, DestinationRefused for changes that
can never be written, LeaseOver when the lane's lease ended before everything was written, NamesTaken when the stretch
must be planned again, because something else has a name that it wanted. A refusal of one change has
its `key` in hex (of a keyspace the user's, of a table the stored one), `db` and `table` of a row, and `commit_ts`,
which is that of the key's newest change in the stretch unless given. Without `key` it is a refusal of everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from schemas.history import History
from schemas.model import DdlEvent
from tistream.errors import ErrorKind, TiStreamError
from tistream.ids import Tenant
from tistream.keyrange import KeyRange

Allowed = Callable[[], float]
"""Seconds, by the monotonic clock, in which a request may still be in progress; at or below 0 none may be sent. A
request has at most this as its deadline."""


class DestinationUnavailable(TiStreamError):
    """The destination of a changefeed cannot be written now. It is tried again, and nothing is lost."""

    kind = ErrorKind.RETRY
    code = "TS-1100"


class DestinationRefused(TiStreamError):
    """The destination of a changefeed cannot take a change; a later try would be refused as well."""

    kind = ErrorKind.INVALID
    code = "TS-1101"
    hint = (
        "tistream changefeed query shows the change and the cause. Mend the cause, then tistream changefeed resume; or "
        "leave the change out with tistream changefeed skip."
    )
    others: Sequence[DestinationRefused] = ()  #: refusals of other changes of the same try

    @property
    def each(self) -> Sequence[DestinationRefused]:
        """This refusal and the others, each of one change."""
        return (self, *self.others)


def together(refusals: Iterable[DestinationRefused]) -> DestinationRefused:
    """The first of these, with the others."""
    first, *others = refusals
    first.others = others
    return first


class DeadLetterUnavailable(TiStreamError):
    """The dead-letter place of a changefeed cannot be written now. It is tried again; no refused change is passed."""

    kind = ErrorKind.RETRY
    code = "TS-1105"


class LeaseOver(TiStreamError):
    """A lane of a changefeed has no time left to write before another worker may own it."""

    kind = ErrorKind.FENCED
    code = "TS-1102"


class NamesTaken(Exception):
    """What a former owner of a lane wrote has a name that a stretch wanted. It is planned again, with other names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """All changes of a lane in (after, upto]."""

    after: int
    upto: int
    rows: pa.Table  #: schema change.COMMITTED, those that pass the changefeed's filters, in commit order
    events: Sequence[DdlEvent] = ()  #: DDL statements of the lane, by commit_ts
    history: History | None = None  #: the schema at each timestamp of the stretch; None for a keyspace
    undecodable: Sequence[DestinationRefused] = ()  #: of rows that are in `rows` and must not be planned


class Plan(Protocol):
    """The writes of one stretch."""

    @property
    def record(self) -> str:
        """What a later try must know, at most RECORD_MAX characters; kept in the catalog before anything is
        written."""

    @property
    def rows(self) -> int:
        """How many changes are written."""

    @property
    def size(self) -> int:
        """Their bytes."""


RECORD_MAX = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The lane of a destination."""

    tenant: Tenant
    changefeed_id: str
    number: int  #: of the lane
    of: int  #: lanes of the changefeed


class DeadLetter(Protocol):
    """A refused change as a file."""

    @property
    def name(self) -> str:
        """The same at each try, and of no other change."""

    @property
    def data(self) -> bytes:
        """Its bytes."""


class DeadLetters(Protocol):
    """Where the refused changes of a changefeed are written. Use from one thread, then `close`."""

    def keep(self, letters: Sequence[DeadLetter], allowed: Allowed) -> None:
        """Write those that are not there yet; when this returns, all are durable there. DeadLetterUnavailable,
        LeaseOver."""

    def close(self) -> None:
        """Release connections."""


class Destination(Protocol):
    """Use from one thread, then `close`."""

    def check(self) -> Sequence[str]:
        """Whether it can be written, before the changefeed starts; what its user must know, a sentence each.
        InvalidInput names the option at fault, DestinationUnavailable says what does not answer."""

    def ranges(self, range_: KeyRange, count: int) -> Sequence[KeyRange]:
        """At most `count` sub-ranges with each key of `range_` once, aligned with how the destination cuts keys."""

    def plan(self, stretch: Stretch, record: str) -> Plan:
        """The writes of the stretch. `record`: from the plan of an earlier try of it; empty before the first. A plan
        that does not repeat that try has another record. May read from the destination."""

    def write(self, plan: Plan, allowed: Allowed) -> None:
        """Write all of it; when this returns, all of it is durable there."""

    def note_checkpoint(self, ts: int, allowed: Allowed) -> None:
        """All lanes of the changefeed have written everything at or below `ts`. It may fall behind an earlier one. Only
        the owner of its first lane says so."""

    def close(self) -> None:
        """Release connections."""
