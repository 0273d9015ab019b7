"""The generation of a catalog: which of the databases that a deployment has had is the one that counts.

A restore from an export (`tistream.exports`) fills an empty database and opens the next generation. Processes of the
one before may live, with the old database or with what they remember of it, and must do nothing more. They are met in
two places:

    the catalog    every write transaction reads the row of `catalog_release` first, under a shared lock, and is refused
                   when the generation is not that of the process, or the database another one: a database that was
                   lost may have been made again at the same address, and its tables by the next process that started
    the bucket     `tistream.objectstore.generations`: every process looks every few seconds for the next generation

The lock has a second use. Who raises `exports_begun` takes it alone, so each transaction is either committed by then,
and in that export's snapshot, or reads the new number (`tistream.catalog.database.decisions`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row, select

from tistream.catalog.database.release_tables import catalog_release
from tistream.errors import ConfigError, StateForbids
from tistream.objectstore.generations import CatalogReplaced, newest_generation, replaced
from tistream.objectstore.layout import exports_prefix
from tistream.objectstore.protocol import ObjectStore


class CatalogState(StrEnum):
    """What may be done with a catalog."""

    READY = "ready"
    RESTORING = "restoring"  #: a restore is filling it
    UNCONFIRMED = "unconfirmed"  #: restored; nothing is deleted until an operator confirms


class RestoreUnfinished(StateForbids):
    """A restore of this catalog has not ended."""

    code = "TS-1059"
    hint = "Wait for `tistream catalog restore`. If it died, run it again into an empty database."


_c = catalog_release.c
_ROW = select(_c.generation, _c.state, _c.identity).where(_c.id == 1)
_BEGUN = select(_c.exports_begun).where(_c.id == 1)
_SHARED = _ROW.with_for_update(read=True)


def generation_of(conn: Connection) -> tuple[int, CatalogState]:
    """The generation of the catalog, and its state."""
    generation, state, _ = conn.execute(_ROW).one()
    return int(generation), CatalogState(state)


def admit_writer(conn: Connection, mine: int, identity: int) -> None:
    """The first statement of a write transaction. CatalogReplaced when the process is of another generation, or has met
    another database at the address."""
    _admit(conn.execute(_SHARED).one_or_none(), mine, identity)


def admit_reader(conn: Connection, mine: int, identity: int) -> None:
    """The same for a snapshot, without a lock."""
    _admit(conn.execute(_ROW).one_or_none(), mine, identity)


def _admit(row: Row[Any, Any, Any] | None, mine: int, identity: int) -> None:
    if row is None:
        raise another_database()
    generation, _, there = row
    if generation != mine:
        raise replaced(mine, generation)
    if there != identity:
        raise another_database()


def another_database() -> CatalogReplaced:
    """The error of a process that has met another database, or an empty one, at the address."""
    return CatalogReplaced("Another database is at the address of the catalog than when this process began.")


def enter(conn: Connection) -> tuple[int, int]:
    """For a process that starts: the generation, and the database's identity. RestoreUnfinished while a restore fills
    the catalog."""
    generation, state, identity = conn.execute(_ROW).one()
    if CatalogState(state) is CatalogState.RESTORING:
        raise RestoreUnfinished(
            f"A restore is filling this catalog as generation {generation}, or has died while it did.",
            generation=generation,
        )
    return int(generation), int(identity)


class CatalogMissing(StateForbids):
    """The database is new, and the bucket has exports of a catalog."""

    code = "TS-1056"
    hint = "Check catalog.url. If the catalog is lost, restore it: docs/runbooks/catalog-lost.md."


def has_exported(conn: Connection) -> bool:
    """Whether an export of this catalog, or of those before it, has ever begun."""
    return int(conn.execute(_BEGUN).scalar_one()) > 0


def check_bucket(generation: int, store: ObjectStore, *, exported: bool) -> None:
    """For a process that starts on a catalog of this generation. CatalogReplaced when the bucket has a newer one: this
    is the database that a restore has replaced. CatalogMissing when it has exports, and this catalog never made one:
    it would delete what it does not know. ConfigError when the bucket does not know the catalog's generation."""
    newest = newest_generation(store)
    if newest > generation:
        raise replaced(generation, newest)
    if newest < generation:
        raise ConfigError(
            f"The catalog is of generation {generation}, and this bucket knows of {newest} only: it belongs to another "
            "catalog, or generations/ was not copied with it. Check object_store.url and catalog.url."
        )
    if not exported and (export := next(iter(store.list(exports_prefix())), None)) is not None:
        raise CatalogMissing(
            "This database is not the catalog of this bucket: it never exported anything, and the bucket has"
            f" {export.key}.",
            object=export.key,
        )
