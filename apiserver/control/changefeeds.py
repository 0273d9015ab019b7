"""Routes of changefeeds: consumers that members read, and replications that the service writes.

    GET, POST            /v1/clusters/{c}/tenants/{t}/changefeeds
    GET, PATCH, DELETE   .../changefeeds/{id}                   PATCH moves a consumer's checkpoint
    POST                 .../changefeeds/{id}:pause, :resume, :update, :rebalance, :retry, :skip

Any process answers them from the catalog; conventions as in `apiserver.control.registration`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from apiserver.answers.fields import Seconds, Time, Tso, WorkerName
from apiserver.control.admin import actor_of
from apiserver.control.replications import Replications, Wanted, replication_of
from apiserver.control.routing import route, timestamp
from reading.filters import TEXT_MAX, parse_filter
from schemas.registry.schema_registry import SchemaRegistry
from tistream.admin.consumers import consumers_of, one_consumer
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy import changefeeds
from tistream.catalog.tenancy.changefeeds import ChangefeedRow, FeedState
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.catalog.work.replications import Sees
from tistream.catalog.work.tasks import served_watermark
from tistream.clock import Clock
from tistream.errors import InvalidInput, NotAllowed
from tistream.http.auth.access import principal_of
from tistream.http.auth.core.roles import Right
from tistream.http.parameters import NAME, Name, PathTenant
from tistream.ids import Tenant
from tistream.limits import (
    CONSUMER_IDLE_HOURS_DEFAULT,
    CONSUMER_PARTITIONS_MAX,
    KEY_CHARS_MAX,
    REPLICATION_HOLD_HOURS,
)
from tistream.outbound.policy import Terms

_SPAN_S_MAX = 3_600_000_000
_LANES_MAX = 256
_TSO = r"^\d{1,19}$"
_FilterText = Annotated[str, Field(max_length=TEXT_MAX)]
_KeyText = Annotated[str, Field(max_length=KEY_CHARS_MAX)]
_Filters = dict[Literal["tables", "columns", "ops", "where", "changed", "event_filters"], _FilterText]
_Keys = dict[Literal["key_format", "start_key", "end_key", "key_prefix", "key_pattern", "value_pattern"], _KeyText]


class NewChangefeed(BaseModel):
    """A consumer to register, or with `sink_uri` a replication to create."""

    changefeed_id: str = Field(pattern=NAME)
    start_ts: str = Field(
        default="latest", pattern=r"^(\d{1,19}|earliest|latest)$", description="a TSO, `earliest` or `latest`"
    )
    target_ts: str = Field(default="0", pattern=_TSO, description="end; 0 = none")
    filters: _Filters = Field(default={}, description="filters of its pulls, as the query of a pull has them")
    partitions: int = Field(
        default=1, ge=1, le=CONSUMER_PARTITIONS_MAX, description="members that can share a consumer; a table is in one"
    )
    idle_limit_s: float | None = Field(
        default=None,
        ge=0,
        le=_SPAN_S_MAX,
        description="without a request of a consumer, or a move of a replication's checkpoint, for so long, it no "
        f"longer holds the log; 0 = it holds for ever. {CONSUMER_IDLE_HOURS_DEFAULT} and {REPLICATION_HOLD_HOURS} "
        "hours unless given",
    )
    sink_uri: str = Field(default="", max_length=8000, description="where the service writes it: tikv, s3, file")
    dead_letter: str = Field(
        default="", max_length=8000,
        description="where refused changes are written: s3, file; without, an operator decides about each",
    )  # fmt: skip
    keys: _Keys = Field(default={}, description="the entries of a keyspace that are replicated")
    lanes: int | None = Field(default=None, ge=1, le=_LANES_MAX, description="parts that are written side by side")


class ReplicationChange(BaseModel):
    """Settings of a replication to change; those that are not given stay."""

    sink_uri: str | None = Field(default=None, max_length=8000)
    dead_letter: str | None = Field(default=None, max_length=8000, description="empty = none any more")
    target_ts: str | None = Field(default=None, pattern=_TSO)
    filters: _Filters | None = None
    keys: _Keys | None = None
    idle_limit_s: float | None = Field(default=None, ge=0, le=_SPAN_S_MAX)


class Resumption(BaseModel):
    """How to resume."""

    checkpoint_ts: str | None = Field(
        default=None, pattern=_TSO, description="a replication continues above it, also further back"
    )


class Rebalance(BaseModel):
    """How to cut a replication anew."""

    lanes: int | None = Field(default=None, ge=1, le=_LANES_MAX, description="as many as now unless given")


class LaneDecision(BaseModel):
    """The lane that waits for a decision."""

    lane: int = Field(ge=0)


class LeftOut(LaneDecision):
    """The refused change to leave out, as the lane's error names it."""

    key: str = Field(max_length=2000, pattern=r"^([0-9a-f]{2})*$|^sha256:[0-9a-f]{64}$", description="in hex or hashed")
    commit_ts: str = Field(pattern=_TSO)


class Checkpoint(BaseModel):
    """A consumer's checkpoint."""

    checkpoint_ts: str = Field(pattern=_TSO, description="it has everything at or below it; never falls")


class ShownPartition(BaseModel):
    """A part of a consumer's changes."""

    partition: int
    member: str | None = Field(description="who reads it; null = no member", examples=["loader-1"])
    epoch: int = Field(description="rises with each member that holds it")
    checkpoint_ts: Tso
    lag_s: Seconds = Field(description="from its checkpoint to the served watermark")


ShownError = Annotated[
    dict[str, Any],
    Field(
        description="its `code` and `message`, and facts of it",
        examples=[{"code": "TS-1031", "message": "the destination refuses the row"}],
    ),
]


class ShownLane(BaseModel):
    """A part of a replication, written by one worker."""

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
    """A table that a replication writes."""

    database: str = Field(examples=["shop"])
    table: str = Field(examples=["customers"])
    lane: int = Field(description="the lane that writes it")
    checkpoint_ts: Tso = Field(description="of the lane")
    has_key: bool = Field(description="without a key its changes are delivered at least once")
    stopped: bool = Field(description="by a refused change: retry or skip it")
    error: ShownError | None = Field(description="of the lane")


class ShownTables(BaseModel):
    """The tables that a replication writes."""

    items: list[ShownTable]


class Rpo(BaseModel):
    """What would be lost if the source were lost now, in seconds: the sum of its parts."""

    total_s: Seconds
    resolved_ts_s: Seconds = Field(description="from now to the served watermark")
    queue_s: Seconds = Field(description="from there to what is being written")
    destination_s: Seconds = Field(description="from there to the checkpoint")


class Changefeed(BaseModel):
    """A registered consumer, or a replication."""

    changefeed_id: str = Field(examples=["warehouse"])
    state: FeedState
    start_ts: Tso
    checkpoint_ts: Tso
    checkpoint_time: Time | None = Field(description="null before the log begins")
    target_ts: Tso = Field(description="where it ends; 0 = nowhere")
    filters: dict[str, str] = Field(examples=[{"tables": "shop.*"}])
    created_time: Time
    seen_time: Time = Field(description="of its last request, or when its checkpoint last moved")
    lag_s: Seconds = Field(description="from the checkpoint to the served watermark")
    idle_s: Seconds = Field(description="since its last request, or since its checkpoint moved or was the watermark")
    idle_limit_s: Seconds = Field(description="idle for longer, it no longer holds the log; 0 = it holds for ever")
    holds_log: bool
    members: list[str] = Field(description="those whose lease has not been taken over", examples=[["loader-1"]])
    leases_s: dict[str, float] = Field(
        description="seconds left of the lease of each; below 0 it has ended", examples=[{"loader-1": 42.0}]
    )
    partitions: list[ShownPartition]
    sink_uri: str = Field(description="without secrets; empty = a consumer", examples=["s3://lake/tenant-1"])
    dead_letter: str = Field(
        description="where refused changes are written, without secrets; empty = nowhere",
        examples=["s3://lake/refused"],
    )
    dead_letters: int = Field(description="refused changes that were written there")
    keys: dict[str, str] = Field(
        description="the entries of a keyspace that are replicated", examples=[{"key_prefix": "user:"}]
    )
    rpo: Rpo | None = Field(description="of a replication that runs, once its log has begun")
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
    run = Replications(catalog=catalog, clock=clock, registry=registry, outbound=outbound)

    @route(routes, "GET", base, Right.LOOK, "List changefeeds")
    def list_changefeeds(tenant: PathTenant) -> Changefeeds:
        tenant = _known(catalog, tenant)
        return Changefeeds(items=[Changefeed(**row) for row in consumers_of(catalog, tenant)])

    @route(
        routes, "POST", base, Right.READ, "Register a consumer or create a replication", status_code=201,
        responses={200: {"model": Changefeed, "description": "it is registered alike already"}},
    )  # fmt: skip
    def create_changefeed(tenant: PathTenant, new: NewChangefeed, request: Request, response: Response) -> Changefeed:
        tenant = _known(catalog, tenant)
        start = _start_of(catalog, tenant, new)
        notes: list[str] = []
        if new.sink_uri:
            _check_may_write(request)
            given = Wanted(
                sink_uri=new.sink_uri,
                dead_letter=new.dead_letter,
                filters=_texts(new.filters),
                keys=_texts(new.keys),
                target_ts=timestamp(new.target_ts),
                hold_ms=_ms(new.idle_limit_s, REPLICATION_HOLD_HOURS),
                operated=_operates(request),
            )
            made, said = run.create(
                tenant, new.changefeed_id, start, given, lanes=new.lanes, actor=actor_of(request), sees=_seen(request)
            )
            notes = list(said)
        else:
            _check_may_hold(request, new.idle_limit_s)
            made = _add_consumer(catalog, tenant, start, new)
        response.status_code = 201 if made else 200
        return _one_shown(catalog, changefeeds.get_changefeed(catalog, tenant, new.changefeed_id), notes)

    @route(routes, "GET", one, Right.LOOK, "Get a changefeed")
    def get_changefeed(tenant: PathTenant, changefeed_id: Name) -> Changefeed:
        return _one_shown(catalog, changefeeds.get_changefeed(catalog, _known(catalog, tenant), changefeed_id))

    @route(routes, "PATCH", one, Right.READ, "Advance a consumer's checkpoint")
    def move_checkpoint(tenant: PathTenant, changefeed_id: Name, new: Checkpoint) -> Changefeed:
        tenant = _known(catalog, tenant)
        return _one_shown(
            catalog, changefeeds.move_checkpoint(catalog, tenant, changefeed_id, timestamp(new.checkpoint_ts))
        )

    _state_routes(catalog, run, routes, one)
    _replication_routes(catalog, run, routes, one)
    return routes


def _state_routes(catalog: Catalog, run: Replications, routes: APIRouter, one: str) -> None:
    @route(routes, "DELETE", one, Right.TENANT, "Remove a changefeed", status_code=204)
    def remove_changefeed(tenant: PathTenant, changefeed_id: Name) -> Response:
        changefeeds.remove_changefeed(catalog, _known(catalog, tenant), changefeed_id)
        return Response(status_code=204)

    @route(routes, "POST", f"{one}:pause", Right.TENANT, "Pause a changefeed")
    def pause_changefeed(tenant: PathTenant, changefeed_id: Name) -> Changefeed:
        tenant = _known(catalog, tenant)
        return _one_shown(catalog, changefeeds.switch_changefeed(catalog, tenant, changefeed_id, FeedState.STOPPED))

    @route(routes, "POST", f"{one}:resume", Right.TENANT, "Resume a changefeed")
    def resume_changefeed(
        tenant: PathTenant, changefeed_id: Name, request: Request, how: Resumption | None = None
    ) -> Changefeed:
        tenant = _known(catalog, tenant)
        to_ts = None if how is None or how.checkpoint_ts is None else timestamp(how.checkpoint_ts)
        if changefeeds.get_changefeed(catalog, tenant, changefeed_id).is_replication:
            run.resume(tenant, changefeed_id, to_ts, actor=actor_of(request), sees=_seen(request))
        elif to_ts is not None:
            raise InvalidInput("A consumer is moved with :reset.", option="checkpoint_ts")
        else:
            changefeeds.switch_changefeed(catalog, tenant, changefeed_id, FeedState.NORMAL)
        return _one_shown(catalog, changefeeds.get_changefeed(catalog, tenant, changefeed_id))


def _replication_routes(catalog: Catalog, run: Replications, routes: APIRouter, one: str) -> None:
    @route(routes, "POST", f"{one}:update", Right.TENANT, "Change a paused replication")
    def update_changefeed(
        tenant: PathTenant, changefeed_id: Name, new: ReplicationChange, request: Request
    ) -> Changefeed:
        tenant = _known(catalog, tenant)
        before = replication_of(catalog, tenant, changefeed_id)
        _check_may_write(request)
        given = Wanted(
            sink_uri=new.sink_uri or before.sink_uri,
            dead_letter=before.dead_letter if new.dead_letter is None else new.dead_letter,
            filters=orjson.loads(before.filters) if new.filters is None else _texts(new.filters),
            keys=orjson.loads(before.options)["keys"] if new.keys is None else _texts(new.keys),
            target_ts=before.target_ts if new.target_ts is None else timestamp(new.target_ts),
            hold_ms=before.idle_limit_ms if new.idle_limit_s is None else int(new.idle_limit_s * 1000),
            operated=_operates(request),
        )
        notes = run.update(tenant, changefeed_id, given, actor=actor_of(request), sees=_seen(request))
        return _one_shown(catalog, changefeeds.get_changefeed(catalog, tenant, changefeed_id), notes)

    @route(routes, "GET", f"{one}/tables", Right.LOOK, "List the tables of a replication")
    def list_changefeed_tables(tenant: PathTenant, changefeed_id: Name) -> ShownTables:
        tenant = _known(catalog, tenant)
        return ShownTables(items=[ShownTable(**table) for table in run.tables(tenant, changefeed_id)])

    @route(routes, "POST", f"{one}:rebalance", Right.TENANT, "Cut a replication anew by its destination's regions")
    def rebalance_changefeed(tenant: PathTenant, changefeed_id: Name, how: Rebalance | None = None) -> Changefeed:
        tenant = _known(catalog, tenant)
        run.rebalance(tenant, changefeed_id, None if how is None else how.lanes)
        return _one_shown(catalog, changefeeds.get_changefeed(catalog, tenant, changefeed_id))

    @route(routes, "POST", f"{one}:retry", Right.TENANT, "Try a refused change again")
    def retry_refused_change(tenant: PathTenant, changefeed_id: Name, which: LaneDecision) -> Changefeed:
        tenant = _known(catalog, tenant)
        run.decide(tenant, changefeed_id, which.lane, leave_out=False)
        return _one_shown(catalog, changefeeds.get_changefeed(catalog, tenant, changefeed_id))

    @route(routes, "POST", f"{one}:skip", Right.TENANT, "Leave a refused change out")
    def skip_refused_change(tenant: PathTenant, changefeed_id: Name, which: LeftOut) -> Changefeed:
        tenant = _known(catalog, tenant)
        change = which.key, timestamp(which.commit_ts)
        run.decide(tenant, changefeed_id, which.lane, leave_out=True, change=change)
        return _one_shown(catalog, changefeeds.get_changefeed(catalog, tenant, changefeed_id))


def _start_of(catalog: Catalog, tenant: Tenant, new: NewChangefeed) -> int | None:
    """The start as a TSO; None = that of the log. A replication may be created before the log has begun."""
    word, served = new.start_ts, served_watermark(catalog, tenant)
    if not served and not new.sink_uri:
        raise InvalidInput("the tenant awaits its schema snapshot: its log has not started")
    if word == "earliest":
        return None
    if word != "latest":
        return timestamp(word)
    same = {row.changefeed_id: row for row in changefeeds.list_changefeeds(catalog, tenant)}.get(new.changefeed_id)
    return served if same is None else same.start_ts  # the latter: a repeat after a lost reply


def _add_consumer(catalog: Catalog, tenant: Tenant, start: int | None, new: NewChangefeed) -> bool:
    if new.keys or new.lanes is not None or new.dead_letter:
        raise InvalidInput(
            "Without sink_uri this is a consumer, which has no keys, lanes or dead letters.", option="sink-uri"
        )
    parse_filter(_texts(new.filters))
    return changefeeds.add_changefeed(
        catalog,
        tenant,
        new.changefeed_id,
        start,
        target_ts=timestamp(new.target_ts),
        filters=orjson.dumps(new.filters, option=orjson.OPT_SORT_KEYS).decode(),
        partitions=new.partitions,
        idle_limit_ms=_ms(new.idle_limit_s, CONSUMER_IDLE_HOURS_DEFAULT),
    )


def _check_may_write(request: Request) -> None:
    """The service writes for a tenant's administrators and for operators; `Replications` says where."""
    if Right.TENANT not in principal_of(request).rights:
        raise NotAllowed(f"This key may not let the service write: it needs the right '{Right.TENANT}'.")


def _check_may_hold(request: Request, idle_limit_s: float | None) -> None:
    """Only who can remove a consumer may let it hold the log for ever, or for longer than consumers do by default."""
    most_s = CONSUMER_IDLE_HOURS_DEFAULT * 3600
    is_longer = idle_limit_s is not None and not 0 < idle_limit_s <= most_s
    if is_longer and Right.TENANT not in principal_of(request).rights:
        raise NotAllowed(
            f"This key may let a consumer hold the log for at most {most_s} s: more needs the right '{Right.TENANT}'.",
            option="idle_limit_s",
        )


def _operates(request: Request) -> bool:
    return Right.OPERATE in principal_of(request).rights


def _seen(request: Request) -> Sees:
    return principal_of(request).sees


def _texts(given: Any) -> dict[str, str]:
    return {str(name): text for name, text in given.items()}


def _ms(seconds: float | None, default_hours: float) -> int:
    return int((default_hours * 3600 if seconds is None else seconds) * 1000)


def _known(catalog: Catalog, tenant: Tenant) -> Tenant:
    return get_tenant(catalog, tenant).tenant


def _one_shown(catalog: Catalog, row: ChangefeedRow, notes: Any = ()) -> Changefeed:
    return Changefeed(**one_consumer(catalog, row), notes=list(notes))
