"""Where a pull starts and ends: what is served, cursors and the forms of a timestamp.

A cursor is an opaque, URL-safe, versioned resume point: "every change of this scope with commit_ts at or below T has
been delivered". It names no file, offset, task or region, so splits, merges, failovers, DDL and compaction leave it
valid, and it never cuts a transaction in two. Its checksum detects damage, not forgery; access is checked elsewhere.

It also carries the number of the newest amendment of the log that its reader has seen
(`tistream.catalog.log.amendments`). Above the `from_ts` of a newer one it is refused: its reader lacks the accepted
rows.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import orjson

from reading.key_limit import limited
from reading.scope import Scope, check_names, check_renamed
from schemas.history import History
from tistream import ts as tso
from tistream.catalog.log.amendments import Amendment
from tistream.catalog.log.retention import beyond_quarantine, expired
from tistream.catalog.tenancy.tenants import TenantRow
from tistream.catalog.work.quarantines import QuarantineRow
from tistream.errors import CursorInvalid, InvalidInput, LogAmended, NotFound, TsOutOfRange
from tistream.ids import Tenant

_VERSION = b"1"
_SPAN = re.compile(r"-(\d{1,18})(ms|s|m|h|d)", re.ASCII)
_SPAN_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER_MAX = (1 << 63) - 1
FORMS = "a TSO, an RFC 3339 time, 'earliest', 'latest', or a span such as '-15m'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What is served of a tenant."""

    row: TenantRow
    history: History | None  #: None while the tenant awaits its first schema snapshot, and of a keyspace
    resolved: int  #: the served watermark
    covers: int  #: valid for watermarks of tasks up to this
    quarantine: QuarantineRow | None = None  #: of a store of the tenant: nothing above its `good_ts` is served
    gap: tuple[int, int] | None = None  #: (after, upto): rows of rejected stores may be missing here
    amendments: Sequence[Amendment] = ()  #: of the log, by number

    @property
    def amended(self) -> int:
        """The number of the newest amendment; 0 without any."""
        return self.amendments[-1].number if self.amendments else 0

    @property
    def known_history(self) -> History:
        """The schema history. NotFound before the first schema snapshot, AnotherKind of a keyspace."""
        self.row.check_tables()
        if self.history is None:
            raise NotFound(
                f"Tenant {self.row.tenant} has no schema yet: its first schema snapshot has not been pushed."
            )
        return self.history

    def within(self, tables: tuple[str, ...] | None) -> Served:
        """What is served to a key that may read these tables only; None = all."""
        return self if tables is None or self.history is None else replace(self, history=limited(self.history, tables))

    def parse_ts(self, text: str, now_ms: int) -> int:
        """See `parse_ts`; `earliest` and `latest` are those of the tenant."""
        return parse_ts(text, earliest=self.row.earliest_ts, latest=self.resolved, now_ms=now_ms)

    def check_good(self, ts: int) -> None:
        """BeyondQuarantine when a quarantined store may still change what lies at or below this timestamp."""
        found = self.quarantine
        if found is not None and ts > found.good_ts:
            names = {"store": found.store_id, "incarnation": found.incarnation, "object": found.object_key}
            raise beyond_quarantine(ts, found.good_ts, tenant=str(found.tenant), **names)

    def gap_in(self, after: int, upto: int) -> tuple[int, int] | None:
        """The part of (after, upto] in which rows of rejected stores may be missing."""
        if self.gap is None or self.gap[1] <= after or self.gap[0] >= upto:
            return None
        return max(after, self.gap[0]), min(upto, self.gap[1])

    def amended_in(self, after: int, upto: int) -> tuple[int, int] | None:
        """The part of (after, upto] in which rows were added to the log after it had been served."""
        found = [a for a in self.amendments if a.from_ts < upto and a.to_ts > after]
        if not found:
            return None
        return max(after, min(a.from_ts for a in found)), min(upto, max(a.to_ts for a in found))

    def check_seen(self, ts: int, seen: int) -> None:
        """LogAmended when amendments after number `seen` have rows at or below this timestamp."""
        missed = [a for a in self.amendments if a.number > seen and a.from_ts < ts]
        if missed:
            from_ts = min(a.from_ts for a in missed)
            rows = sum(a.rows for a in missed)
            raise LogAmended(
                f"An operator has accepted {rows} rows of a store above {from_ts} since this cursor was given out, and "
                f"it is at {ts}: its reader lacks them. Read again with start_ts={from_ts}.",
                from_ts=str(from_ts),
                from_time=tso.to_text(from_ts),
                amendment=missed[-1].number,
                rows=rows,
                stores=sorted({a.store_id for a in missed}),
            )

    def check_start(self, start_ts: int, now_ms: int) -> None:
        """See `check_start`. BeyondQuarantine above what is known to be good."""
        self.check_good(start_ts)
        check_start(start_ts, earliest=self.row.earliest_ts, resolved_ts=self.resolved, now_ms=now_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The part (after, upto] of what is served that a request covers."""

    after: int
    upto: int
    end_ts: int | None  #: the request's `end_ts` as a TSO; may lie above the served watermark


class Position(Protocol):
    """The part of a request that says where to start and end. `cursor` wins over `start_ts`."""

    @property
    def scope(self) -> Scope: ...

    @property
    def start_ts(self) -> str | None: ...

    @property
    def cursor(self) -> str | None: ...

    @property
    def end_ts(self) -> str | None: ...


def encode_cursor(scope: Scope, commit_ts: int, seen: int = 0) -> str:
    """The cursor of `scope` after everything at or below `commit_ts`, with the amendments up to number `seen`."""
    return _encoded(scope, commit_ts, seen)


def _encoded(scope: Scope, *position: int | str) -> str:
    ids = scope.tenant.cluster_id, scope.tenant.tenant_id
    return seal(_VERSION, [*ids, scope.database, scope.table, *position])


def seal(version: bytes, values: list[Any]) -> str:
    """An opaque, URL-safe text of these values. `version`: one byte that says what they are."""
    body = orjson.dumps(values)
    return base64.urlsafe_b64encode(version + zlib.crc32(body).to_bytes(4, "big") + body).rstrip(b"=").decode()


def unseal(text: str, version: bytes) -> Any:
    """The values of a sealed text. CursorInvalid when it is damaged or of another version."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as e:
        raise CursorInvalid("The cursor is not one of ours: it is not base64.", cursor=text[:80]) from e
    if raw[:1] != version:
        raise CursorInvalid("The cursor is not one of ours: its version is unknown.", cursor=text[:80])
    if len(raw) < 6 or raw[1:5] != zlib.crc32(raw[5:]).to_bytes(4, "big"):
        raise CursorInvalid("The cursor is damaged: its checksum does not match.", cursor=text[:80])
    try:
        return orjson.loads(raw[5:])
    except ValueError as e:
        raise CursorInvalid("The cursor is not one of ours: it does not hold a position.", cursor=text[:80]) from e


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place inside a snapshot: every row up to `key` of this table, and of the tables before it, is delivered."""

    ts: int  #: of the snapshot
    seen: int  #: number of the newest amendment when the snapshot began
    table_id: int
    key: bytes


def encode_place(scope: Scope, place: Place) -> str:
    """The cursor of a place inside a snapshot of `scope`."""
    return _encoded(scope, place.ts, place.seen, place.table_id, place.key.hex())


def read_place(text: str, scope: Scope) -> Place | None:
    """The place of a cursor inside a snapshot; None for a cursor between changes. CursorInvalid as `decode_cursor`."""
    ts, seen, more = _decoded(text, scope)
    if not more:
        return None
    try:
        table_id, key = more
        return Place(ts=ts, seen=seen, table_id=int(table_id), key=bytes.fromhex(key))
    except (ValueError, TypeError) as e:
        raise CursorInvalid("The cursor is not one of ours: it does not hold a place.", cursor=text[:80]) from e


def decode_cursor(text: str, scope: Scope) -> int:
    """The commit_ts of a cursor. CursorInvalid when it is damaged or belongs to another scope."""
    return read_cursor(text, scope)[0]


def read_cursor(text: str, scope: Scope) -> tuple[int, int]:
    """(commit_ts, number of the newest amendment seen) of a cursor between changes. Errors as of `decode_cursor`."""
    at, seen, place = _decoded(text, scope)
    if place:
        raise CursorInvalid("The cursor lies inside a snapshot: only a pull of pages (/changes) continues from it.")
    return at, seen


def _decoded(text: str, scope: Scope) -> tuple[int, int, list[Any]]:
    """(commit_ts, newest amendment seen, place inside a snapshot if any)."""
    values = unseal(text, _VERSION)
    try:
        cluster, tenant, database, table, commit_ts, seen, *place = values
        cursor_scope = Scope(tenant=Tenant(int(cluster), int(tenant)), database=database, table=table)
        at, seen = int(commit_ts), int(seen)
    except (ValueError, TypeError) as e:
        raise CursorInvalid("The cursor is not one of ours: it does not hold a position.", cursor=text[:80]) from e
    if cursor_scope != replace(scope, within=None):  # a cursor opens nothing, so it is good for any key
        raise CursorInvalid("The cursor belongs to another scope.", cursor_scope=str(cursor_scope), scope=str(scope))
    if not 0 <= at < 1 << 63:
        raise CursorInvalid("The cursor is not one of ours: its position has more than 63 bits.", cursor=text[:80])
    return at, seen, place


def parse_ts(text: str, *, earliest: int, latest: int, now_ms: int) -> int:
    """The TSO that `text` names: a TSO, an RFC 3339 time, `earliest`, `latest`, or a span back from now (`-15m`).

    `now_ms` is Unix milliseconds. A time outside of what a TSO of 63 bits holds (1970 to 3084) becomes the nearest such
    TSO. InvalidInput for any other text.
    """
    word = text.strip()
    if word == "earliest":
        return earliest
    if word == "latest":
        return latest
    if word.isascii() and word.isdecimal():
        value = int(word) if len(word) <= len(str(_NUMBER_MAX)) else _NUMBER_MAX + 1
        if value > _NUMBER_MAX:
            raise InvalidInput(f"{word[:80]} is not a timestamp: it has more than 63 bits.")
        return value
    if m := _SPAN.fullmatch(word):
        return tso.compose(max(0, now_ms - int(m[1]) * _SPAN_MS[m[2]]))
    try:
        when = datetime.fromisoformat(word)
    except ValueError as e:
        raise InvalidInput(f"'{word[:80]}' is not a timestamp: give {FORMS}.") from e
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return min(max(0, tso.compose((when - _EPOCH) // timedelta(milliseconds=1))), _NUMBER_MAX)


def locate(request: Position, served: Served, now_ms: int) -> Interval:
    """The requested part of what is served.

    Names are checked where a read starts, not where it resumes: a reader of a dropped table continues to get empty
    bodies, one of a renamed table is refused with the new name. Errors: CursorInvalid, InvalidInput, TsExpired,
    TsOutOfRange, BeyondQuarantine, LogAmended, NotFound, TableRenamed.
    """
    if request.cursor is None and request.start_ts is None:
        raise _no_start(request.scope, served)
    if request.cursor is not None:
        # a cursor at 0 was given out before the tenant's schema snapshot arrived
        at, seen = read_cursor(request.cursor, request.scope)
        served.check_seen(at, seen)
        after = at or served.row.start_ts
    else:
        after = served.parse_ts(str(request.start_ts), now_ms)
    end = None if request.end_ts is None else served.parse_ts(request.end_ts, now_ms)
    if end is not None and end < after and request.cursor is None:
        raise InvalidInput(f"The pull ends ({end}) before it starts ({after}).", start_ts=after, end_ts=end)
    if served.row.has_log:
        served.check_start(after, now_ms)
    if served.history is not None:
        if request.cursor is None:
            check_names(served.history, request.scope, min(after, served.resolved), served.resolved)
        else:
            check_renamed(served.history, request.scope, min(after, served.resolved), served.resolved)
    upto = served.resolved if end is None else min(end, served.resolved)
    return Interval(after=after, upto=upto, end_ts=end)


def _no_start(scope: Scope, served: Served) -> InvalidInput:
    """The error of a read without a position. NotFound when what it names does not exist either."""
    if served.history is not None:
        check_names(served.history, scope, min(served.row.earliest_ts, served.resolved), served.resolved)
    return InvalidInput(
        "A read needs a start: give start_ts (start_ts=earliest for the whole log, start_ts=latest for new changes "
        "only) or cursor."
    )


def check_start(start_ts: int, *, earliest: int, resolved_ts: int, now_ms: int) -> None:
    """Refuse a start below what the log holds, or in the future. Both errors name the timestamp to use instead."""
    if start_ts < earliest:
        raise expired(start_ts, earliest)
    newest = max(resolved_ts, tso.compose(now_ms + 1))
    if start_ts > newest:
        raise TsOutOfRange(
            f"{start_ts} ({tso.to_text(start_ts) if start_ts < 1 << 62 else 'far'}) lies in the future.",
            latest_ts=str(resolved_ts),
        )
