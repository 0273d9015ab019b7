"""Answers kept for requests that are sent again: what an Idempotency-Key stands for.

    begin_answer --None: do it--> keep_answer (it went well) | drop_answer (it did not: the next one may try)
                 '--a row: it was done, is being done, or was another request

`attempt` names one try. Who is silent for longer than IN_FLIGHT_MS is taken to be dead and its place is taken; it then
keeps nothing, because the row holds another attempt.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import and_, bindparam, or_, select

from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import ensure_row, kept_answers, now_ms

KEPT_MS = 24 * 3600 * 1000
IN_FLIGHT_MS = 120_000

_a = kept_answers.c
_ROW = _a.asked_hash == bindparam("asked")
_MINE = (_ROW, _a.attempt == bindparam("my_attempt"))
_ENDED = or_(_a.begun_ms < now_ms() - KEPT_MS, and_(_a.status == 0, _a.begun_ms < now_ms() - IN_FLIGHT_MS))
_SWEEP = kept_answers.delete().where(_a.begun_ms < now_ms() - KEPT_MS)
_LET_GO = kept_answers.delete().where(_ROW, _ENDED)
_FIND = select(kept_answers).where(_ROW)
_KEEP = (
    kept_answers.update()
    .where(*_MINE)
    .values(status=bindparam("new_status"), media_type=bindparam("new_media_type"), body=bindparam("new_body"))
)
_DROP = kept_answers.delete().where(*_MINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAnswer:
    """What is known of a request."""

    request_hash: str
    status: int  #: of the answer; 0 = it is being worked on
    media_type: str
    body: bytes


def begin_answer(catalog: Catalog, asked: str, request_hash: str, attempt: str) -> KeptAnswer | None:
    """None: the request is new, and `attempt` has it. Else what is known of it; of callers that race one gets None."""
    with catalog.transaction() as conn:
        conn.execute(_LET_GO, {"asked": asked})
        ensure_row(
            conn,
            kept_answers,
            timed="begun_ms",
            asked_hash=asked,
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
    """The request was answered like this. Nothing happens when another attempt has its place."""
    values = {"new_status": status, "new_media_type": media_type, "new_body": body}
    with catalog.transaction() as conn:
        conn.execute(_KEEP, {"asked": asked, "my_attempt": attempt, **values})


def drop_answer(catalog: Catalog, asked: str, attempt: str) -> None:
    """The request failed: whoever sends it again has it done."""
    with catalog.transaction() as conn:
        conn.execute(_DROP, {"asked": asked, "my_attempt": attempt})
