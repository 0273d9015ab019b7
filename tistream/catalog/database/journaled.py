"""Transactions that a restore must not lose: what they wrote goes into the journal, between commit and answer.

    with journaled(catalog, EntryKind.REVOCATION, actor) as deed:
        deed.conn.execute(...)            the transaction
        deed.note(api_keys, query, of)    rows, as they are at its end

A transaction holds the row of `catalog_release` shared, and who begins an export takes it alone
(`tistream.catalog.database.generation`). So an entry with the number N of exports that had begun is in the export N + 1
and in all later ones, and a restore from one of them needs it no longer.

`Catalog.journal` writes entries; a process without one has no bucket, and asks for an export instead. While exports are
off there is neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Select, Table, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import EventKind, record_event
from tistream.catalog.database.release_tables import catalog_release
from tistream.catalog.database.tables import counters
from tistream.catalog.rows.journal import EntryKind, JournalEntry

WANTED = "export wanted"  #: the counter with the number of the export that was asked for last

_c = catalog_release.c
_EXPORTS = select(_c.generation, _c.exports_begun, _c.exports_on, _c.exports_key, now_ms().label("at_ms")).where(
    _c.id == 1
)
_NEXT = select(_c.exports_begun + 1).where(_c.id == 1).scalar_subquery()
_WANT = counters.update().where(counters.c.name == WANTED).values(value=_NEXT)


class Journaled:
    """A transaction, and what is noted of it."""

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self._noted: list[tuple[Table, Select[Any], Mapping[str, Any]]] = []

    def note(self, table: Table, query: Select[Any], of: Mapping[str, Any]) -> None:
        """Rows of the table that belong to the deed: all columns, read when the transaction has done its work."""
        self._noted.append((table, query, of))

    def entry(self, kind: EntryKind, actor: str) -> JournalEntry | None:
        """What goes into the journal; None when nothing was noted, or exports are off."""
        at = self.conn.execute(_EXPORTS).one() if self._noted else None
        if at is None or not at.exports_on:
            return None
        return JournalEntry(
            generation=int(at.generation),
            exports_begun=int(at.exports_begun),
            exports_key=at.exports_key,
            kind=kind,
            actor=actor,
            at_ms=int(at.at_ms),
            rows={table.name: self._rows(table, query, of) for table, query, of in self._noted},
        )

    def _rows(self, table: Table, query: Select[Any], of: Mapping[str, Any]) -> list[dict[str, Any]]:
        names = [column.name for column in table.columns]
        return [dict(zip(names, row, strict=True)) for row in self.conn.execute(query, of)]


@contextmanager
def journaled(catalog: Catalog, kind: EntryKind, actor: str = "") -> Iterator[Journaled]:
    """One write transaction, as `Catalog.transaction`. When it is committed its entry is in the journal, or an export
    was asked for. CatalogReplaced, also after the commit, when this catalog no longer counts."""
    with catalog.transaction() as conn:
        deed = Journaled(conn)
        yield deed
        entry = deed.entry(kind, actor)
    if entry is None:
        return
    if catalog.journal is not None:
        catalog.journal(entry)
    else:
        want_export(catalog)


def want_export(catalog: Catalog, *, why: str = "", actor: str = "") -> None:
    """Ask for an export now: the leading meta server begins one within seconds. `why`: what went wrong, for an event.

    The number has a row of its own: who asks shares `catalog_release`, as every writer, and must not want it alone."""
    with catalog.transaction() as conn:
        conn.execute(_WANT)
        if why:
            record_event(conn, EventKind.CATALOG_UNJOURNALED, "journal", actor=actor, error=why)
