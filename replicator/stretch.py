"""Reads the next stretch of the log for a lane: its rows, cut to the lane and to the changefeed's filters.

A stretch ends between two commit timestamps, after about ROWS rows of the log or BYTES of the lane's, unless its end is
given. Memory for its rows, and for what a destination makes of them, is admitted before they are fetched; a transaction
that would take all of the worker's is refused by name. So are rows that cannot be decoded, as a destination refuses
them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from destinations.protocol import DestinationRefused, Stretch
from destinations.tables import part_of
from reading.core import page_rows
from reading.filters import Filter, parse_filter, part_name, select_rows
from reading.kv.selection import Selection, kept_selection
from reading.log.memory import Held, TransactionTooLarge
from reading.log.reader import COPIES
from reading.rows.decode import Quarantined
from reading.rows.scope import Scope
from reading.served.position import Served
from reading.served.services import Services
from replicator.core.lane import Read
from schemas.model import DdlEvent
from schemas.names import folded
from tistream import ts as tso
from tistream.catalog.log.committed import find_segments
from tistream.catalog.work.core.lane_scope import KeyScope, LaneScope, TableScope, change_key
from tistream.catalog.work.lanes import LaneJob
from tistream.codec.raw.keys import user_keys
from tistream.model import change

ROWS = 50_000  #: of the log, in one page
BYTES = 16 << 20
_LOOKED_AT = 1000  # segments of a transaction that is too large


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneReader:
    """Reads one lane of a changefeed."""

    services: Services
    job: LaneJob
    rows: int = ROWS

    @property
    def dead_letter(self) -> str:
        """The URI of the changefeed's dead letters; empty without."""
        return str(orjson.loads(self.job.options).get("dead_letter", ""))

    @property
    def commit_bytes(self) -> int:
        """Of a commit_ts, which a lane takes whole: its copies are the memory of the worker."""
        return self.services.reader.memory.size // COPIES

    def read(self, wanted: Read, served: Served, held: Held) -> Stretch:
        """The stretch, which is up to `wanted.upto` if that is exact. DestinationRefused for a row that cannot be
        decoded, unless it can become a dead letter; TransactionTooLarge; TsExpired when the log lacks a part of it.

        `held`: of the memory for reads, until the stretch is written."""
        lane = self.job.lane
        after = wanted.after or served.row.start_ts  # 0 is the beginning of the log
        parts: list[pa.Table] = []
        bad: list[DestinationRefused] = []
        at, size = after, 0
        part = part_of(lane.scope) if isinstance(lane.scope, TableScope) else None
        chosen = replace(parse_filter(orjson.loads(self.job.filters)), part=part) if part is not None else None
        scope = Scope(tenant=lane.tenant)
        ids = None if chosen is None else chosen.table_ids(served.known_history, scope, after, wanted.upto)
        while at < wanted.upto:
            try:
                page = self.services.reader.page(
                    lane.tenant,
                    after=at,
                    upto=wanted.upto,
                    rows=self.rows,
                    table_ids=ids,
                    page_bytes=BYTES,
                    commit_bytes=self.commit_bytes,
                    held=held,
                )
            except TransactionTooLarge as e:
                if at > after and not wanted.exact:
                    break
                raise self._too_large(e, served, ids) from e
            parts.append(self._selected(page.rows, served, chosen, scope, bad))
            at, size = page.upto, size + parts[-1].nbytes
            held.take(COPIES * size)
            if not wanted.exact and (page.rows.num_rows >= self.rows or size >= BYTES):
                break
        if held.bytes > COPIES * size:
            held.drop(held.bytes - COPIES * size)  # what was needed for reading only
        history = served.history
        events = [] if chosen is None or history is None else history.events(max(after, history.start_ts), at)
        return Stretch(
            after=wanted.after,
            upto=at,
            rows=pa.concat_tables(parts) if parts else change.COMMITTED.empty_table(),
            events=[] if chosen is None else chosen.keeps_ddl(events),
            history=history,
            undecodable=bad,
        )

    def _too_large(
        self, error: TransactionTooLarge, served: Served, ids: Collection[int] | None
    ) -> TransactionTooLarge:
        """The error with the changefeed, the table with most of the changes, and the setting."""
        ts, lane, history = int(str(error.facts["commit_ts"])), self.job.lane, served.history
        sizes: Counter[str] = Counter()
        for segment in find_segments(
            self.services.catalog, lane.tenant, after_ts=ts - 1, upto_ts=ts, table_ids=ids, limit=_LOOKED_AT
        ):
            table = None if history is None else history.table_at(segment.table_lo, ts)
            if table is not None:
                sizes[f"{table.db}.{table.name}"] += segment.raw_length
        table_name = next((name for name, _ in sizes.most_common(1)), "")
        memory_mib = self.services.reader.memory.size >> 20
        return TransactionTooLarge(
            f"Changefeed {lane.changefeed_id} cannot take the changes at {tso.described(ts)}"
            + (f", most of them in {table_name}" if table_name else "")
            + f": they hold more than {self.commit_bytes} bytes, a quarter of replication.memory_mib ({memory_mib}).",
            tenant=str(lane.tenant),
            changefeed_id=lane.changefeed_id,
            commit_ts=str(ts),
            table=table_name,
            setting="replication.memory_mib",
        )

    def ddl_from(self, served: Served, checkpoint_ts: int, upto: int) -> Mapping[int, set[str]]:
        """The changefeed's DDL statements that concern more than one table: by their timestamps in
        [checkpoint_ts, upto], rising, the names of the tables. Their lanes must
        meet. One table's statements and rows are in one lane."""
        history = served.history
        if history is None or upto <= history.start_ts:
            return {}
        chosen = parse_filter(orjson.loads(self.job.filters))
        events = history.events(max(checkpoint_ts - 1, history.start_ts), upto)
        names: dict[int, set[str]] = {}
        for event in chosen.keeps_ddl(events):
            names.setdefault(event.commit_ts, set()).update(_names_of(event))
        return {ts: names[ts] for ts in sorted(names) if len(names[ts]) > 1}

    def _selected(
        self, rows: pa.Table, served: Served, chosen: Filter | None, scope: Scope, bad: list[DestinationRefused]
    ) -> pa.Table:
        """The rows of a page. With dead letters also those that cannot be decoded, with their refusals in `bad`."""
        lane = self.job.lane.scope
        if not rows.num_rows:
            return rows
        if chosen is None:
            return _of_keys(rows, lane, kept_selection(orjson.loads(self.job.options).get("keys", {})))
        rows = _without_skipped(rows, lane)
        mask = select_rows(chosen, served.known_history, rows, scope)
        if not mask.quarantined:
            return mask.rows
        refusals = [undecodable(each) for each in mask.quarantined]
        if not self.dead_letter:
            raise refusals[0]
        bad += refusals
        places = [(each.key.hex(), each.commit_ts) for each in mask.quarantined]
        return pa.concat_tables([mask.rows, rows.take(rows_at(rows, places, is_keyspace=False))])


def concerns(scope: LaneScope, names: set[str]) -> bool:
    """Whether a statement about these tables, or about a database, may concern a table of the lane."""
    if not isinstance(scope, TableScope):
        return False
    if any(name.endswith(".*") for name in names):
        return scope.only is None or any(scope.only.startswith(name[:-1]) for name in names if name.endswith(".*"))
    part = part_of(scope)
    return any(part.has(*name.split(".", 1)) for name in names)


def _names_of(event: DdlEvent) -> set[str]:
    """The tables that a statement concerns; more than one for a statement about a database."""
    if not event.table:
        return {event.db, f"{folded(event.db)}.*"}
    named = [(event.db, event.table), (event.old_db, event.old_table)]
    if event.exchanged is not None:
        named.append((event.exchanged.db, event.exchanged.name))
    return {part_name(db, table) for db, table in named if table}


def _of_keys(rows: pa.Table, scope: LaneScope, selection: Selection) -> pa.Table:
    """The rows of a lane of keys. The lane is within the selection's range."""
    assert isinstance(scope, KeyScope)
    rows = replace(selection, range=scope.range).of(rows)
    if not rows.num_rows:
        return rows
    for part in scope.without:
        rows = page_rows.only(rows, ~Selection(range=part).passed(rows))
    return _without_skipped(rows, scope)


def _without_skipped(rows: pa.Table, scope: LaneScope) -> pa.Table:
    if not scope.skipped or not rows.num_rows:
        return rows
    return without(rows, rows_at(rows, scope.skipped, is_keyspace=isinstance(scope, KeyScope)))


def undecodable(bad: Quarantined) -> DestinationRefused:
    """The refusal of a row that cannot be decoded."""
    return DestinationRefused(
        f"A row of {bad.database}.{bad.table} cannot be decoded: column {bad.column}: {bad.cause}",
        db=bad.database,
        table=bad.table,
        key=bad.key.hex(),
        commit_ts=str(bad.commit_ts),
        cause=bad.cause,
    )


Place = tuple[str, int]
"""(`change_key`, commit_ts) of a change: the user's key of an entry, the stored key of a row."""
Refused = tuple[DestinationRefused, pa.Table]
"""(why, the one row)"""


def rows_at(rows: pa.Table, places: Collection[Place], *, is_keyspace: bool) -> npt.NDArray[np.int64]:
    """The numbers of the rows of these changes, which rise."""
    stamps = rows["commit_ts"].to_numpy()
    at = np.flatnonzero(np.isin(stamps, np.array([ts for _, ts in places], np.uint64)))
    if not len(at):
        return at
    keys, wanted = _keys(rows, is_keyspace=is_keyspace), set(places)
    return np.array([n for n in at.tolist() if (change_key(keys[n].as_py()), int(stamps[n])) in wanted], np.int64)


def without(rows: pa.Table, at: npt.NDArray[np.int64]) -> pa.Table:
    """The rows but these."""
    kept = np.ones(rows.num_rows, np.bool_)
    kept[at] = False
    return page_rows.only(rows, kept)


def split_off(stretch: Stretch, refusals: Sequence[DestinationRefused]) -> tuple[Stretch, list[Refused]]:
    """(the stretch without the refused changes, each of them with its row). No change is found unless each refusal
    names one of the stretch."""
    is_keyspace = stretch.history is None
    places = _places(stretch, refusals)
    at = rows_at(stretch.rows, places, is_keyspace=is_keyspace)
    if len(at) < len(places):
        return stretch, []
    keys, stamps = _keys(stretch.rows, is_keyspace=is_keyspace), stretch.rows["commit_ts"]
    refused = ((places[change_key(keys[n].as_py()), stamps[n].as_py()], n) for n in at.tolist())
    refused_rows = [(why, stretch.rows.slice(n, 1)) for why, n in refused]
    return replace(stretch, rows=without(stretch.rows, at), undecodable=()), refused_rows


def newest_ts(rows: pa.Table, keys: Collection[bytes]) -> dict[str, int]:
    """By key in hex: the commit_ts of the newest change of these keys of a keyspace, which is the one that is
    written."""
    own = user_keys(rows["key"].combine_chunks())
    at = np.flatnonzero(pc.is_in(own, pa.array(sorted(keys), own.type)).to_numpy(zero_copy_only=False))
    return {own[n].as_py().hex(): rows["commit_ts"][n].as_py() for n in at.tolist()}  # rows are in commit order


def _places(stretch: Stretch, refusals: Sequence[DestinationRefused]) -> dict[Place, DestinationRefused]:
    """By place; two halves of an update are one change. A change that the stretch does not have is at 0."""
    unplaced = {bytes.fromhex(str(e.facts["key"])) for e in refusals if "commit_ts" not in e.facts and "key" in e.facts}
    newest = newest_ts(stretch.rows, unplaced) if unplaced else {}
    places: dict[Place, DestinationRefused] = {}
    for refusal in refusals:
        key = str(refusal.facts.get("key", ""))
        commit_ts = int(str(refusal.facts.get("commit_ts", newest.get(key, 0))))
        places.setdefault((change_key(bytes.fromhex(key)), commit_ts), refusal)
    return places


def _keys(rows: pa.Table, *, is_keyspace: bool) -> pa.Array:
    keys = rows["key"].combine_chunks()
    return user_keys(keys) if is_keyspace else keys
