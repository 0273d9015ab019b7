"""Entries of the journal: deeds that a restore of the catalog must not lose, with the rows that they wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class EntryKind(StrEnum):
    """What was done."""

    TENANT = "tenant"  #: it was registered, or its log began
    KEY = "key"  #: an API key was created, or given a successor
    REVOCATION = "revocation"  #: of an API key
    DELETION = "deletion"  #: of a tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """A committed deed. It is in every export of this generation with a number above `exports_begun`."""

    generation: int
    exports_begun: int
    kind: EntryKind
    actor: str  #: who did it, by name or by the id of a key; empty for the service itself
    at_ms: int  #: Unix milliseconds by the database's clock
    rows: Mapping[str, Sequence[Mapping[str, Any]]]  #: table -> its rows, as they were at the end of the transaction
    exports_key: str = ""  #: the name of the key that seals the exports; empty = they are not sealed
