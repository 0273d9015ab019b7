"""Entries of the audit log: who did what, on what, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tistream.ids import Tenant

TARGET_CHARS_MAX = 500


class Result(StrEnum):
    """How an operation ended."""

    UNKNOWN = "unknown"  #: it runs, or its process ended before it did
    DONE = "done"
    REFUSED = "refused"  #: it changed nothing: the caller may not, or asked for what cannot be
    FAILED = "failed"  #: by an error of the service; what it changed before is not said


@dataclass(frozen=True, slots=True, kw_only=True)
class Doer:
    """Who does an operation, and from where."""

    key_id: str  #: of an API key; empty for others
    principal: str  #: name of the key, or the user of a command
    role: str
    address: str  #: of the client, or the host of a command


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """What is done, and on what."""

    operation: str
    tenant: Tenant | None = None
    target: str = ""
    request_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How it ended. `status` of the HTTP answer, 0 without one; `code` of the error, empty without one."""

    result: Result
    status: int = 0
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What is recorded after it has ended: `times` of the same kind, from the first to the last."""

    doer: Doer
    deed: Deed
    outcome: Outcome
    first_age_ms: int = 0  #: how long ago the first was
    last_age_ms: int = 0
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """An entry as the catalog has it. Times are Unix milliseconds by the database's clock."""

    entry_no: int  #: rises in commit order
    at_ms: int  #: when it began; of several, the first
    last_ms: int  #: when it ended; of several, the last
    times: int
    key_id: str
    principal: str
    role: str
    address: str
    operation: str
    tenant: Tenant | None
    target: str
    result: str  #: a Result, or one of a newer version
    status: int
    code: str
    request_id: str
