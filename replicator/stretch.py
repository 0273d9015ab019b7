"""Reads the next stretch of the log for a lane: its rows, cut to the lane and to the changefeed's filters.

A stretch ends between two commit timestamps, after about ROWS rows of the log or BYTES of the lane's, unless its end is
given. Rows that cannot be decoded are refused by name, as a destination refuses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import orjson
import pyarrow as pa

from destinations.protocol import DestinationRefused, Stretch
from destinations.tables import part_of
from reading.core import page_rows
from reading.decode import Quarantined
from reading.deps import Services
from reading.filters import Filter, parse_filter, part_name, select_rows
from reading.kv.selection import Selection, kept_selection
from reading.position import Served
from reading.scope import Scope
from replicator.core.lane import Read
from replicator.refused import rows_at, without
from schemas.model import DdlEvent
from tistream.catalog.work.core.lane_scope import KeyScope, LaneScope, TableScope
from tistream.catalog.work.lanes import LaneJob
from tistream.model import change

ROWS = 50_000  #: of the log, in one page
BYTES = 16 << 20


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

    def read(self, wanted: Read, served: Served) -> Stretch:
        """The stretch, which is up to `wanted.upto` if that is exact. DestinationRefused for a row that cannot be
        decoded, unless it can become a dead letter; TsExpired when the log no longer has all of it."""
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
            page = self.services.reader.page(
                lane.tenant, after=at, upto=wanted.upto, rows=self.rows, table_ids=ids, page_bytes=BYTES
            )
            parts.append(self._selected(page.rows, served, chosen, scope, bad))
            at, size = page.upto, size + parts[-1].nbytes
            if not wanted.exact and (page.rows.num_rows >= self.rows or size >= BYTES):
                break
        history = served.history
        events = [] if chosen is None or history is None else history.events(max(after, history.start_ts), at)
        return Stretch(
            after=wanted.after,
            upto=at,
            rows=pa.concat_tables(parts) if parts else change.COMMITTED.empty_table(),
            events=[event for event in events if chosen is not None and chosen.keeps_ddl(event)],
            history=history,
            undecodable=bad,
        )

    def ddl_from(self, served: Served, checkpoint_ts: int, upto: int) -> Sequence[int]:
        """The timestamps in [checkpoint_ts, upto], rising, of the changefeed's DDL statements that concern more than
        one table: their lanes must meet. One table's statements and rows are in one lane."""
        history = served.history
        if history is None or upto <= history.start_ts:
            return ()
        chosen = parse_filter(orjson.loads(self.job.filters))
        events = history.events(max(checkpoint_ts - 1, history.start_ts), upto)
        names: dict[int, set[str]] = {}
        for event in events:
            if chosen.keeps_ddl(event):
                names.setdefault(event.commit_ts, set()).update(_names_of(event))
        return sorted(ts for ts, found in names.items() if len(found) > 1)

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
        found = select_rows(chosen, served.known_history, rows, scope)
        if not found.quarantined:
            return found.rows
        refusals = [undecodable(each) for each in found.quarantined]
        if not self.dead_letter:
            raise refusals[0]
        bad += refusals
        places = [(each.key.hex(), each.commit_ts) for each in found.quarantined]
        return pa.concat_tables([found.rows, rows.take(rows_at(rows, places, is_keyspace=False))])


def _names_of(event: DdlEvent) -> set[str]:
    """The tables that a statement concerns; more than one for a statement about a database."""
    if not event.table:
        return {event.db, "*"}
    named = [(event.db, event.table), (event.old_db, event.old_table)]
    if event.exchanged is not None:
        named.append((event.exchanged.db, event.exchanged.name))
    return {part_name(db, table) for db, table in named if table}


def _of_keys(rows: pa.Table, scope: LaneScope, selection: Selection) -> pa.Table:
    """The rows of a lane of keys. The lane lies within the selection's range."""
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
