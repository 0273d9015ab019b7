"""The interfaces of a format, and the base class of the encoders that write one kind of change at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from reading.core.changes import DELETE, INSERT, UPDATE, TableChanges
from reading.core.split import pick
from reading.formats.lines import Block
from reading.formats.options import FormatOptions
from reading.formats.pieces import Piece
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


@dataclass(frozen=True, slots=True)
class Encoder(ABC):
    """A format (see `protocol`) whose lines end with a line feed and which splits updates by default."""

    options: FormatOptions

    @property
    def terminator(self) -> bytes:
        return b"\n"

    @property
    def splits_updates(self) -> bool:
        return not self.options.output_raw_change_event

    def rows(self, changes: TableChanges) -> list[Block]:
        """One line per change, one block per kind of change."""
        blocks = []
        for kind in (INSERT, UPDATE, DELETE):
            at = np.flatnonzero(changes.kind == kind)
            if len(at):
                part = changes if len(at) == len(changes) else _of_kind(changes, at, kind)
                blocks.append(Block(at=at, pieces=self.pieces(part, kind)))
        return blocks

    @abstractmethod
    def pieces(self, changes: TableChanges, kind: int) -> Sequence[Piece]:
        """The pieces of the lines of these changes, all of one kind."""


def _of_kind(changes: TableChanges, at: npt.NDArray[np.int64], kind: int) -> TableChanges:
    """The changes at these indexes, all of one kind; an image that the kind does not have is not copied."""
    if kind == INSERT:
        return pick(replace(changes, before=changes.after), at)
    return pick(replace(changes, after=changes.before) if kind == DELETE else changes, at)
