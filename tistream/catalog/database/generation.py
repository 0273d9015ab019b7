"""The generation of a catalog: which of the databases that a deployment has had is the one that counts.

A restore from an export (`tistream.exports`) fills an empty database and opens the next generation. Processes of the
one before may live, with the old database or with what they remember of it, and must do nothing more. They are met in
two places:

    the catalog    every write transaction reads the row of `catalog_release` first, under a shared lock, and is refused
                   when the generation is not that of the process
    the bucket     `tistream.objectstore.generations`: every process looks every few seconds for the next generation

The lock has a second use. Who raises `exports_begun` takes it alone, so each transaction is either committed by then,
and in that export's snapshot, or reads the new number (`tistream.catalog.database.decisions`).
"""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import Connection, select

from tistream.catalog.database.release_tables import catalog_release
from tistream.errors import ConfigError, StateForbids
from tistream.objectstore.generations import newest_generation, replaced
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
_ROW = select(_c.generation, _c.state).where(_c.id == 1)
_SHARED = _ROW.with_for_update(read=True)


def generation_of(conn: Connection) -> tuple[int, CatalogState]:
    """The generation of the catalog, and its state."""
    generation, state = conn.execute(_ROW).one()
    return int(generation), CatalogState(state)


def admit_writer(conn: Connection, mine: int) -> None:
    """The first statement of a write transaction. CatalogReplaced when the process is of another generation."""
    generation, _ = conn.execute(_SHARED).one()
    if generation != mine:
        raise replaced(mine, generation)


def refuse_unfinished(conn: Connection) -> int:
    """The generation, for a process that starts. RestoreUnfinished while a restore fills the catalog."""
    generation, state = generation_of(conn)
    if state is CatalogState.RESTORING:
        raise RestoreUnfinished(
            f"A restore is filling this catalog as generation {generation}, or has died while it did.",
            generation=generation,
        )
    return generation


def check_bucket(generation: int, store: ObjectStore) -> None:
    """For a process that starts on a catalog of this generation. CatalogReplaced when the bucket has a newer one: this
    is the database that a restore has replaced. ConfigError when the bucket does not know the catalog's."""
    newest = newest_generation(store)
    if newest > generation:
        raise replaced(generation, newest)
    if newest < generation:
        raise ConfigError(
            f"The catalog is of generation {generation}, and this bucket knows of {newest} only: it belongs to another "
            "catalog, or generations/ was not copied with it. Check object_store.url and catalog.url."
        )
