"""What a format is to the rest of the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from reading.core.changes import TableChanges
from reading.formats.lines import Block
from schemas.model import DdlEvent


class Format(Protocol):
    """Turns changes, DDL and watermarks into lines."""

    @property
    def name(self) -> str:
        """The word a reader asks with."""

    @property
    def media_type(self) -> str:
        """Content-Type of a body of such lines."""

    @property
    def terminator(self) -> bytes:
        """What ends a line."""

    @property
    def splits_updates(self) -> bool:
        """Whether an update of a unique key goes out as a delete and an insert."""

    @property
    def bare_deletes(self) -> bool:
        """Whether the delete of a key that did not exist is a line, with what its key says."""

    def rows(self, changes: TableChanges) -> Sequence[Block]:
        """The lines of the changes, yet to be written and without the terminator; `Block.at` counts the changes."""

    def ddl(self, event: DdlEvent) -> list[bytes]:
        """The lines of a DDL: none where the protocol has none."""

    def watermark(self, ts: int) -> bytes | None:
        """The line that says that everything up to `ts` has been sent, or None where the protocol has none."""
