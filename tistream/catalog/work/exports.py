"""The exports of the catalog, as the catalog knows them: begun, verified, confirmed.

    begin_export      a number; every decision of a lower number is committed by now
    (the snapshot)    later transaction: contains them
    verify_export     the export is in the bucket, whole, and this generation is still the newest

A number is used once. An export that failed leaves a gap. `tistream.catalog.database.decisions` says what waits for
them.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import bindparam, func, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import EventKind, record_event
from tistream.catalog.database.generation import CatalogState, generation_of
from tistream.catalog.database.journaled import WANTED
from tistream.catalog.database.release_tables import catalog_exports, catalog_release
from tistream.catalog.database.tables import counters, objects
from tistream.catalog.log.objects import ObjectState
from tistream.catalog.work.tasks import holds_leadership
from tistream.errors import Fenced, StateForbids

_c = catalog_release.c
_ONE = catalog_release.update().where(_c.id == 1)
_BEGIN = _ONE.values(exports_begun=_c.exports_begun + 1, exports_on=1, exports_key=bindparam("key_name"))
_BEGUN = select(_c.exports_begun).where(_c.id == 1)
_VERIFY = _ONE.where(_c.exports_verified < bindparam("number")).values(exports_verified=bindparam("number"))
_SWITCH_OFF = _ONE.where(_c.exports_on == 1).values(exports_on=0)
_CONFIRM = _ONE.where(_c.state == CatalogState.UNCONFIRMED).values(state=CatalogState.READY)
_ADD = catalog_exports.insert().values(verified_ms=now_ms())
_DROP = catalog_exports.delete().where(catalog_exports.c.export_no < bindparam("below"))
_WANTED = select(counters.c.value).where(counters.c.name == WANTED).scalar_subquery()
_o = objects.c
_WAITING = select(func.coalesce(func.sum(_o.bytes), 0)).where(
    _o.state == ObjectState.SUPERSEDED, _o.decided_no >= bindparam("verified")
)
_NEWEST = (
    select(
        *(catalog_exports, now_ms().label("now_ms"), _c.generation, _c.state),
        *(_c.exports_begun, _c.exports_verified, _c.exports_on, _WANTED.label("wanted")),
    )
    .select_from(catalog_release.outerjoin(catalog_exports, _c.exports_verified == catalog_exports.c.export_no))
    .where(_c.id == 1)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedExport:
    """An export that a restore can use."""

    export_no: int
    object_key: str
    rows: int
    size: int  #: bytes of its pieces; most are shared with the export before
    age_ms: int  #: of its snapshot, by the database's clock


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportStatus:
    """What the catalog says of its exports."""

    generation: int
    state: CatalogState
    is_on: bool
    newest: VerifiedExport | None
    is_wanted: bool = False  #: one was asked for that has not begun
    waiting_bytes: int = 0  #: of replaced objects whose replacement is in no verified export


def begin_export(catalog: Catalog, *, leader_epoch: int, key_name: str = "") -> int:
    """The number of a new export, whose snapshot is taken after this; `key_name` of the key that seals it. Fenced when
    another leader was elected."""
    with catalog.transaction() as conn:
        if not holds_leadership(conn, leader_epoch):
            raise Fenced("another meta server was elected leader", epoch=leader_epoch)
        conn.execute(_BEGIN, {"key_name": key_name})
        return int(conn.execute(_BEGUN).scalar_one())


def verify_export(
    catalog: Catalog, number: int, object_key: str, *, snapshot_ms: int, rows: int, size: int, leader_epoch: int
) -> None:
    """Record that the export can be restored. Fenced when another leader was elected: its exports come first."""
    with catalog.transaction() as conn:
        if not holds_leadership(conn, leader_epoch):
            raise Fenced("another meta server was elected leader", epoch=leader_epoch)
        conn.execute(
            _ADD,
            {
                "export_no": number,
                "object_key": object_key,
                "snapshot_ms": snapshot_ms,
                "row_count": rows,
                "bytes": size,
            },
        )
        conn.execute(_VERIFY, {"number": number})


def forget_exports(catalog: Catalog, *, below: int) -> None:
    """Drop the rows of exports that were deleted."""
    with catalog.transaction() as conn:
        conn.execute(_DROP, {"below": below})


def switch_exports_off(catalog: Catalog) -> None:
    """From now on deletions wait for nothing."""
    with catalog.transaction() as conn:
        conn.execute(_SWITCH_OFF)


def set_generation(catalog: Catalog, generation: int, state: CatalogState) -> None:
    """What a restore says of the catalog that it fills; exports begin anew."""
    with catalog.transaction() as conn:
        conn.execute(_ONE.values(generation=generation, state=state, exports_verified=0))


def export_status(catalog: Catalog) -> ExportStatus:
    """The generation, the newest verified export, and what waits for the next one."""
    with catalog.reading() as conn:
        row = conn.execute(_NEWEST).one()
    waiting_bytes = 0
    if row.exports_on:
        with catalog.reading() as conn:
            waiting_bytes = int(conn.execute(_WAITING, {"verified": row.exports_verified}).scalar_one())
    newest = None
    if row.export_no is not None:
        newest = VerifiedExport(
            export_no=int(row.export_no),
            object_key=row.object_key,
            rows=int(row.row_count),
            size=int(row.bytes),
            age_ms=max(0, int(row.now_ms) - int(row.snapshot_ms)),
        )
    return ExportStatus(
        generation=int(row.generation),
        state=CatalogState(row.state),
        is_on=bool(row.exports_on),
        newest=newest,
        is_wanted=int(row.wanted) > int(row.exports_begun),
        waiting_bytes=waiting_bytes,
    )


def confirm_restore(catalog: Catalog, *, actor: str = "") -> None:
    """Let a restored catalog delete again. StateForbids when nothing waits for it."""
    with catalog.transaction() as conn:
        generation, state = generation_of(conn)
        if conn.execute(_CONFIRM).rowcount != 1:
            raise StateForbids(f"The catalog is {state}: no restore waits to be confirmed.", state=state)
        record_event(conn, EventKind.CATALOG_CONFIRMED, f"generation {generation}", actor=actor)
