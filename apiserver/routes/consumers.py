"""Pulls of registered consumers: the service keeps how far their members have got.

    GET   /v1/clusters/{c}/tenants/{t}/changefeeds/{id}/changes       changes of a partition, under a lease
    POST  /v1/clusters/{c}/tenants/{t}/changefeeds/{id}:acknowledge   {"cursor": ...}: they are done
    POST  /v1/clusters/{c}/tenants/{t}/changefeeds/{id}:leave         {"member", "session"}: give up the partitions
    POST  /v1/clusters/{c}/tenants/{t}/changefeeds/{id}:reset         {"to": ...}: go on from elsewhere

A pull claims a partition (`tistream.catalog.log.consumers`) and reads its page as any pull does. A member without a
partition waits as long as it asked, and gets an empty body without a cursor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, Field

from apiserver.routes.changes import Limit, Wait, page_or_wait, page_response
from apiserver.routes.parameters import (
    TENANT,
    Accept,
    AcceptEncoding,
    Buffers,
    Form,
    FormatName,
    Options,
    form_of,
)
from apiserver.stream.answer import disconnected
from apiserver.stream.followers import Followers
from reading.consumer_cursor import parse_consumer_cursor
from reading.deps import Id, Services
from reading.formats import parse_options
from reading.member_page import member_cursor, member_request
from reading.pull import PullAnswer, PullRequest
from reading.rendering import Rendering
from reading.scope import Scope
from tistream import ts as tso
from tistream.catalog.log import consumers
from tistream.catalog.log.consumers import Claim
from tistream.http.auth.access import needs
from tistream.http.auth.core.roles import OfLimited, Right
from tistream.ids import Tenant
from tistream.limits import CONSUMER_LEASE_S_DEFAULT, CONSUMER_LEASE_S_MAX, PULL_ROWS_DEFAULT

_ASK_AGAIN_S = 1.0  # a waiting member without a partition

_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
_INT_MAX = (1 << 63) - 1
ConsumerId = Annotated[str, Path(pattern=_NAME)]
MemberName = Annotated[str, Query(pattern=_NAME, description="Name of this member of the consumer.")]
Session = Annotated[
    int | None,
    Query(ge=0, le=_INT_MAX, description="TiStream-Session of the member's last pull; none when it has just started."),
]
Lease = Annotated[
    float,
    Query(ge=1, le=CONSUMER_LEASE_S_MAX, description="Seconds without a pull after which other members take over."),
]


class Acknowledgement(BaseModel):
    """Changes that are done."""

    cursor: str = Field(max_length=1024, description="TiStream-Next-Cursor of the pull that delivered them")


class Leaving(BaseModel):
    """A member that stops."""

    member: str = Field(pattern=_NAME)
    session: int = Field(ge=0, le=_INT_MAX, description="TiStream-Session of its last pull")


class ResetTo(BaseModel):
    """Where a consumer continues."""

    to: str = Field(max_length=64, description="a TSO, an RFC 3339 time, `earliest` or `latest`")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Query:
    """A parsed pull of a member."""

    http: Request
    member: str
    session: int | None
    lease_ms: int
    wait_s: float
    pull: Callable[..., PullRequest]  #: lacks scope, position and filter
    form: Form


async def _query(
    request: Request,
    options: Options,
    member: MemberName = "default",
    session: Session = None,
    lease_s: Lease = CONSUMER_LEASE_S_DEFAULT,
    format: FormatName = None,
    limit: Limit = PULL_ROWS_DEFAULT,
    wait_s: Wait = 0,
    compression: Buffers = None,
    accept: Accept = None,
    accept_encoding: AcceptEncoding = None,
) -> _Query:
    form = form_of(format, compression, accept, accept_encoding)
    made = partial(
        PullRequest,
        start_ts=None,
        format=form.name,
        options=options,
        limit=limit,
        buffers=form.buffers,
    )
    return _Query(
        http=request,
        member=member,
        session=session,
        lease_ms=int((lease_s + wait_s) * 1000),
        wait_s=wait_s,
        pull=made,
        form=form,
    )


def router(followers: Followers) -> APIRouter:
    """The routes of members."""
    services = followers.services
    routes = APIRouter(tags=["changes"], dependencies=[needs(Right.READ, limited=OfLimited.REFUSED)])
    one = f"{TENANT}/changefeeds/{{changefeed_id}}"
    parsed = Depends(_query)

    @routes.get(f"{one}/changes", operation_id="pull_consumer", summary="Changes of a consumer", response_model=None)
    async def changes(cluster_id: Id, tenant_id: Id, changefeed_id: ConsumerId, asked: Any = parsed) -> Response:
        return await _answer(followers, Tenant(cluster_id, tenant_id), changefeed_id, asked)

    @routes.post(f"{one}:acknowledge", operation_id="acknowledge", summary="Changes of a consumer are done")
    def acknowledge(cluster_id: Id, tenant_id: Id, changefeed_id: ConsumerId, what: Acknowledgement) -> dict[str, Any]:
        tenant = Tenant(cluster_id, tenant_id)
        cursor = parse_consumer_cursor(what.cursor, tenant, changefeed_id)
        partition = consumers.acknowledge(
            services.catalog,
            tenant,
            changefeed_id,
            cursor.partition,
            epoch=cursor.epoch,
            ts=cursor.ts,
            amended=cursor.amended,
        )
        return {
            "partition": partition.number,
            "epoch": partition.epoch,
            "checkpoint_ts": str(partition.checkpoint_ts),
            "checkpoint_time": tso.to_text(partition.checkpoint_ts),
        }

    @routes.post(f"{one}:leave", operation_id="leave_consumer", summary="A member of a consumer stops")
    def leave(cluster_id: Id, tenant_id: Id, changefeed_id: ConsumerId, who: Leaving) -> dict[str, str]:
        consumers.leave(services.catalog, Tenant(cluster_id, tenant_id), changefeed_id, who.member, who.session)
        return {"changefeed_id": changefeed_id, "member": who.member}

    @routes.post(f"{one}:reset", operation_id="reset_consumer", summary="Continue a consumer from elsewhere")
    def reset(cluster_id: Id, tenant_id: Id, changefeed_id: ConsumerId, where: ResetTo) -> dict[str, Any]:
        tenant = Tenant(cluster_id, tenant_id)
        to_ts = services.served(tenant).parse_ts(where.to, services.clock.unix_ms())
        consumers.reset_consumer(services.catalog, tenant, changefeed_id, to_ts)
        return {"changefeed_id": changefeed_id, "checkpoint_ts": str(to_ts), "checkpoint_time": tso.to_text(to_ts)}

    return routes


async def _answer(followers: Followers, tenant: Tenant, changefeed_id: str, asked: _Query) -> Response:
    claim = await _claim_or_wait(followers.services, tenant, changefeed_id, asked)
    headers = {"TiStream-Session": str(claim.session), "TiStream-Partitions": str(claim.partitions)}
    held = claim.partition
    if held is None:
        headers |= {"Cache-Control": "no-store"}
        return Response(_nothing(asked, tenant), media_type=asked.form.media_type, headers=headers)
    request = member_request(tenant, claim, held, asked.pull)
    answer = await page_or_wait(followers, asked.http, request, asked.wait_s)
    cursor = member_cursor(tenant, changefeed_id, held, answer)
    headers |= {
        "TiStream-Next-Cursor": cursor.text(),
        "TiStream-Partition": str(held.number),
        "TiStream-Epoch": str(held.epoch),
        "TiStream-Checkpoint-Ts": str(held.checkpoint_ts),
    }
    shown = replace(answer, content=_with_cursor(request, answer, cursor.text()))
    return await page_response(followers, asked.http, shown, asked.form, headers)


def _with_cursor(request: PullRequest, answer: PullAnswer, cursor: str) -> Any:
    """A JSON document names the cursor as well: the consumer's, not the one of a plain pull. It comes after all rows,
    which may hold the same text."""
    if request.format != "json":
        return answer.content
    before, _, after = answer.content.to_pybytes().rpartition(answer.next_cursor.encode())
    return b"".join((before, cursor.encode(), after))


async def _claim_or_wait(services: Services, tenant: Tenant, changefeed_id: str, asked: _Query) -> Claim:
    """A claim with a partition, or without one when the time is up or the client has gone."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + asked.wait_s
    leaving = asyncio.ensure_future(disconnected(asked.http.receive)) if asked.wait_s else None
    session = asked.session
    try:
        while True:
            claim = await run_in_threadpool(
                consumers.claim_partition,
                services.catalog,
                tenant,
                changefeed_id,
                asked.member,
                session=session,
                lease_ms=asked.lease_ms,
            )
            left_s = deadline - loop.time()
            if claim.partition is not None or leaving is None or left_s <= 0:
                return claim
            session = claim.session
            await asyncio.wait({leaving}, timeout=min(_ASK_AGAIN_S, left_s))
            if leaving.done():
                return claim
    finally:
        if leaving is not None:
            leaving.cancel()


def _nothing(asked: _Query, tenant: Tenant) -> bytes:
    """The body of a member that holds no partition."""
    request = asked.pull(scope=Scope(tenant=tenant), cursor=None)
    if request.format == "json":
        return b'{"items":[],"next_cursor":null,"has_more":false}'
    rendering = Rendering(
        scope=request.scope,
        format=request.format,
        options=parse_options(request.options, built_ms=0),
        buffers=request.buffers,
        watermarks=False,
    )
    return bytes(rendering.empty(None, 0))
