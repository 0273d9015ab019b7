"""Judges what readers get while one object of the durable log is missing, cut short, changed or replaced.

    wanted = [wants_of(services, reader) ...]   in a sound world
    with harmed(...):                           one object is harmed
        judge(...)                              the same bytes, or an error that names the object
    judge(...)                                  the same bytes again

A reader that needs a harmed row must get an error. A reader whose tables or timestamps do not touch a harmed segment
must get the same bytes. What a segment holds is read from the sound object, so the judge does not ask the code under
test which objects a reader needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import crc32c
import numpy as np
import numpy.typing as npt

from reading.asof.read import RowsRequest, read_rows
from reading.log.reader import LogReader
from reading.pages.pull import pull
from reading.pages.request import PullRequest
from reading.rows.scope import Scope
from reading.served.services import Services
from tistream.catalog.log.committed import find_segments
from tistream.codec.compacted_file import NO_FOOTER, Footer
from tistream.codec.seed_file import KIND as ROWS_KIND
from tistream.codec.segment_file import SegmentFile, decode_segment
from tistream.codec.table_key import table_ids
from tistream.errors import CorruptObject, TiStreamError
from tistream.ids import Tenant
from tistream.log.committed_log import SegmentSource
from tistream.ts import TS_MAX

Objects = dict[str, bytes]
_SEGMENTS_MAX = 1 << 20
_PAGE_ROWS = 100_000


@dataclass(frozen=True, kw_only=True)
class Part:
    """One segment of an object, and what it holds."""

    tenant: Tenant
    object_key: str
    offset: int
    length: int
    footer: Footer
    base_ts: int  #: of the base or seed that it belongs to; 0 for a segment of the log
    tables: npt.NDArray[np.int64]  #: the table of each row
    commit_ts: npt.NDArray[np.uint64]  #: of each row

    def is_hurt(self, good: bytes, bad: bytes | None) -> bool:
        """Whether a reader of it gets other bytes."""
        places = [(self.offset, self.length), (self.footer.offset, self.footer.length)]
        return bad is None or any(good[at : at + size] != bad[at : at + size] for at, size in places)

    def rows_of(self, wants: Wants) -> int:
        """How many of its rows the answer is made of."""
        if wants.reader.scope.tenant != self.tenant:
            return 0
        own = np.ones(len(self.tables), np.bool_) if wants.tables is None else np.isin(self.tables, [*wants.tables])
        if self.base_ts:
            return int(own.sum()) if self.base_ts == wants.base_ts else 0
        return int((own & (self.commit_ts > wants.after) & (self.commit_ts <= wants.upto)).sum())

    def touches(self, wants: Wants) -> bool:
        """Whether its interval of tables and that of timestamps meet those of the reader."""
        if wants.reader.scope.tenant != self.tenant:
            return False
        lo, hi = int(self.tables.min()), int(self.tables.max())
        if wants.tables is not None and not any(lo <= table <= hi for table in wants.tables):
            return False
        if self.base_ts:
            return self.base_ts == wants.base_ts
        return int(self.commit_ts.max()) > wants.after and int(self.commit_ts.min()) <= wants.upto


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A reader of the changes in (after, upto], or of a table as of `upto`."""

    scope: Scope
    after: int = 0
    upto: int
    as_of: bool = False

    def __str__(self) -> str:
        return f"{self.scope} as of {self.upto}" if self.as_of else f"{self.scope} ({self.after}, {self.upto}]"

    def read(self, services: Services) -> bytes:
        """Everything that it gets, to the end."""
        if self.as_of:
            return b"".join(read_rows(services, self.rows_request()).content)
        content: bytes = b""
        cursor: str | None = None
        while True:
            page = pull(services, self._page_request(cursor))
            content += page.content.to_pybytes() + page.next_cursor.encode()
            if not page.has_more:
                return content
            cursor = page.next_cursor

    def rows_request(self) -> RowsRequest:
        """A read of the table as of `upto`."""
        assert self.scope.database is not None
        assert self.scope.table is not None
        return RowsRequest(
            tenant=self.scope.tenant,
            database=self.scope.database,
            table=self.scope.table,
            as_of=str(self.upto),
            format="ndjson",
        )

    def _page_request(self, cursor: str | None) -> PullRequest:
        return PullRequest(
            scope=self.scope,
            start_ts=str(self.after) if cursor is None else None,
            cursor=cursor,
            end_ts=str(self.upto),
            format="raw-arrow" if self.scope.table is None else "arrow",
            options={},
            limit=_PAGE_ROWS,
        )


@dataclass(frozen=True, kw_only=True)
class Wants:
    """What a reader gets in a sound world, and what that is made of."""

    reader: Reader
    answer: bytes
    tables: frozenset[int] | None  #: physical ids; None for all of the tenant
    after: int  #: it reads the log above this
    upto: int
    base_ts: int  #: of the base or seed that it starts from; 0 for a reader of changes


def wants_of(services: Services, reader: Reader) -> Wants:
    """Ask in a sound world. A table must not be partitioned: its partitions may start from different bases."""
    scope, after, tables = reader.scope, reader.after, None
    history = services.served(scope.tenant).history
    assert history is not None
    if reader.as_of:
        assert scope.table is not None
        tables = frozenset(history.find(str(scope.database), scope.table, reader.upto).physical_ids)
        assert len(tables) == 1
        after = read_rows(services, reader.rows_request()).base_ts
    elif scope.database is not None:
        tables = frozenset(history.physical_ids(scope.database, scope.table, after, reader.upto))
    base_ts = after if reader.as_of else 0
    answer = reader.read(services)
    return Wants(reader=reader, answer=answer, tables=tables, after=after, upto=reader.upto, base_ts=base_ts)


def parts_of(services: Services, objects: Objects, tenant: Tenant) -> list[Part]:
    """Every segment of the tenant's log, bases and seeds, as the sound objects hold them."""
    source, parts = SegmentSource(services.store), []
    for row in find_segments(services.catalog, tenant, after_ts=0, upto_ts=TS_MAX, limit=_SEGMENTS_MAX):
        rows = source.rows(row)
        part = Part(
            tenant=tenant,
            object_key=row.object_key,
            offset=row.offset,
            length=row.length,
            footer=row.footer,
            base_ts=0,
            tables=rows["table_id"].to_numpy(),
            commit_ts=rows["commit_ts"].to_numpy(),
        )
        parts.append(part)
    folder = f"/cluster-{tenant.cluster_id}/tenant-{tenant.tenant_id}/"
    for key in [k for k in objects if folder in k and k.startswith(("bases/", "seeds/"))]:
        file = SegmentFile.open(key, objects[key])
        for info in file.segments_of(ROWS_KIND):
            rows = file.read(info.number)
            part = Part(
                tenant=tenant,
                object_key=key,
                offset=info.offset,
                length=info.length,
                footer=NO_FOOTER,
                base_ts=int(file.head["ts"]),
                tables=np.asarray(table_ids(rows["key"])),
                commit_ts=rows["commit_ts"].to_numpy(),
            )
            parts.append(part)
    return parts


def fresh(services: Services) -> Services:
    """The same, with a reader that holds nothing from before."""
    return replace(services, reader=LogReader(services.catalog, services.store, services.clock))


@contextmanager
def harmed(objects: Objects, key: str, bad: bytes | None) -> Iterator[None]:
    """The object is `bad` meanwhile; None for one that is missing."""
    good = objects[key]
    if bad is None:
        del objects[key]
    else:
        objects[key] = bad
    try:
        yield
    finally:
        objects[key] = good


def complaints(
    services: Services, all_wants: Sequence[Wants], parts: Sequence[Part], key: str, good: bytes, bad: bytes | None
) -> list[str]:
    """What is wrong with what the readers get while `key` is harmed; nothing when all is right."""
    hurt = [part for part in parts if part.object_key == key and part.is_hurt(good, bad)]
    lines = []
    for wants in all_wants:
        needs = any(part.rows_of(wants) for part in hurt)
        may_ask = any(part.touches(wants) for part in hurt)
        try:
            answer = wants.reader.read(services)
        except CorruptObject as e:
            if not may_ask:
                lines.append(f"{wants.reader} does not touch {key} and fails: {e}")
            elif e.facts.get("object") != key:
                lines.append(f"{wants.reader} gets an error that does not name {key}: {e}")
        except TiStreamError as e:  # the object is at fault, and no other code says so
            lines.append(f"{wants.reader} gets {e!r} for the harm to {key}")
        else:
            if answer != wants.answer:
                lines.append(f"{wants.reader} gets other bytes")
            elif needs:
                lines.append(f"{wants.reader} needs {key} and gets an answer from nowhere")
    return lines


def changed(services: Services, all_wants: Sequence[Wants]) -> list[str]:
    """The readers that do not get what they got in the sound world."""
    return [str(wants.reader) for wants in all_wants if wants.reader.read(services) != wants.answer]


def flipped(good: bytes, at: int) -> bytes:
    """One bit is another."""
    return good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :]


def quietly_flipped(good: bytes, part: Part) -> bytes:
    """One bit of the segment is another, and nothing but its checksum tells."""
    sound = good[part.offset : part.offset + part.length]
    rows = decode_segment("", 0, sound, crc=crc32c.crc32c(sound))
    for at in range(part.length // 2, part.length):
        bad = flipped(sound, at)
        try:
            if decode_segment("", 0, bad, crc=crc32c.crc32c(bad)) != rows:
                return good[: part.offset] + bad + good[part.offset + part.length :]
        except CorruptObject:
            continue
    raise AssertionError(f"every bit of {part.object_key} breaks its form")


#: by name: (the sound object, its segment that matters most, another segment's object, another tenant's object)
HARMS: Mapping[str, Callable[[bytes, Part, bytes, bytes], bytes | None]] = {
    "missing": lambda good, part, other, foreign: None,
    "truncated": lambda good, part, other, foreign: good[: part.offset + part.length // 2],
    "a bit flipped": lambda good, part, other, foreign: flipped(good, part.offset + part.length // 2),
    "another segment's object": lambda good, part, other, foreign: other,
    "another tenant's object": lambda good, part, other, foreign: foreign,
}
