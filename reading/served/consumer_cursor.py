"""Cursors of consumers: what a member acknowledges.

Such a cursor names a partition of a consumer, the epoch in which its holder was given changes, and where they end. It
is made by a pull and only good for its acknowledgement, so a cursor of one partition never moves another.
"""

from __future__ import annotations

from dataclasses import dataclass

from reading.core.inside import inside_of
from reading.served.position import numbers_of_cursor, seal, unseal
from tistream.errors import CursorInvalid
from tistream.ids import Tenant

_VERSION = b"c"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerCursor:
    """Everything of a partition at or below `ts`, as its holder in `epoch` got it."""

    tenant: Tenant
    consumer_id: str
    partition: int
    epoch: int
    ts: int
    commit_position: str = ""  #: and a part of the commit that follows, up to this position (`Inside.text`)

    def text(self) -> str:
        """As clients see it."""
        ids = [self.tenant.cluster_id, self.tenant.tenant_id, self.consumer_id]
        inside = [self.commit_position] if self.commit_position else []
        return seal(_VERSION, [*ids, self.partition, self.epoch, self.ts, *inside])


def parse_consumer_cursor(text: str, tenant: Tenant, consumer_id: str) -> ConsumerCursor:
    """The cursor. CursorInvalid when it is damaged or belongs to another consumer."""
    values = unseal(text, _VERSION)
    try:
        cluster, tenant_id, name, partition, epoch, ts, *more = values
        numbers_of_cursor((cluster, tenant_id, partition, epoch, ts))
        inside = str(more[0]) if more else ""
        if inside:
            inside_of(ts + 1, inside)
        consumer_cursor = ConsumerCursor(
            tenant=Tenant(cluster, tenant_id),
            consumer_id=str(name),
            partition=partition,
            epoch=epoch,
            ts=ts,
            commit_position=inside,
        )
    except (ValueError, TypeError) as e:
        raise CursorInvalid("The cursor is not one of ours: it does not hold a position.", cursor=text[:80]) from e
    if (consumer_cursor.tenant, consumer_cursor.consumer_id) != (tenant, consumer_id):
        raise CursorInvalid(
            "The cursor belongs to another consumer.",
            cursor_scope=f"{consumer_cursor.tenant}/{consumer_cursor.consumer_id}",
        )
    return consumer_cursor
