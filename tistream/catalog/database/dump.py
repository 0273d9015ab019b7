"""The whole catalog as rows at one moment, and rows put back into empty tables.

A snapshot is one transaction: REPEATABLE READ on MariaDB and MySQL, a reader in WAL mode on SQLite. It holds no lock
that a writer waits for. Rows come in the order of the primary key, as the driver has them: numbers, texts and bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Table, func, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.generation import admit_reader
from tistream.catalog.database.release_tables import catalog_release
from tistream.catalog.database.revisions import revision_of
from tistream.catalog.database.tables import metadata

#: what a restored catalog does not have: readers that waited, and sessions of the console
LEFT_OUT = frozenset({"read_leases", "logins"})
ROWS_AT_ONCE = 2_000
Rows = Sequence[Sequence[Any]]


class Snapshot:
    """The catalog at one moment."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self.revision = revision_of(conn)
        self.at_ms = int(conn.execute(select(now_ms())).scalar_one())

    def rows(self, table: Table) -> Iterator[Rows]:
        """The rows of a table by primary key, at most ROWS_AT_ONCE at a time."""
        query = select(*table.columns).order_by(*table.primary_key.columns)
        streamed = self._conn.execution_options(stream_results=True, max_row_buffer=ROWS_AT_ONCE).execute(query)
        yield from streamed.partitions(ROWS_AT_ONCE)


def exported_tables() -> list[Table]:
    """The tables of an export, by name."""
    return [table for name, table in sorted(metadata.tables.items()) if name not in LEFT_OUT]


@contextmanager
def snapshot(catalog: Catalog) -> Iterator[Snapshot]:
    """A consistent snapshot, until the block ends. CatalogReplaced when the process belongs to another generation or
    another database: what is read here would be taken for its catalog."""
    with catalog.snapshot_connection() as conn:
        state = Snapshot(conn)
        if catalog.generation is not None:
            admit_reader(conn, catalog.generation, catalog.identity)
        yield state


def is_used(catalog: Catalog) -> bool:
    """Whether a tenant, worker or key was ever registered here."""
    tables = (metadata.tables[name] for name in ("tenants", "workers", "api_keys"))
    with catalog.snapshot_connection() as conn:
        if revision_of(conn) is None:
            return False
        return any(conn.execute(select(func.count()).select_from(table)).scalar_one() for table in tables)


def remove_rows(catalog: Catalog) -> None:
    """Remove what migrations have inserted, and processes that met the empty database before its generation was set."""
    with catalog.transaction() as conn:
        for table in metadata.tables.values():
            if table is not catalog_release:
                conn.execute(table.delete())


def put_rows(conn: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Put rows as they were exported. That of `catalog_release` keeps what the restore has written: of the exported one
    it takes the numbers."""
    if table is catalog_release:
        kept = ("migrated_by", "min_release", "exports_begun", "exports_on", "exports_key")
        conn.execute(table.update().values({name: rows[0][name] for name in kept}))
        return
    conn.execute(table.insert(), [dict(row) for row in rows])
