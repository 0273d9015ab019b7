"""Restores the catalog from its newest export, as the next generation.

    generation object (create if absent) -> newest export -> tables of its revision -> release row, then all other rows
    -> migrations since -> PAUSE_S since the first step -> journal since the export -> numbers raised -> seeds adopted
    -> still the newest generation -> unconfirmed

Until PAUSE_S have passed, processes of before may register a tenant, revoke a key, or make a folder in the bucket. The
generation is opened before the exports are listed (`tistream.exports.exporter` says why), and its number is the first
thing written to the database. A restore that dies leaves a catalog that no service starts on; it is repeated into an
empty database, and opens a further generation.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tistream.catalog.database.dump import exported_tables, is_used, put_rows, remove_rows
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import EventKind, record_event
from tistream.catalog.database.generation import CatalogState
from tistream.catalog.database.revisions import MIGRATIONS
from tistream.catalog.tenancy.tenants import every_tenant
from tistream.catalog.work.exports import set_generation
from tistream.catalog.work.renumber import adopt_stores, adopt_writers, raise_numbers
from tistream.clock import Clock
from tistream.errors import CorruptObject, InvalidInput, NotFound, ObjectNotFound, StateForbids
from tistream.exports.adoption import LISTED_AT_ONCE, adopt_seeds
from tistream.exports.pieces import Manifest, Sealing, TablePieces, decode_rows
from tistream.exports.readers import Continued, continued, record_repeats
from tistream.exports.replay import replay
from tistream.ids import Tenant
from tistream.objectstore.folders import folders
from tistream.objectstore.generations import PAUSE_S, GenerationWatch, newest_generation, open_generation
from tistream.objectstore.layout import (
    ExportKey,
    ExportPieceKey,
    buffer_prefix,
    committed_prefix,
    exports_prefix,
    parse,
    store_prefix,
)
from tistream.objectstore.protocol import ObjectStore
from tistream.ts import compose

_WRITER = re.compile(r"(?P<name>.+)-(?P<incarnation>\d{6,})")
_STORE = re.compile(r"store-(?P<id>\d+)")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a restore made."""

    generation: int
    export: ExportKey
    snapshot_ms: int
    rows: int
    seeds: int  #: that were registered since the export, and adopted
    readers: tuple[Continued, ...]  #: changefeeds and consumers, with what they repeat
    seconds: float


def exports_of(store: ObjectStore) -> list[ExportKey]:
    """The exports in the bucket, those that a restore prefers last."""
    keys = (parse(info.key) for info in store.list(exports_prefix()))
    return [key for key in keys if isinstance(key, ExportKey)]


def restore(
    catalog: Catalog,
    store: ObjectStore,
    clock: Clock,
    *,
    sealing: Sealing,
    by: str,
    export: str = "",
    older: bool = False,
    say: Say = lambda _: None,
) -> Restored:
    """Fill the empty database of `catalog` from the newest export, or from `export`, which must be the newest unless
    `older` allows to lose what later ones have.

    StateForbids for a database that is not empty, NotFound without an export, CorruptObject for one that is not whole,
    CatalogReplaced when another restore was faster."""
    began_s = clock.monotonic()
    if is_used(catalog):
        raise StateForbids("The database of this catalog is in use: restore into an empty one.")
    _chosen(exports_of(store), export, older)  # refused before anything is opened
    generation = newest_generation(store) + 1
    open_generation(store, generation, by=by, release=str(catalog.release), opened_ms=clock.unix_ms())
    watch = GenerationWatch(store, generation, clock)
    say(f"generation {generation} is opened: processes of the one before end within seconds")
    key = _chosen(exports_of(store), export, older)
    manifest = Manifest.decode(sealing.unseal(store.get(str(key)), str(key)), str(key))
    say(f"export {key}: {manifest.rows:,} rows, made by TiStream {manifest.release}")
    _load(catalog, store, sealing, manifest, generation, say)
    left_s = began_s + PAUSE_S - clock.monotonic()
    if left_s > 0:
        say(f"waiting {left_s:.0f} s, until no process of an earlier generation writes anywhere")
        clock.wait(threading.Event(), left_s)
    say(replay(catalog, store, sealing, manifest))
    _raise(catalog, store, clock, generation - manifest.generation)
    say("numbers are raised above those that were used")
    seeds = adopt_seeds(catalog, store, clock, say=say)
    watch.look()
    readers = tuple(continued(catalog))
    record_repeats(catalog, readers, upto_ts=compose(clock.unix_ms()))
    with catalog.transaction() as conn:
        record_event(
            conn, EventKind.CATALOG_RESTORED, f"generation {generation}", actor=by, export=str(key), seeds=seeds
        )
    set_generation(catalog, generation, CatalogState.UNCONFIRMED)
    seconds = clock.monotonic() - began_s
    return Restored(
        generation=generation,
        export=key,
        snapshot_ms=manifest.snapshot_ms,
        rows=manifest.rows,
        seeds=seeds,
        readers=readers,
        seconds=seconds,
    )


def _load(
    catalog: Catalog, store: ObjectStore, sealing: Sealing, manifest: Manifest, generation: int, say: Say
) -> None:
    """All rows of the export, in the tables of this release."""
    catalog.migrate(to=_known(manifest))
    set_generation(catalog, generation, CatalogState.RESTORING)
    remove_rows(catalog)
    # tenants come last: a process of before at this address serves no tenant from tables that are not complete
    for table in sorted(manifest.tables, key=lambda table: table.name == "tenants"):
        for rows in _pieces(store, sealing, manifest, table):
            _fill(catalog, table.name, rows)
        say(f"{table.name}: {table.rows:,} rows")
    catalog.migrate(to=MIGRATIONS.newest)


def _chosen(keys: Sequence[ExportKey], wanted: str, older: bool) -> ExportKey:
    if not keys:
        raise NotFound("The bucket has no export of a catalog (exports/manifests/).")
    if not wanted:
        return keys[-1]
    named = [key for key in keys if str(key) == wanted]
    if not named:
        raise NotFound(f"The bucket has no export '{wanted}'; the newest is {keys[-1]}.", export=wanted)
    if named[0] != keys[-1] and not older:
        raise InvalidInput(
            f"{wanted} is not the newest export, which is {keys[-1]}. What was deleted since may be missing: readers of"
            " the log would be told so. --older allows it.",
            export=wanted,
        )
    return named[0]


def _known(manifest: Manifest) -> str:
    if manifest.revision not in MIGRATIONS.revisions:
        raise StateForbids(
            f"The export was made by TiStream {manifest.release}, with tables of revision {manifest.revision}: restore "
            "it with that release or a later one.",
            release=manifest.release,
        )
    return manifest.revision


def _pieces(
    store: ObjectStore, sealing: Sealing, manifest: Manifest, table: TablePieces
) -> Iterator[list[dict[str, Any]]]:
    """The rows of a table, piece by piece."""
    of = {"generation": manifest.generation, "leader_epoch": manifest.leader_epoch}
    for piece in table.pieces:
        key = str(ExportPieceKey(digest=piece.digest, **of))
        try:
            data = sealing.unseal(store.get(key), key)
        except ObjectNotFound as e:
            raise CorruptObject("a piece of the export is missing", key=key) from e
        rows = decode_rows(data, key)
        if sealing.digest(data) != piece.digest or len(rows) != piece.rows:
            raise CorruptObject("a piece of the export is not what its manifest says", key=key)
        yield rows


def _fill(catalog: Catalog, name: str, rows: list[dict[str, Any]]) -> None:
    table = next((table for table in exported_tables() if table.name == name), None)
    if table is None:
        raise CorruptObject(f"the export has a table '{name}' that this release does not know")
    with catalog.transaction() as conn:
        put_rows(conn, table, rows)


def _raise(catalog: Catalog, store: ObjectStore, clock: Clock, generations: int) -> None:
    """Raise all numbers above those that were used since the export."""
    tenants = [row.tenant for row in every_tenant(catalog)]
    with ThreadPoolExecutor(LISTED_AT_ONCE, "restore") as pool:
        writers = [pair for pairs in pool.map(lambda tenant: list(_writers(store, tenant)), tenants) for pair in pairs]
        pushed = list(pool.map(lambda tenant: (tenant, dict(_stores(store, tenant))), tenants))
    incarnations: dict[str, int] = {}
    for name, incarnation in writers:
        incarnations[name] = max(incarnation, incarnations.get(name, 0))
    with catalog.transaction() as conn:
        raise_numbers(conn, now_ts=compose(clock.unix_ms()), generations=generations)
        adopt_writers(conn, incarnations)
        for tenant, highest in pushed:
            adopt_stores(conn, tenant, highest, generations)


def _writers(store: ObjectStore, tenant: Tenant) -> Iterator[tuple[str, int]]:
    """(sorter, incarnation) of each folder of committed files."""
    for name in folders(store, committed_prefix(tenant)):
        if (matched := _WRITER.fullmatch(name)) is not None:
            yield matched["name"], int(matched["incarnation"])


def _stores(store: ObjectStore, tenant: Tenant) -> Iterator[tuple[int, int]]:
    """(store, highest incarnation) of each folder of batch files."""
    for name in folders(store, buffer_prefix(tenant)):
        if (matched := _STORE.fullmatch(name)) is not None:
            store_id = int(matched["id"])
            numbers = [int(i) for i in folders(store, store_prefix(tenant, store_id)) if i.isdecimal()]
            yield store_id, max(numbers, default=0)
