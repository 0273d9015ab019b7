"""Keys of a raw or txn tenant as of a timestamp, page by page, each page from its cursor alone.

    as_of or cursor -> served watermark W -> newest base at or below t -> log up to W -> `core.state` -> lines

Whether the state of a key at t is known depends on rows above t, so the log is read from the base to W. Of that, only
segments whose keys touch the range are fetched: each segment's row in the catalog has its smallest and largest key. The
catalog does not say which segments have rows of opening scans. A page costs all of the range's log since the base, so
large pages are cheaper, and a small range or a base close below t most of all.

A page is refused if any key up to the end of the range is not known, unless the reader allows it. A scanned row
above W is not in the log yet and cannot be regarded: where W has passed the checkpoint of a new subscription but not
yet the newest row of its scan, a key may be called known that is not. A sorter that takes W past such a part in one
step makes the answer depend on t alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from reading.asof.read import served_moment
from reading.asof.source import TableSource, while_bases_go
from reading.kv.core.gaps import COLUMNS, Moments, known_moments
from reading.kv.core.state import RangeState
from reading.kv.selection import Selection
from reading.kv.texts import plain_texts
from reading.pages.key_rows import rendered
from reading.pages.snapshot import check_place
from reading.rows.scope import Scope
from reading.served.position import Served, SnapshotPosition, encode_snapshot_position, read_place
from reading.served.services import Services
from schemas.bases import of_range
from tistream import ts as tso
from tistream.catalog.log.bases import list_bases
from tistream.catalog.rows.bases import KEY_RANGE
from tistream.catalog.rows.kinds import stored_range
from tistream.codec.key_format import KeyFormat
from tistream.codec.raw.keys import user_keys
from tistream.errors import AheadOfWatermark, CursorInvalid, StateNotKnown
from tistream.ids import Tenant
from tistream.keyrange import KeyRange

_PAGE_BYTES = 32 << 20  # of keys and values
_TIME_END = 1 << 62  # larger timestamps have no time that can be written
_NAMED_MAX = 10  # keys in a problem
_LOOKED_AT_MAX = 2_000_000  # rows of the log, for timestamps at which all keys are known


@dataclass(frozen=True, slots=True, kw_only=True)
class EntriesRequest:
    """A parsed read. `cursor` wins over `as_of`."""

    tenant: Tenant
    as_of: str
    selection: Selection
    format: str  #: a name in `rows.FORMATS`
    limit: int  #: keys of a page
    cursor: str | None = None
    allow_state: bool = False  #: answer also where the state of some keys is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class EntriesAnswer:
    """A page and its timestamps."""

    content: pa.Buffer
    as_of: int
    resolved_ts: int
    next_cursor: str | None  #: None after the last page
    unknown: int  #: keys of the page whose state is not known


def read_entries(services: Services, request: EntriesRequest) -> EntriesAnswer:
    """One page. AheadOfWatermark when the timestamp is not served yet, StateNotKnown; see the module."""
    scope = Scope(tenant=request.tenant)
    served = served_keys(services, request.tenant)
    place = None if request.cursor is None else _place(request.cursor, scope, served)
    as_of = place.ts if place is not None else _moment(services, served, request.as_of)
    keys = _remaining(range_of(served, request.selection), place)

    def read() -> RangeState:
        state = RangeState(as_of, limit=request.limit, size=_PAGE_BYTES)
        for rows in [] if keys is None else _versions(services, served, as_of, keys):
            state.add(rows)
        if keys is not None and not request.allow_state:
            _check_known(services, served, state, as_of, keys, request.selection.form)
        return state

    state = while_bases_go(read)
    entries = state.entries()
    following = None
    if state.last_key is not None:
        following = encode_snapshot_position(scope, SnapshotPosition(ts=as_of, table_id=KEY_RANGE, key=state.last_key))
    return EntriesAnswer(
        content=rendered(entries, request.format, request.selection.form, as_of),
        as_of=as_of,
        resolved_ts=served.resolved,
        next_cursor=following,
        unknown=entries.num_rows - (pc.sum(entries["known"]).as_py() or 0),
    )


def served_keys(services: Services, tenant: Tenant) -> Served:
    """What is served of a raw or txn tenant. AheadOfWatermark while nothing is."""
    served = services.served(tenant)
    served.row.check_keys()
    if not served.row.has_log:
        raise AheadOfWatermark(
            f"The id of the keyspace of tenant {tenant} is not known yet: its pusher brings it.", resolved_ts="0"
        )
    return served


def range_of(served: Served, selection: Selection) -> KeyRange | None:
    """The keys asked for, as the log has them; None when the tenant has none of them."""
    row = served.row
    return stored_range(row.kind, row.keyspace.id or 0, selection.range).intersect(row.range)


def _moment(services: Services, served: Served, text: str) -> int:
    as_of = served_moment(served, text, served.row.earliest_ts, services.clock.unix_ms())
    served.check_good(as_of)
    return as_of


def _place(cursor: str, scope: Scope, served: Served) -> SnapshotPosition:
    place = read_place(cursor, scope)
    if place is None:
        raise CursorInvalid("The cursor is one of changes: rows begin with as_of.")
    check_place(served, place)
    return place


def _remaining(keys: KeyRange | None, place: SnapshotPosition | None) -> KeyRange | None:
    """The keys after the place."""
    return keys if keys is None or place is None else keys.intersect(KeyRange(place.key + b"\0"))


def _versions(services: Services, served: Served, as_of: int, keys: KeyRange) -> Iterator[pa.Table]:
    """All that the log says of these keys at `as_of`, from the newest base below it."""
    row = served.row
    base = of_range(
        list_bases(services.catalog, row.tenant, [KEY_RANGE]), as_of, start_ts=row.start_ts, floor_ts=row.floor_ts
    )
    source = TableSource(catalog=services.catalog, store=services.store, reader=services.reader)
    yield from source.versions(row.tenant, base, served.resolved, keys)


def _check_known(
    services: Services, served: Served, state: RangeState, as_of: int, keys: KeyRange, form: KeyFormat
) -> None:
    """StateNotKnown when the state of any of these keys is not known."""
    unknown = state.unknown_keys()
    if not len(unknown):
        return
    earliest = max(served.row.earliest_ts, served.row.start_ts + 1)
    named = unknown.slice(0, _NAMED_MAX).combine_chunks()
    held: list[pa.Table] = []
    count = 0
    for rows in _versions(services, served, earliest, keys):
        rows = rows.select(COLUMNS)
        count += rows.num_rows
        held.append(rows if count <= _LOOKED_AT_MAX else rows.filter(pc.is_in(rows["key"], named)))
    whole = pa.concat_tables(held)
    of_all = Moments(before=None, after=None)
    if count <= _LOOKED_AT_MAX:
        of_all = known_moments(whole, as_of, earliest=earliest)
    of_each = [known_moments(whole.filter(pc.equal(whole["key"], key)), as_of, earliest=earliest) for key in named]
    texts = plain_texts(user_keys(named), KeyFormat.HEX if form is KeyFormat.UTF8 else form).to_pylist()
    raise StateNotKnown(
        f"The state of {len(unknown)} of these keys as of {tso.described(as_of)} is not known. {_described(of_all)}",
        as_of=str(as_of),
        unknown=len(unknown),
        before_ts=_text(of_all.before),
        before_time=_time(of_all.before),
        after_ts=_text(of_all.after),
        after_time=_time(of_all.after),
        keys=texts,
        keys_before_ts=[_text(each.before) for each in of_each],
        keys_after_ts=[_text(each.after) for each in of_each],
    )


def _described(moments: Moments) -> str:
    known = [f"as of {tso.described(ts)}" for ts in (moments.before, moments.after) if ts is not None]
    return f"All of them are known {' and '.join(known)}." if known else "No moment is known at which all of them are."


def _text(ts: int | None) -> str | None:
    return None if ts is None else str(ts)


def _time(ts: int | None) -> str | None:
    return None if ts is None or ts >= _TIME_END else tso.to_text(ts)
