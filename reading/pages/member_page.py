"""The page of a consumer's member: from the claim of a partition to what its acknowledgement says.

The page follows the checkpoint of the partition. Its cursor ends where the page ends, so an acknowledgement never
passes what was delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import orjson

from reading.core.inside import inside_of
from reading.filters import Part, parse_filter
from reading.pages.request import PullAnswer, PullRequest
from reading.rows.scope import Scope
from reading.served.consumer_cursor import ConsumerCursor
from reading.served.position import encode_cursor, encode_inside
from tistream.catalog.tenancy.consumers import Claim
from tistream.catalog.tenancy.core.consumer_group import Partition
from tistream.ids import Tenant


def member_request(tenant: Tenant, claim: Claim, held: Partition, pull: Callable[..., PullRequest]) -> PullRequest:
    """The pull of a partition that was claimed. `pull` makes the request; it lacks scope, position and filter."""
    scope = Scope(tenant=tenant)
    kept: Mapping[str, str] = orjson.loads(claim.filters)
    part = Part(number=held.number, of=claim.partitions) if claim.partitions > 1 else None
    return pull(
        scope=scope,
        cursor=_cursor(scope, held),
        end_ts=str(claim.target_ts) if claim.target_ts else None,
        filter=replace(parse_filter(kept), part=part),
    )


def member_cursor(tenant: Tenant, consumer_id: str, held: Partition, answer: PullAnswer) -> ConsumerCursor:
    """What the holder of the partition acknowledges once the page is done."""
    return ConsumerCursor(
        tenant=tenant,
        consumer_id=consumer_id,
        partition=held.number,
        epoch=held.epoch,
        ts=answer.end,
        commit_position="" if answer.inside is None else answer.inside.text,
    )


def _cursor(scope: Scope, held: Partition) -> str:
    if not held.commit_position:
        return encode_cursor(scope, held.checkpoint_ts)
    return encode_inside(scope, inside_of(held.checkpoint_ts + 1, held.commit_position))
