"""Routes of changefeeds: what the service writes to destinations.

    GET, POST     /v1/clusters/{c}/tenants/{t}/changefeeds
    GET, DELETE   .../changefeeds/{id}
    GET           .../changefeeds/{id}/tables
    POST          .../changefeeds/{id}:pause, :resume, :update, :rebalance, :retry, :skip

Any process answers them from the catalog; conventions as in `apiserver.control.registration`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from apiserver.answers.fields import Seconds, Tso, WorkerName
from apiserver.control.admin import actor_of
from apiserver.control.changefeed_control import ChangefeedControl, ChangefeedSettings
from apiserver.control.log_readers import IDLE_S_MAX, TSO, Filters, ReaderFacts, StartTs, start_of, texts
from apiserver.control.routing import known, route, timestamp
from schemas.registry.schema_registry import SchemaRegistry
from tistream.admin.changefeeds import changefeed_facts, changefeeds_of
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS
from tistream.catalog.tenancy.log_readers import ReaderState
from tistream.catalog.work import changefeeds
from tistream.catalog.work.changefeeds import Sees
from tistream.clock import Clock
from tistream.http.audit.request import note_target
from tistream.http.auth.access import principal_of
from tistream.http.auth.core.roles import Right
from tistream.http.parameters import NAME, Name, PathTenant
from tistream.ids import Tenant
from tistream.limits import CHANGEFEED_IDLE_HOURS_DEFAULT, KEY_CHARS_MAX
from tistream.outbound.policy import Terms

_LANES_MAX = 256
_KeyText = Annotated[str, Field(max_length=KEY_CHARS_MAX)]
_Keys = dict[Literal["key_format", "start_key", "end_key", "key_prefix", "key_pattern", "value_pattern"], _KeyText]


class NewChangefeed(BaseModel):
    """A changefeed to create."""

    changefeed_id: str = Field(pattern=NAME)
    sink_uri: str = Field(min_length=1, max_length=8000, description="where the service writes it: tikv, s3, file")
    start_ts: StartTs = "latest"
    target_ts: str = Field(default="0", pattern=TSO, description="end; 0 = none")
    filters: Filters = Field(default={}, description="which changes are written, as the query of a pull has them")
    idle_limit_s: float = Field(
        default=CHANGEFEED_IDLE_HOURS_DEFAULT * 3600,
        ge=0,
        le=IDLE_S_MAX,
        description="without a move of its checkpoint for so long, it no longer holds the log; 0 = it holds for ever",
    )
    dead_letter: str = Field(
        default="", max_length=8000,
        description="where refused changes are written: s3, file; without, an operator decides about each",
    )  # fmt: skip
    keys: _Keys = Field(default={}, description="the entries of a keyspace that are replicated")
    lanes: int | None = Field(default=None, ge=1, le=_LANES_MAX, description="parts that are written side by side")


class ChangefeedUpdate(BaseModel):
    """Settings of a changefeed to change; those that are not given stay."""

    sink_uri: str | None = Field(default=None, max_length=8000)
    dead_letter: str | None = Field(default=None, max_length=8000, description="empty = none any more")
    target_ts: str | None = Field(default=None, pattern=TSO)
    filters: Filters | None = None
    keys: _Keys | None = None
    idle_limit_s: float | None = Field(default=None, ge=0, le=IDLE_S_MAX)


class Resumption(BaseModel):
    """How to resume."""

    checkpoint_ts: str | None = Field(default=None, pattern=TSO, description="it continues above it, also further back")


class Rebalance(BaseModel):
    """How to cut a changefeed anew."""

    lanes: int | None = Field(default=None, ge=1, le=_LANES_MAX, description="as many as now unless given")


class LaneDecision(BaseModel):
    """The lane that waits for a decision."""

    lane: int = Field(ge=0)


class LeftOut(LaneDecision):
    """The refused change to leave out, as the lane's error names it."""

    key: str = Field(max_length=2000, pattern=r"^([0-9a-f]{2})*$|^sha256:[0-9a-f]{64}$", description="in hex or hashed")
    commit_ts: str = Field(pattern=TSO)


ShownError = Annotated[
    dict[str, Any],
    Field(
        description="its `code` and `message`, and facts of it",
        examples=[{"code": "TS-1031", "message": "the destination refuses the row"}],
    ),
]


class ShownLane(BaseModel):
    """A part of a changefeed, written by one worker."""

    lane: int
    scope: str = Field(description="its keys or tables", examples=["tables 1 of 2"])
    worker: WorkerName | None
    epoch: int
    checkpoint_ts: Tso = Field(description="the destination has everything at or below")
    attempted_ts: Tso = Field(description="and may have anything up to here")
    catching_up: bool = Field(description="keys may show older versions than before")
    waits_s: Seconds = Field(description="about how long the owner before can still write")
    unmoved_s: Seconds = Field(description="since its checkpoint rose")
    rows: int
    bytes: int
    tries: int = Field(description="failed ones of the current stretch")
    stopped: bool = Field(description="by a refused change: retry or skip it")
    error: ShownError | None


class ShownTable(BaseModel):
    """A table that a changefeed writes."""

    database: str = Field(examples=["shop"])
    table: str = Field(examples=["customers"])
    lane: int = Field(description="the lane that writes it")
    checkpoint_ts: Tso = Field(description="of the lane")
    has_key: bool = Field(description="without a key its changes are delivered at least once")
    stopped: bool = Field(description="by a refused change: retry or skip it")
    error: ShownError | None = Field(description="of the lane")


class ShownTables(BaseModel):
    """The tables that a changefeed writes."""

    items: list[ShownTable]


class Rpo(BaseModel):
    """What would be lost if the source were lost now, in seconds: the sum of its parts."""

    total_s: Seconds
    resolved_ts_s: Seconds = Field(description="from now to the served watermark")
    queue_s: Seconds = Field(description="from there to what is being written")
    destination_s: Seconds = Field(description="from there to the checkpoint")


class ChangefeedName(BaseModel):
    """What comes first in a changefeed's answer."""

    changefeed_id: str = Field(examples=["lake"])


class Changefeed(ReaderFacts, ChangefeedName):
    """What the service writes to a destination."""

    sink_uri: str = Field(description="without secrets", examples=["s3://lake/tenant-1"])
    dead_letter: str = Field(
        description="where refused changes are written, without secrets; empty = nowhere",
        examples=["s3://lake/refused"],
    )
    dead_letters: int = Field(description="refused changes that were written there")
    keys: dict[str, str] = Field(
        description="the entries of a keyspace that are replicated", examples=[{"key_prefix": "user:"}]
    )
    rpo: Rpo | None = Field(description="of a changefeed that runs, once its log has begun")
    catching_up: bool = Field(description="keys may show older versions than before, never older than the checkpoint")
    lanes: list[ShownLane]
    error: ShownError | None = Field(description="why it is failed, or the first error of a lane")
    notes: list[str] = Field(
        default=[],
        description="of a creation or an update: what to know of the destination",
        examples=[["Nothing identifies the rows of shop.bad: their changes are delivered at least once."]],
    )


class Changefeeds(BaseModel):
    """The changefeeds of a tenant."""

    items: list[Changefeed]


def changefeed_router(catalog: Catalog, registry: SchemaRegistry, clock: Clock, outbound: Terms) -> APIRouter:
    """The routes over this catalog. `outbound`: what the deployment allows for all tenants."""
    routes = APIRouter(tags=["retention"])
    base = "/v1/clusters/{cluster_id}/tenants/{tenant_id}/changefeeds"
    one = f"{base}/{{changefeed_id}}"
    run = ChangefeedControl(catalog=catalog, clock=clock, registry=registry, outbound=outbound)

    @route(routes, "GET", base, Right.LOOK, "List changefeeds")
    def list_changefeeds(tenant: PathTenant) -> Changefeeds:
        return Changefeeds(items=[Changefeed(**facts) for facts in changefeeds_of(catalog, known(catalog, tenant))])

    @route(
        routes, "POST", base, Right.TENANT, "Create a changefeed", status_code=201,
        responses={200: {"model": Changefeed, "description": "it is registered alike already"}},
    )  # fmt: skip
    def create_changefeed(tenant: PathTenant, new: NewChangefeed, request: Request, response: Response) -> Changefeed:
        tenant, name = known(catalog, tenant), new.changefeed_id
        note_target(request, changefeed_id=name)
        start = start_of(catalog, tenant, CHANGEFEEDS, name, new.start_ts)
        given = ChangefeedSettings(
            sink_uri=new.sink_uri,
            dead_letter=new.dead_letter,
            filters=texts(new.filters),
            keys=texts(new.keys),
            target_ts=timestamp(new.target_ts),
            hold_ms=int(new.idle_limit_s * 1000),
            operated=_operates(request),
        )
        made, notes = run.create(
            tenant, name, start, given, lanes=new.lanes, actor=actor_of(request), sees=_sees(request)
        )
        response.status_code = 201 if made else 200
        return _answer(catalog, tenant, name, notes)

    @route(routes, "GET", one, Right.LOOK, "Get a changefeed")
    def get_changefeed(tenant: PathTenant, changefeed_id: Name) -> Changefeed:
        return _answer(catalog, known(catalog, tenant), changefeed_id)

    @route(routes, "DELETE", one, Right.TENANT, "Remove a changefeed", status_code=204)
    def remove_changefeed(tenant: PathTenant, changefeed_id: Name) -> Response:
        changefeeds.remove_changefeed(catalog, known(catalog, tenant), changefeed_id)
        return Response(status_code=204)

    @route(routes, "GET", f"{one}/tables", Right.LOOK, "List the tables of a changefeed")
    def list_changefeed_tables(tenant: PathTenant, changefeed_id: Name) -> ShownTables:
        tables = run.tables(known(catalog, tenant), changefeed_id)
        return ShownTables(items=[ShownTable(**table) for table in tables])

    _deeds(catalog, run, routes, one)
    return routes


def _deeds(catalog: Catalog, run: ChangefeedControl, routes: APIRouter, one: str) -> None:
    @route(routes, "POST", f"{one}:pause", Right.TENANT, "Pause a changefeed")
    def pause_changefeed(tenant: PathTenant, changefeed_id: Name) -> Changefeed:
        CHANGEFEEDS.switch(catalog, known(catalog, tenant), changefeed_id, ReaderState.STOPPED)
        return _answer(catalog, tenant, changefeed_id)

    @route(routes, "POST", f"{one}:resume", Right.TENANT, "Resume a changefeed")
    def resume_changefeed(
        tenant: PathTenant, changefeed_id: Name, request: Request, how: Resumption | None = None
    ) -> Changefeed:
        to_ts = None if how is None or how.checkpoint_ts is None else timestamp(how.checkpoint_ts)
        run.resume(known(catalog, tenant), changefeed_id, to_ts, actor=actor_of(request), sees=_sees(request))
        return _answer(catalog, tenant, changefeed_id)

    @route(routes, "POST", f"{one}:update", Right.TENANT, "Change a paused changefeed")
    def update_changefeed(
        tenant: PathTenant, changefeed_id: Name, new: ChangefeedUpdate, request: Request
    ) -> Changefeed:
        tenant = known(catalog, tenant)
        before = CHANGEFEEDS.get(catalog, tenant, changefeed_id)
        given = ChangefeedSettings(
            sink_uri=new.sink_uri or before.sink_uri,
            dead_letter=before.dead_letter if new.dead_letter is None else new.dead_letter,
            filters=orjson.loads(before.filters) if new.filters is None else texts(new.filters),
            keys=orjson.loads(before.options)["keys"] if new.keys is None else texts(new.keys),
            target_ts=before.target_ts if new.target_ts is None else timestamp(new.target_ts),
            hold_ms=before.idle_limit_ms if new.idle_limit_s is None else int(new.idle_limit_s * 1000),
            operated=_operates(request),
        )
        notes = run.update(tenant, changefeed_id, given, actor=actor_of(request), sees=_sees(request))
        return _answer(catalog, tenant, changefeed_id, notes)

    @route(routes, "POST", f"{one}:rebalance", Right.TENANT, "Cut a changefeed anew by its destination's regions")
    def rebalance_changefeed(tenant: PathTenant, changefeed_id: Name, how: Rebalance | None = None) -> Changefeed:
        tenant = known(catalog, tenant)
        run.rebalance(tenant, changefeed_id, None if how is None else how.lanes)
        return _answer(catalog, tenant, changefeed_id)

    @route(routes, "POST", f"{one}:retry", Right.TENANT, "Try a refused change again")
    def retry_refused_change(tenant: PathTenant, changefeed_id: Name, which: LaneDecision) -> Changefeed:
        tenant = known(catalog, tenant)
        run.decide(tenant, changefeed_id, which.lane, leave_out=False)
        return _answer(catalog, tenant, changefeed_id)

    @route(routes, "POST", f"{one}:skip", Right.TENANT, "Leave a refused change out")
    def skip_refused_change(tenant: PathTenant, changefeed_id: Name, which: LeftOut) -> Changefeed:
        tenant = known(catalog, tenant)
        change = which.key, timestamp(which.commit_ts)
        run.decide(tenant, changefeed_id, which.lane, leave_out=True, change=change)
        return _answer(catalog, tenant, changefeed_id)


def _operates(request: Request) -> bool:
    return Right.OPERATE in principal_of(request).rights


def _sees(request: Request) -> Sees:
    return principal_of(request).sees


def _answer(catalog: Catalog, tenant: Tenant, name: str, notes: Sequence[str] = ()) -> Changefeed:
    return Changefeed(**changefeed_facts(catalog, CHANGEFEEDS.get(catalog, tenant, name)), notes=list(notes))
