"""Service tokens: the secret with which services of one deployment prove themselves to each other.

The elected meta server makes a token when there is none, and a new one each `rotate_ms` by the database's clock.
Services share the catalog and read the tokens there. There are two rows: the newest token, which callers present, and
the one before, which is still accepted, so that a rotation cuts no connection. Without a meta server the newest token
stays valid.

A rotation whose reply was lost needs no repair: the next round reads whether the newest token is due.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from sqlalchemy import bindparam, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import service_tokens
from tistream.catalog.work.tasks import holds_leadership

SECRET_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceToken:
    """An accepted token."""

    number: int  #: rises with each rotation
    secret: str = field(repr=False)


_c = service_tokens.c
_ACCEPTED = select(_c.token_no, _c.secret).order_by(_c.token_no.desc())
_NEWEST = select(_c.token_no, _c.created_ms, now_ms().label("now_ms")).order_by(_c.token_no.desc()).limit(1)
_MAKE = service_tokens.insert().values(created_ms=now_ms())
_DROP = service_tokens.delete().where(_c.token_no < bindparam("oldest"))


def accepted_tokens(catalog: Catalog) -> tuple[ServiceToken, ...]:
    """The accepted tokens, the newest first; empty before the first election."""
    with catalog.reading() as conn:
        return tuple(ServiceToken(number=number, secret=secret) for number, secret in conn.execute(_ACCEPTED))


def rotate_service_token(catalog: Catalog, *, rotate_ms: int, leader_epoch: int) -> int | None:
    """Make a token when there is none, or the newest is as old as `rotate_ms`; its number. The token before the one it
    replaces is no longer accepted. None when none is due, or `leader_epoch` is not the leader's.

    A newest token from the future counts as due once it is `rotate_ms` away: the database's clock was set back."""
    with catalog.reading() as conn:
        newest = conn.execute(_NEWEST).first()
    if newest is not None and abs(newest.now_ms - newest.created_ms) < rotate_ms:
        return None
    number = 1 if newest is None else newest.token_no + 1
    with catalog.transaction() as conn:
        if not holds_leadership(conn, leader_epoch):
            return None
        conn.execute(_MAKE, {"token_no": number, "secret": secrets.token_hex(SECRET_BYTES)})
        conn.execute(_DROP, {"oldest": number - 1})
    return number
