"""The page of a consumer's member: from the claim of a partition to what its acknowledgement says.

The page follows the checkpoint of the partition. Its cursor ends where the page ends, so an acknowledgement never
passes what was delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import orjson

from reading.consumer_cursor import ConsumerCursor
from reading.filters import Part, parse_filter
from reading.position import encode_cursor
from reading.pull import PullAnswer, PullRequest
from reading.scope import Scope
from tistream.catalog.log.consumers import Claim
from tistream.catalog.tenancy.core.consumer_group import Partition
from tistream.ids import Tenant


def member_request(tenant: Tenant, claim: Claim, held: Partition, pull: Callable[..., PullRequest]) -> PullRequest:
    """The pull of a partition that was claimed. `pull` makes the request; it lacks scope, position and filter."""
    scope = Scope(tenant=tenant)
    kept: Mapping[str, str] = orjson.loads(claim.filters)
    part = Part(number=held.number, of=claim.partitions) if claim.partitions > 1 else None
    return pull(
        scope=scope,
        cursor=encode_cursor(scope, held.checkpoint_ts, held.amended),
        end_ts=str(claim.target_ts) if claim.target_ts else None,
        filter=replace(parse_filter(kept), part=part),
    )


def member_cursor(tenant: Tenant, changefeed_id: str, held: Partition, answer: PullAnswer) -> ConsumerCursor:
    """What the holder of the partition acknowledges once the page is done."""
    return ConsumerCursor(
        tenant=tenant,
        changefeed_id=changefeed_id,
        partition=held.number,
        epoch=held.epoch,
        ts=answer.end,
        amended=answer.seen,
    )
