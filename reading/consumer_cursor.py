"""Cursors of consumers: what a member acknowledges.

Such a cursor names a partition of a consumer, the epoch in which its holder was given changes, and where they end. It
is made by a pull and only good for its acknowledgement, so a cursor of one partition never moves another.
"""

from __future__ import annotations

from dataclasses import dataclass

from reading.position import seal, unseal
from tistream.errors import CursorInvalid
from tistream.ids import Tenant

_VERSION = b"c"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerCursor:
    """Everything of a partition at or below `ts`, as its holder in `epoch` got it."""

    tenant: Tenant
    changefeed_id: str
    partition: int
    epoch: int
    ts: int
    amended: int  #: number of the newest amendment of the log that is included

    def text(self) -> str:
        """As clients see it."""
        ids = [self.tenant.cluster_id, self.tenant.tenant_id, self.changefeed_id]
        return seal(_VERSION, [*ids, self.partition, self.epoch, self.ts, self.amended])


def parse_consumer_cursor(text: str, tenant: Tenant, changefeed_id: str) -> ConsumerCursor:
    """The cursor. CursorInvalid when it is damaged or belongs to another consumer."""
    values = unseal(text, _VERSION)
    try:
        cluster, tenant_id, name, *numbers = values
        partition, epoch, ts, amended = (int(number) for number in numbers)
        found = ConsumerCursor(
            tenant=Tenant(int(cluster), int(tenant_id)),
            changefeed_id=str(name),
            partition=partition,
            epoch=epoch,
            ts=ts,
            amended=amended,
        )
    except (ValueError, TypeError) as e:
        raise CursorInvalid("The cursor is not one of ours: it does not hold a position.", cursor=text[:80]) from e
    if (found.tenant, found.changefeed_id) != (tenant, changefeed_id):
        raise CursorInvalid(
            "The cursor belongs to another consumer.", cursor_scope=f"{found.tenant}/{found.changefeed_id}"
        )
    if not all(0 <= number < 1 << 63 for number in (partition, epoch, ts, amended)):
        raise CursorInvalid("The cursor is not one of ours: a number has more than 63 bits.", cursor=text[:80])
    return found
