"""Pulls of registered consumers: the service keeps how far their members have got.

    POST  /v1/clusters/{c}/tenants/{t}/consumers/{id}:pull          changes of a partition, under a lease
    POST  /v1/clusters/{c}/tenants/{t}/consumers/{id}:acknowledge   {"cursor": ...}: they are done
    POST  /v1/clusters/{c}/tenants/{t}/consumers/{id}:leave         {"member", "session"}: give up the partitions
    POST  /v1/clusters/{c}/tenants/{t}/consumers/{id}:reset         {"to": ...}: go on from elsewhere

A pull claims a partition (`tistream.catalog.tenancy.consumers`), so it is a POST, and reads its page as any pull does.
A member without a partition waits as long as it asked, and gets an empty body without a cursor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, Field

from apiserver.answers.reading import Acknowledged, ChangePage, Left, Reset
from apiserver.callers import caller_of
from apiserver.routes.changes import Limit, Wait, page_or_wait, page_response
from apiserver.routes.parameters import TENANT, AnyForm, Form, Options
from apiserver.stream.answer import disconnected
from apiserver.stream.followers import Followers
from reading.formats import parse_options
from reading.pages.member_page import member_cursor, member_request
from reading.pages.rendering import Rendering
from reading.pages.request import PullAnswer, PullRequest
from reading.rows.scope import Scope
from reading.served.consumer_cursor import parse_consumer_cursor
from tistream import ts as tso
from tistream.catalog.tenancy import consumers
from tistream.catalog.tenancy.consumers import Claim
from tistream.http.auth.access import needs
from tistream.http.auth.core.roles import OfLimited, Right
from tistream.http.parameters import NAME, Name, PathTenant
from tistream.ids import Tenant
from tistream.limits import (
    CONSUMER_LEASE_S_DEFAULT,
    CONSUMER_LEASE_S_MAX,
    CURSOR_CHARS_MAX,
    INT_MAX,
    PULL_ROWS_DEFAULT,
)

_ASK_AGAIN_S = 1.0  # a waiting member without a partition

MemberName = Annotated[str, Query(pattern=NAME, description="Name of this member of the consumer.")]
Session = Annotated[
    int | None,
    Query(ge=0, le=INT_MAX, description="TiStream-Session of the member's last pull; none when it has just started."),
]
Lease = Annotated[
    float,
    Query(ge=1, le=CONSUMER_LEASE_S_MAX, description="Seconds without a pull after which other members take over."),
]


class Acknowledgement(BaseModel):
    """Changes that are done."""

    cursor: str = Field(max_length=CURSOR_CHARS_MAX, description="TiStream-Next-Cursor of the pull that delivered them")


class Leaving(BaseModel):
    """A member that stops."""

    member: str = Field(pattern=NAME)
    session: int = Field(ge=0, le=INT_MAX, description="TiStream-Session of its last pull")


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
    form: AnyForm,
    member: MemberName = "default",
    session: Session = None,
    lease_s: Lease = CONSUMER_LEASE_S_DEFAULT,
    limit: Limit = PULL_ROWS_DEFAULT,
    wait_s: Wait = 0,
) -> _Query:
    made = partial(PullRequest, start_ts=None, format=form.name, options=options, limit=limit, buffers=form.buffers)
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
    one = f"{TENANT}/consumers/{{consumer_id}}"
    parsed = Depends(_query)

    @routes.post(
        f"{one}:pull", summary="Changes of a consumer", response_model=None, responses={200: {"model": ChangePage}}
    )
    async def pull_consumer(tenant: PathTenant, consumer_id: Name, query: Any = parsed) -> Response:
        return await _answer(followers, tenant, consumer_id, query)

    @routes.post(
        f"{one}:acknowledge", summary="Changes of a consumer are done", responses={200: {"model": Acknowledged}}
    )
    def acknowledge(tenant: PathTenant, consumer_id: Name, what: Acknowledgement) -> dict[str, Any]:
        cursor = parse_consumer_cursor(what.cursor, tenant, consumer_id)
        partition = consumers.acknowledge(
            services.catalog,
            tenant,
            consumer_id,
            cursor.partition,
            epoch=cursor.epoch,
            ts=cursor.ts,
            commit_position=cursor.commit_position,
        )
        return {
            "partition": partition.number,
            "epoch": partition.epoch,
            "checkpoint_ts": str(partition.checkpoint_ts),
            "checkpoint_time": tso.to_text(partition.checkpoint_ts),
        }

    @routes.post(f"{one}:leave", summary="A member of a consumer stops", responses={200: {"model": Left}})
    def leave_consumer(tenant: PathTenant, consumer_id: Name, who: Leaving) -> dict[str, str]:
        consumers.leave(services.catalog, tenant, consumer_id, who.member, who.session)
        return {"consumer_id": consumer_id, "member": who.member}

    @routes.post(f"{one}:reset", summary="Continue a consumer from elsewhere", responses={200: {"model": Reset}})
    def reset_consumer(tenant: PathTenant, consumer_id: Name, where: ResetTo) -> dict[str, Any]:
        to_ts = services.served(tenant).parse_ts(where.to, services.clock.unix_ms())
        consumers.reset_consumer(services.catalog, tenant, consumer_id, to_ts)
        return {"consumer_id": consumer_id, "checkpoint_ts": str(to_ts), "checkpoint_time": tso.to_text(to_ts)}

    return routes


async def _answer(followers: Followers, tenant: Tenant, consumer_id: str, query: _Query) -> Response:
    claim = await _claim_or_wait(followers, tenant, consumer_id, query)
    headers = {"TiStream-Session": str(claim.session), "TiStream-Partitions": str(claim.partitions)}
    held = claim.partition
    if held is None:
        headers |= {"Cache-Control": "no-store"}
        return Response(_nothing(query, tenant), media_type=query.form.media_type, headers=headers)
    request = member_request(tenant, claim, held, query.pull)
    answer = await page_or_wait(followers, query.http, request, query.wait_s)
    cursor = member_cursor(tenant, consumer_id, held, answer)
    headers |= {
        "TiStream-Next-Cursor": cursor.text(),
        "TiStream-Partition": str(held.number),
        "TiStream-Epoch": str(held.epoch),
        "TiStream-Checkpoint-Ts": str(held.checkpoint_ts),
    }
    shown = replace(answer, content=_with_cursor(request, answer, cursor.text()))
    return await page_response(followers, query.http, shown, query.form, headers)


def _with_cursor(request: PullRequest, answer: PullAnswer, cursor: str) -> Any:
    """A JSON document names the cursor as well: the consumer's, not the one of a plain pull. It comes after all rows,
    which may hold the same text."""
    if request.format != "json":
        return answer.content
    before, _, after = answer.content.to_pybytes().rpartition(answer.next_cursor.encode())
    return b"".join((before, cursor.encode(), after))


async def _claim_or_wait(followers: Followers, tenant: Tenant, consumer_id: str, query: _Query) -> Claim:
    """A claim with a partition, or without one when the time is up or the client has gone. TooManyOpen."""
    catalog, loop = followers.services.catalog, asyncio.get_running_loop()
    deadline = loop.time() + query.wait_s
    claim_of = partial(consumers.claim_partition, catalog, tenant, consumer_id, query.member, lease_ms=query.lease_ms)
    claim = await run_in_threadpool(claim_of, session=query.session)
    if claim.partition is not None or not query.wait_s:
        return claim
    with followers.counted("waits", caller_of(query.http), followers.limits.waits_max):
        leaving = asyncio.ensure_future(disconnected(query.http.receive))
        try:
            while claim.partition is None and (left_s := deadline - loop.time()) > 0:
                await asyncio.wait({leaving}, timeout=min(_ASK_AGAIN_S, left_s))
                if leaving.done():
                    break
                claim = await run_in_threadpool(claim_of, session=claim.session)
        finally:
            leaving.cancel()
    return claim


def _nothing(query: _Query, tenant: Tenant) -> bytes:
    """The body of a member that holds no partition."""
    request = query.pull(scope=Scope(tenant=tenant), cursor=None)
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
