"""Stored answers of requests with an Idempotency-Key.

    begin_answer --None: execute it--> keep_answer (success) | drop_answer (failure: a retry executes it again)
                 '--a row: done, in flight, or another request

`attempt` identifies one try. An attempt older than IN_FLIGHT_MS counts as dead and is replaced; it can then store
nothing, because the row has another attempt.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import and_, bindparam, or_, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import ensure_row, idempotency_keys

KEPT_MS = 24 * 3600 * 1000
IN_FLIGHT_MS = 120_000

_a = idempotency_keys.c
_ROW = _a.key_hash == bindparam("asked")
_MINE = (_ROW, _a.attempt == bindparam("my_attempt"))
_ENDED = or_(_a.started_ms < now_ms() - KEPT_MS, and_(_a.status == 0, _a.started_ms < now_ms() - IN_FLIGHT_MS))
_SWEEP = idempotency_keys.delete().where(_a.started_ms < now_ms() - KEPT_MS)
_DROP_ENDED = idempotency_keys.delete().where(_ROW, _ENDED)
_FIND = select(idempotency_keys).where(_ROW)
_KEEP = (
    idempotency_keys.update()
    .where(*_MINE)
    .values(status=bindparam("new_status"), media_type=bindparam("new_media_type"), body=bindparam("new_body"))
)
_DROP = idempotency_keys.delete().where(*_MINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAnswer:
    """The recorded state of a request."""

    request_hash: str
    status: int  #: of the answer; 0 = in flight
    media_type: str
    body: bytes


def begin_answer(catalog: Catalog, asked: str, request_hash: str, attempt: str) -> KeptAnswer | None:
    """None: the request is new and belongs to `attempt`. Else its recorded state. Of racing callers one gets None."""
    with catalog.transaction() as conn:
        conn.execute(_DROP_ENDED, {"asked": asked})
        ensure_row(
            conn,
            idempotency_keys,
            timed="started_ms",
            key_hash=asked,
            request_hash=request_hash,
            attempt=attempt,
            status=0,
            media_type="",
            body=b"",
        )
        row = conn.execute(_FIND, {"asked": asked}).one()
        if row.attempt != attempt:
            return KeptAnswer(
                request_hash=row.request_hash, status=row.status, media_type=row.media_type, body=bytes(row.body)
            )
        conn.execute(_SWEEP)
        return None


def keep_answer(catalog: Catalog, asked: str, attempt: str, *, status: int, media_type: str, body: bytes) -> None:
    """Store the answer. No effect when another attempt has replaced this one."""
    values = {"new_status": status, "new_media_type": media_type, "new_body": body}
    with catalog.transaction() as conn:
        conn.execute(_KEEP, {"asked": asked, "my_attempt": attempt, **values})


def drop_answer(catalog: Catalog, asked: str, attempt: str) -> None:
    """Forget a failed request, so that a retry executes it."""
    with catalog.transaction() as conn:
        conn.execute(_DROP, {"asked": asked, "my_attempt": attempt})
