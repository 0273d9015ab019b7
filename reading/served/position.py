"""Where a pull starts and ends: what is served, cursors and the forms of a timestamp.

A cursor is an opaque, URL-safe, versioned resume point: "every change of this scope with commit_ts at or below T has
been delivered". It names no file, offset, task or region, so splits, merges, failovers, DDL and compaction leave it
valid. A cursor of version 2 lies inside the changes of one commit_ts that are too many for one page
(`reading.log.inside`): everything below that commit_ts is delivered, and everything of it before the position. The
checksum detects damage, not forgery; access is checked elsewhere.
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

from reading.core.inside import Inside, inside_of
from reading.rows.scope import Scope, check_names, check_renamed
from reading.served.key_limit import limited
from schemas.history import History
from tistream import ts as tso
from tistream.catalog.log.retention import beyond_quarantine, expired
from tistream.catalog.rows.tenants import TenantRow
from tistream.catalog.work.quarantines import QuarantineRow
from tistream.errors import CursorInvalid, InvalidInput, NotFound, TsOutOfRange
from tistream.ids import Tenant

_VERSION = b"1"
_VERSION_INSIDE = b"2"
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

    @property
    def known_history(self) -> History:
        """The schema history. NotFound before the first schema snapshot, AnotherKind of a keyspace."""
        self.row.check_tables()
        if self.history is None:
            raise NotFound(
                f"Tenant {self.row.tenant} has no schema yet: its first schema snapshot has not been pushed."
            )
        return self.history

    def schema_as_of(self, *, continued: bool) -> History:
        """The schema history for reads as of a timestamp: its public definitions, as TiDB reads them. If changes are to
        continue from the timestamp, that of their events."""
        return self.known_history if continued else self.known_history.public()

    def within(self, tables: tuple[str, ...] | None) -> Served:
        """What is served to a key that may read these tables only; None = all."""
        return self if tables is None or self.history is None else replace(self, history=limited(self.history, tables))

    def parse_ts(self, text: str, now_ms: int) -> int:
        """See `parse_ts`; `earliest` and `latest` are those of the tenant."""
        return parse_ts(text, earliest=self.row.earliest_ts, latest=self.resolved, now_ms=now_ms)

    def check_good(self, ts: int) -> None:
        """BeyondQuarantine when a quarantined store may still change what lies at or below this timestamp."""
        quarantine = self.quarantine
        if quarantine is not None and ts > quarantine.good_ts:
            names = {
                "store": quarantine.store_id,
                "incarnation": quarantine.incarnation,
                "object": quarantine.object_key,
            }
            raise beyond_quarantine(ts, quarantine.good_ts, tenant=str(quarantine.tenant), **names)

    def gap_in(self, after: int, upto: int) -> tuple[int, int] | None:
        """The part of (after, upto] in which rows of rejected stores may be missing."""
        if self.gap is None or self.gap[1] <= after or self.gap[0] >= upto:
            return None
        return max(after, self.gap[0]), min(upto, self.gap[1])

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
    inside: Inside | None = None  #: where reading continues inside the commit that follows `after`


class RequestedRange(Protocol):
    """The part of a request that says where to start and end. `cursor` wins over `start_ts`."""

    @property
    def scope(self) -> Scope: ...

    @property
    def start_ts(self) -> str | None: ...

    @property
    def cursor(self) -> str | None: ...

    @property
    def end_ts(self) -> str | None: ...


def encode_cursor(scope: Scope, commit_ts: int) -> str:
    """The cursor of `scope` after everything at or below `commit_ts`."""
    return _encoded(scope, commit_ts)


def encode_inside(scope: Scope, at: Inside) -> str:
    """The cursor of `scope` at a position inside a commit."""
    return _encoded(scope, at.commit_ts, at.text, version=_VERSION_INSIDE)


def _encoded(scope: Scope, *position: int | str, version: bytes = _VERSION) -> str:
    ids = scope.tenant.cluster_id, scope.tenant.tenant_id
    return seal(version, [*ids, scope.database, scope.table, *position])


def seal(version: bytes, values: list[Any]) -> str:
    """An opaque, URL-safe text of these values. `version`: one byte that says what they are."""
    body = orjson.dumps(values)
    return base64.urlsafe_b64encode(version + zlib.crc32(body).to_bytes(4, "big") + body).rstrip(b"=").decode()


def unseal(text: str, version: bytes) -> Any:
    """The values of a sealed text. CursorInvalid when it is damaged or of another version."""
    return _unsealed(text, (version,))[1]


def _unsealed(text: str, versions: Sequence[bytes]) -> tuple[bytes, Any]:
    """(version, values)."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as e:
        raise CursorInvalid("The cursor is not one of ours: it is not base64.", cursor=text[:80]) from e
    if raw[:1] not in versions:
        raise CursorInvalid("The cursor is not one of ours: its version is unknown.", cursor=text[:80])
    if len(raw) < 6 or raw[1:5] != zlib.crc32(raw[5:]).to_bytes(4, "big"):
        raise CursorInvalid("The cursor is damaged: its checksum does not match.", cursor=text[:80])
    try:
        return raw[:1], orjson.loads(raw[5:])
    except ValueError as e:
        raise CursorInvalid("The cursor is not one of ours: it does not hold a position.", cursor=text[:80]) from e


def numbers_of_cursor(values: Sequence[object]) -> None:
    """ValueError unless all are whole numbers of 63 bits: a sealed text may have been made by hand."""
    if not all(type(value) is int and 0 <= value <= _NUMBER_MAX for value in values):
        raise ValueError("a number is none of a cursor")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPosition:
    """A place inside a snapshot: every row up to `key` of this table, and of the tables before it, is delivered."""

    ts: int  #: of the snapshot
    table_id: int
    key: bytes


def encode_snapshot_position(scope: Scope, place: SnapshotPosition) -> str:
    """The cursor of a place inside a snapshot of `scope`."""
    return _encoded(scope, place.ts, place.table_id, place.key.hex())


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A decoded cursor. At most one of `place` and `inside` is set."""

    ts: int  #: everything at or below it is delivered; of a snapshot its timestamp
    place: SnapshotPosition | None = None  #: inside a snapshot
    inside: Inside | None = None  #: inside the commit that follows `ts`


def read_place(text: str, scope: Scope) -> SnapshotPosition | None:
    """The place of a cursor inside a snapshot; None for a cursor among changes. CursorInvalid as `decode_cursor`."""
    return _decoded(text, scope).place


def decode_cursor(text: str, scope: Scope) -> int:
    """The commit_ts of a cursor. CursorInvalid when it is damaged or belongs to another scope."""
    return read_cursor(text, scope).ts


def read_cursor(text: str, scope: Scope) -> Cursor:
    """A cursor among changes. Errors as of `decode_cursor`."""
    cursor = _decoded(text, scope)
    if cursor.place is not None:
        raise CursorInvalid("The cursor lies inside a snapshot: only a pull of pages (/changes) continues from it.")
    return cursor


def _decoded(text: str, scope: Scope) -> Cursor:
    version, values = _unsealed(text, (_VERSION, _VERSION_INSIDE))
    try:
        cluster, tenant, database, table, at, *more = values
        numbers_of_cursor((cluster, tenant, at))
        cursor_scope = Scope(tenant=Tenant(cluster, tenant), database=database, table=table)
        if version == _VERSION_INSIDE:
            cursor = Cursor(ts=at - 1, inside=inside_of(at, *more))
        elif more:
            table_id, key = more
            numbers_of_cursor((table_id,))
            place = SnapshotPosition(ts=at, table_id=table_id, key=bytes.fromhex(key))
            cursor = Cursor(ts=at, place=place)
        else:
            cursor = Cursor(ts=at)
    except (ValueError, TypeError, AttributeError) as e:
        raise CursorInvalid("The cursor is not one of ours: it does not hold a position.", cursor=text[:80]) from e
    if cursor_scope != replace(scope, within=None):  # a cursor opens nothing, so it is good for any key
        raise CursorInvalid("The cursor belongs to another scope.", cursor_scope=str(cursor_scope), scope=str(scope))
    if not 0 <= cursor.ts < 1 << 63:
        raise CursorInvalid("The cursor is not one of ours: its position has more than 63 bits.", cursor=text[:80])
    return cursor


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


def locate(request: RequestedRange, served: Served, now_ms: int, *, plans: bool = False) -> Interval:
    """The requested part of what is served. `plans`: for a reader that looks for an end to read up to.

    Names are checked where a read starts, not where it resumes: a reader of a dropped table continues to get empty
    bodies, one of a renamed table is refused with the new name, unless it ends at what is served already.
    Errors: CursorInvalid, InvalidInput, TsExpired, TsOutOfRange, BeyondQuarantine, NotFound, TableRenamed.
    """
    if request.cursor is None and request.start_ts is None:
        raise _no_start(request.scope, served)
    inside: Inside | None = None
    if request.cursor is not None:
        cursor = read_cursor(request.cursor, request.scope)
        inside = cursor.inside
        after = cursor.ts or served.row.start_ts  # one at 0 was given out before the tenant's schema snapshot arrived
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
        elif plans or end is None or end > served.resolved:
            check_renamed(served.history, request.scope, min(after, served.resolved), served.resolved)
    upto = served.resolved if end is None else min(end, served.resolved)
    return Interval(after=after, upto=upto, end_ts=end, inside=inside)


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
            f"{start_ts} ({tso.to_text(start_ts) if start_ts < 1 << 62 else 'far'}) is in the future.",
            latest_ts=str(resolved_ts),
        )
