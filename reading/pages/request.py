"""What a pull asks for, and what it is answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from reading.asof.core.projection import LeftOut
from reading.core.inside import Inside
from reading.filters import NO_FILTER, Filter
from reading.kv.selection import Selection
from reading.rows.scope import Scope
from reading.served.position import (
    SnapshotPosition,
    read_place,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """A parsed pull. `cursor` wins over `start_ts`."""

    scope: Scope
    start_ts: str | None
    cursor: str | None
    format: str
    options: Mapping[str, str]
    limit: int  #: rows, roughly: a page ends between two commit timestamps
    end_ts: str | None = None  #: serve nothing above it
    buffers: str | None = None  #: compression of Arrow buffers: zstd or lz4
    follows: bool = False  #: for a stream: small pages without a watermark line, which the stream writes
    filter: Filter = NO_FILTER
    snapshot: bool = False  #: begin with the rows as of `as_of`, or of the watermark
    as_of: str | None = None
    keys: Selection | None = None  #: of a raw or txn tenant: its keys and values, not tables
    schema_ts: str | None = None  #: `arrow` of one table: its columns as of here, for all pages

    @property
    def place(self) -> SnapshotPosition | None:
        """Where the cursor lies inside a snapshot."""
        return None if self.cursor is None else read_place(self.cursor, self.scope)

    @property
    def weight(self) -> int:
        """Of its regular expressions."""
        return self.filter.weight + (0 if self.keys is None else self.keys.weight)

    @property
    def is_snapshot(self) -> bool:
        """Whether the page holds rows of a snapshot."""
        if self.follows or self.keys is not None:
            return False  # only changes: `locate` refuses a cursor inside a snapshot
        return self.snapshot if self.cursor is None else self.place is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class PullAnswer:
    """The body of a pull and its position."""

    content: pa.Buffer
    next_cursor: str
    resolved_ts: int  #: the served watermark, also above `end_ts`
    has_more: bool
    quarantined: int
    waits: bool  #: the position is at or above the watermark: a later pull may have more
    after: int  #: the start position
    end: int  #: the end position: everything of the scope up to here has been delivered
    end_ts: int | None = None  #: the request's `end_ts` as a TSO
    gap: tuple[int, int] | None = None  #: (after, upto) of the page: rows of rejected stores may be missing here
    snapshot_ts: int | None = None  #: the page holds rows as of this timestamp
    in_snapshot: bool = False  #: more rows of the snapshot follow
    left_out: Sequence[tuple[str, LeftOut]] = ()  #: columns without values, of tables of a snapshot
    inside: Inside | None = None  #: the position of the cursor inside the commit that follows `end`

    @property
    def open_ts(self) -> int | None:
        """The commit_ts whose changes are delivered in part."""
        return None if self.inside is None else self.inside.commit_ts
