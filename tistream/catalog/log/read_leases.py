"""Pins: a reader's word that it may still fetch what was in the log when it looked.

    reader      open_pin (COMMIT) -> list segments -> fetch them, renewing -> drop_pin
    compaction  in one transaction: take the next swap number, mark what it replaces with it
    collector   deletes what swap n replaced only when no living pin has seen fewer than n swaps

A pin holds the number of swaps that its reader had seen, not a time, so no clock decides what it protects. Why: the
numbers are committed in order (the counter's row is locked until COMMIT). A listing begins after its pin's COMMIT.
What it shows and a swap n replaces later was replaced by a swap that was not committed when the pin was opened, so the
pin has seen fewer than n and is there when anybody looks whether the object may go. A pin that comes after that look
belongs to a reader that lists after the swap, and never hears of the object.

The database's clock says only when a pin whose reader died ends. A reader that slept through that finds the object gone
and looks again (`reading.reader`): a pin saves work, it is not what makes reads right.
"""

from __future__ import annotations

from sqlalchemy import bindparam, func, select

from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import counters, now_ms, pins

_p = pins.c
_OPEN = pins.insert().from_select(
    ["pin_id", "swaps_seen", "expires_ms"],
    select(bindparam("pin_id", type_=_p.pin_id.type), counters.c.value, now_ms() + bindparam("ttl_ms")).where(
        counters.c.name == "swap"
    ),
)
_RENEW = (
    pins.update()
    .where(_p.pin_id == bindparam("asked_pin"), _p.expires_ms > now_ms())
    .values(expires_ms=now_ms() + bindparam("ttl_ms"))
)
_DROP = pins.delete().where(_p.pin_id == bindparam("asked_pin"))
_EXPIRED = select(func.count()).select_from(pins).where(_p.expires_ms <= now_ms())
_DROP_EXPIRED = pins.delete().where(_p.expires_ms <= now_ms())


def open_pin(catalog: Catalog, pin_id: str, ttl_ms: int) -> None:
    """From now on, and for `ttl_ms`, nothing goes that a listing may show from now on. `pin_id` is never used again."""
    with catalog.transaction() as conn:
        conn.execute(_OPEN, {"pin_id": pin_id, "ttl_ms": ttl_ms})


def renew_pin(catalog: Catalog, pin_id: str, ttl_ms: int) -> bool:
    """Let the pin live for another `ttl_ms`. False when it has ended already: list anew, under a new pin."""
    with catalog.transaction() as conn:
        return conn.execute(_RENEW, {"asked_pin": pin_id, "ttl_ms": ttl_ms}).rowcount == 1


def drop_pin(catalog: Catalog, pin_id: str) -> None:
    """The reader has fetched what it wanted."""
    with catalog.transaction() as conn:
        conn.execute(_DROP, {"asked_pin": pin_id})


def expired_pins(catalog: Catalog) -> int:
    """How many pins nobody has renewed in time."""
    with catalog.reading() as conn:
        return int(conn.execute(_EXPIRED).scalar_one())


def drop_expired_pins(catalog: Catalog) -> int:
    """Forget the pins of readers that died; how many."""
    with catalog.transaction() as conn:
        return conn.execute(_DROP_EXPIRED).rowcount
