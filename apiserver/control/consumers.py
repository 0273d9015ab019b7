"""Routes of consumers: registered readers whose members pull. `apiserver.routes.consumers` has the pulls.

    GET, POST            /v1/clusters/{c}/tenants/{t}/consumers
    GET, PATCH, DELETE   .../consumers/{id}                   PATCH moves the checkpoint
    POST                 .../consumers/{id}:pause, :resume

Any process answers them from the catalog; conventions as in `apiserver.control.registration`.
"""

from __future__ import annotations

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from apiserver.answers.fields import Seconds, Tso
from apiserver.control.log_readers import IDLE_S_MAX, TSO, Filters, ReaderFacts, StartTs, start_of, texts
from apiserver.control.routing import known, route, timestamp
from reading.filters import parse_filter
from tistream.admin.consumers import consumer_facts, consumers_of
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy import consumers
from tistream.catalog.tenancy.consumers import CONSUMERS
from tistream.catalog.tenancy.log_readers import LogReader, ReaderState
from tistream.catalog.work.tasks import served_watermark
from tistream.errors import InvalidInput, NotAllowed
from tistream.http.audit.request import note_target
from tistream.http.auth.access import principal_of
from tistream.http.auth.core.roles import Right
from tistream.http.parameters import NAME, Name, PathTenant
from tistream.limits import CONSUMER_IDLE_HOURS_DEFAULT, CONSUMER_PARTITIONS_MAX


class NewConsumer(BaseModel):
    """A consumer to register."""

    consumer_id: str = Field(pattern=NAME)
    start_ts: StartTs = "latest"
    target_ts: str = Field(default="0", pattern=TSO, description="end; 0 = none")
    filters: Filters = Field(default={}, description="filters of its pulls, as the query of a pull has them")
    partitions: int = Field(
        default=1, ge=1, le=CONSUMER_PARTITIONS_MAX, description="members that can share it; a table is in one"
    )
    idle_limit_s: float = Field(
        default=CONSUMER_IDLE_HOURS_DEFAULT * 3600,
        ge=0,
        le=IDLE_S_MAX,
        description="without a request for so long, it no longer holds the log; 0 = it holds for ever",
    )


class Checkpoint(BaseModel):
    """A consumer's checkpoint."""

    checkpoint_ts: str = Field(pattern=TSO, description="it has everything at or below it; never falls")


class ShownPartition(BaseModel):
    """A part of a consumer's changes."""

    partition: int
    member: str | None = Field(description="who reads it; null = no member", examples=["loader-1"])
    epoch: int = Field(description="rises with each member that holds it")
    checkpoint_ts: Tso
    lag_s: Seconds = Field(description="from its checkpoint to the served watermark")


class ConsumerName(BaseModel):
    """What comes first in a consumer's answer."""

    consumer_id: str = Field(examples=["warehouse"])


class Consumer(ReaderFacts, ConsumerName):
    """A registered consumer."""

    members: list[str] = Field(description="those whose lease has not been taken over", examples=[["loader-1"]])
    leases_s: dict[str, float] = Field(
        description="seconds left of the lease of each; below 0 it has ended", examples=[{"loader-1": 42.0}]
    )
    partitions: list[ShownPartition]


class Consumers(BaseModel):
    """The consumers of a tenant."""

    items: list[Consumer]


def consumer_router(catalog: Catalog) -> APIRouter:
    """The routes over this catalog."""
    routes = APIRouter(tags=["retention"])
    base = "/v1/clusters/{cluster_id}/tenants/{tenant_id}/consumers"
    one = f"{base}/{{consumer_id}}"

    @route(routes, "GET", base, Right.LOOK, "List consumers")
    def list_consumers(tenant: PathTenant) -> Consumers:
        return Consumers(items=[Consumer(**facts) for facts in consumers_of(catalog, known(catalog, tenant))])

    @route(
        routes, "POST", base, Right.READ, "Register a consumer", status_code=201,
        responses={200: {"model": Consumer, "description": "it is registered alike already"}},
    )  # fmt: skip
    def create_consumer(tenant: PathTenant, new: NewConsumer, request: Request, response: Response) -> Consumer:
        tenant = known(catalog, tenant)
        note_target(request, consumer_id=new.consumer_id)
        if not served_watermark(catalog, tenant):
            raise InvalidInput("the tenant awaits its schema snapshot: its log has not started")
        start = start_of(catalog, tenant, CONSUMERS, new.consumer_id, new.start_ts)
        _check_may_hold(request, new.idle_limit_s)
        parse_filter(texts(new.filters))
        made = consumers.add_consumer(
            catalog,
            tenant,
            new.consumer_id,
            start,
            target_ts=timestamp(new.target_ts),
            filters=orjson.dumps(new.filters, option=orjson.OPT_SORT_KEYS).decode(),
            partitions=new.partitions,
            idle_limit_ms=int(new.idle_limit_s * 1000),
        )
        response.status_code = 201 if made else 200
        return _answer(catalog, CONSUMERS.get(catalog, tenant, new.consumer_id))

    @route(routes, "GET", one, Right.LOOK, "Get a consumer")
    def get_consumer(tenant: PathTenant, consumer_id: Name) -> Consumer:
        return _answer(catalog, CONSUMERS.get(catalog, known(catalog, tenant), consumer_id))

    @route(routes, "PATCH", one, Right.READ, "Advance a consumer's checkpoint")
    def move_checkpoint(tenant: PathTenant, consumer_id: Name, new: Checkpoint) -> Consumer:
        to_ts = timestamp(new.checkpoint_ts)
        return _answer(catalog, consumers.move_checkpoint(catalog, known(catalog, tenant), consumer_id, to_ts))

    @route(routes, "DELETE", one, Right.TENANT, "Remove a consumer", status_code=204)
    def remove_consumer(tenant: PathTenant, consumer_id: Name) -> Response:
        consumers.remove_consumer(catalog, known(catalog, tenant), consumer_id)
        return Response(status_code=204)

    @route(routes, "POST", f"{one}:pause", Right.TENANT, "Pause a consumer")
    def pause_consumer(tenant: PathTenant, consumer_id: Name) -> Consumer:
        return _answer(catalog, CONSUMERS.switch(catalog, known(catalog, tenant), consumer_id, ReaderState.STOPPED))

    @route(routes, "POST", f"{one}:resume", Right.TENANT, "Resume a consumer")
    def resume_consumer(tenant: PathTenant, consumer_id: Name) -> Consumer:
        return _answer(catalog, CONSUMERS.switch(catalog, known(catalog, tenant), consumer_id, ReaderState.NORMAL))

    return routes


def _check_may_hold(request: Request, idle_limit_s: float) -> None:
    """Only who can remove a consumer may let it hold the log for ever, or for longer than consumers do by default."""
    most_s = CONSUMER_IDLE_HOURS_DEFAULT * 3600
    if not 0 < idle_limit_s <= most_s and Right.TENANT not in principal_of(request).rights:
        raise NotAllowed(
            f"This key may let a consumer hold the log for at most {most_s} s: more needs the right '{Right.TENANT}'.",
            option="idle_limit_s",
        )


def _answer(catalog: Catalog, row: LogReader) -> Consumer:
    return Consumer(**consumer_facts(catalog, row))
