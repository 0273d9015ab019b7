"""The interfaces of a format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from reading.core.changes import TableChanges
from reading.formats.lines import Block
from schemas.model import DdlEvent


class Lines(Protocol):
    """What bodies and streams of lines know of a format."""

    @property
    def name(self) -> str:
        """The name in requests."""

    @property
    def media_type(self) -> str:
        """Content-Type of a body of such lines."""

    @property
    def terminator(self) -> bytes:
        """The end of a line."""

    def watermark(self, ts: int) -> bytes | None:
        """The watermark line: everything up to `ts` has been sent. None where the protocol has none."""


class Format(Lines, Protocol):
    """Turns changes, DDL and watermarks into lines."""

    @property
    def splits_updates(self) -> bool:
        """Whether an update of a unique key becomes a delete and an insert."""

    def rows(self, changes: TableChanges) -> Sequence[Block]:
        """The unwritten lines of the changes, without the terminator; `Block.at` indexes the changes."""

    def ddl(self, event: DdlEvent) -> list[bytes]:
        """The lines of a DDL: none where the protocol has none."""
