"""Routes of changefeeds: consumers that members read, and replications that the service writes.

    GET, POST            /v1/clusters/{c}/tenants/{t}/changefeeds
    GET, PATCH, DELETE   .../changefeeds/{id}                   PATCH moves a consumer's checkpoint
    POST                 .../changefeeds/{id}:pause, :resume, :update, :rebalance, :retry, :skip

Any process answers them from the catalog; conventions as in `metaserver.routes`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import orjson
from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, Field

from metaserver.admin_routes import actor_of
from metaserver.replications import Replications, Wanted, replication_of
from metaserver.routing import route, timestamp
from reading.filters import parse_filter
from schemas.registry.schema_registry import SchemaRegistry
from tistream.admin.consumers import consumers_of, one_consumer
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.changefeeds import (
    ChangefeedRow,
    FeedState,
    add_changefeed,
    get_changefeed,
    list_changefeeds,
    move_checkpoint,
    remove_changefeed,
    switch_changefeed,
)
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.catalog.work.replications import Sees
from tistream.catalog.work.tasks import served_watermark
from tistream.clock import Clock
from tistream.errors import InvalidInput, NotAllowed
from tistream.http.auth.access import principal_of
from tistream.http.auth.core.roles import Right
from tistream.ids import Tenant
from tistream.limits import CONSUMER_IDLE_HOURS_DEFAULT, CONSUMER_PARTITIONS_MAX, REPLICATION_HOLD_HOURS

_INT_MAX = (1 << 63) - 1
_SPAN_S_MAX = 3_600_000_000
_LANES_MAX = 256
_Id = Annotated[int, Path(ge=0, le=_INT_MAX)]
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
_Name = Annotated[str, Path(pattern=_NAME)]
_TSO = r"^\d{1,19}$"
_Filters = dict[Literal["tables", "columns", "ops", "where", "changed", "event_filters"], str]
_Keys = dict[Literal["key_format", "start_key", "end_key", "key_prefix", "key_pattern", "value_pattern"], str]


class NewChangefeed(BaseModel):
    """A consumer to register, or with `sink_uri` a replication to create."""

    changefeed_id: str = Field(pattern=_NAME)
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


class Checkpoint(BaseModel):
    """A consumer's checkpoint."""

    checkpoint_ts: str = Field(pattern=_TSO, description="it has everything at or below it; never falls")


class ShownPartition(BaseModel):
    """A part of a consumer's changes."""

    partition: int
    member: str | None
    epoch: int
    checkpoint_ts: str
    lag_s: float


class ShownLane(BaseModel):
    """A part of a replication, written by one worker."""

    lane: int
    scope: str = Field(description="its keys or tables")
    worker: str | None
    epoch: int
    checkpoint_ts: str = Field(description="the destination has everything at or below")
    attempted_ts: str = Field(description="and may have anything up to here")
    catching_up: bool = Field(description="keys may show older versions than before")
    waits_s: float = Field(description="about how long the owner before can still write")
    unmoved_s: float = Field(description="since its checkpoint rose")
    rows: int
    bytes: int
    tries: int = Field(description="failed ones of the current stretch")
    stopped: bool = Field(description="by a refused change: retry or skip it")
    error: dict[str, Any] | None


class ShownTable(BaseModel):
    """A table that a replication writes."""

    database: str
    table: str
    lane: int = Field(description="the lane that writes it")
    checkpoint_ts: str = Field(description="of the lane")
    has_key: bool = Field(description="without a key its changes are delivered at least once")
    stopped: bool = Field(description="by a refused change: retry or skip it")
    error: dict[str, Any] | None = Field(description="of the lane")


class Rpo(BaseModel):
    """What would be lost if the source were lost now, in seconds: the sum of its parts."""

    total_s: float
    resolved_ts_s: float = Field(description="from now to the served watermark")
    queue_s: float = Field(description="from there to what is being written")
    destination_s: float = Field(description="from there to the checkpoint")


class Changefeed(BaseModel):
    """A registered consumer, or a replication."""

    changefeed_id: str
    state: FeedState
    start_ts: str
    checkpoint_ts: str
    checkpoint_time: str | None = Field(description="null before the log begins")
    target_ts: str
    filters: dict[str, str]
    created_time: str
    seen_time: str
    lag_s: float = Field(description="from the checkpoint to the served watermark")
    idle_s: float = Field(description="since its last request, or since its checkpoint moved")
    idle_limit_s: float
    holds_log: bool
    members: list[str] = Field(description="those whose lease has not been taken over")
    leases_s: dict[str, float] = Field(description="what is left of the lease of each; below 0 it has ended")
    partitions: list[ShownPartition]
    sink_uri: str = Field(description="without secrets; empty = a consumer")
    dead_letter: str = Field(description="where refused changes are written, without secrets; empty = nowhere")
    dead_letters: int = Field(description="refused changes that were written there")
    keys: dict[str, str] = Field(description="the entries of a keyspace that are replicated")
    rpo: Rpo | None = Field(description="of a replication that runs, once its log has begun")
    catching_up: bool = Field(description="keys may show older versions than before, never older than the checkpoint")
    lanes: list[ShownLane]
    error: dict[str, Any] | None = Field(description="why it is failed, or the first error of a lane")
    notes: list[str] = Field(default=[], description="of a creation or an update: what to know of the destination")


def changefeed_router(catalog: Catalog, registry: SchemaRegistry, clock: Clock) -> APIRouter:
    """The routes over this catalog."""
    routes = APIRouter(tags=["retention"])
    base = "/v1/clusters/{cluster_id}/tenants/{tenant_id}/changefeeds"
    one = f"{base}/{{changefeed_id}}"
    run = Replications(catalog=catalog, clock=clock, registry=registry)

    @route(routes, "GET", base, Right.LOOK, "list_changefeeds", "List changefeeds")
    def changefeeds(cluster_id: _Id, tenant_id: _Id) -> dict[str, list[Changefeed]]:
        tenant = _known(catalog, cluster_id, tenant_id)
        return {"items": [Changefeed(**found) for found in consumers_of(catalog, tenant)]}

    @route(
        routes, "POST", base, Right.READ, "create_changefeed", "Register a consumer or create a replication",
        status_code=201, responses={200: {"model": Changefeed, "description": "it is registered alike already"}},
    )  # fmt: skip
    def create(cluster_id: _Id, tenant_id: _Id, new: NewChangefeed, request: Request, response: Response) -> Changefeed:
        tenant = _known(catalog, cluster_id, tenant_id)
        start = _start_of(catalog, tenant, new)
        notes: list[str] = []
        if new.sink_uri:
            _check_may_write(request, new.sink_uri, new.dead_letter)
            wanted = Wanted(
                sink_uri=new.sink_uri,
                dead_letter=new.dead_letter,
                filters=_texts(new.filters),
                keys=_texts(new.keys),
                target_ts=timestamp(new.target_ts),
                hold_ms=_ms(new.idle_limit_s, REPLICATION_HOLD_HOURS),
            )
            made, found = run.create(
                tenant, new.changefeed_id, start, wanted, lanes=new.lanes, actor=actor_of(request), sees=_seen(request)
            )
            notes = list(found)
        else:
            made = _add_consumer(catalog, tenant, start, new)
        response.status_code = 201 if made else 200
        return _one_shown(catalog, get_changefeed(catalog, tenant, new.changefeed_id), notes)

    @route(routes, "GET", one, Right.LOOK, "get_changefeed", "Get a changefeed")
    def read(cluster_id: _Id, tenant_id: _Id, changefeed_id: _Name) -> Changefeed:
        return _one_shown(catalog, get_changefeed(catalog, _known(catalog, cluster_id, tenant_id), changefeed_id))

    @route(routes, "PATCH", one, Right.READ, "move_checkpoint", "Advance a consumer's checkpoint")
    def checkpoint(cluster_id: _Id, tenant_id: _Id, changefeed_id: _Name, new: Checkpoint) -> Changefeed:
        tenant = _known(catalog, cluster_id, tenant_id)
        return _one_shown(catalog, move_checkpoint(catalog, tenant, changefeed_id, timestamp(new.checkpoint_ts)))

    _state_routes(catalog, run, routes, one)
    _replication_routes(catalog, run, routes, one)
    return routes


def _state_routes(catalog: Catalog, run: Replications, routes: APIRouter, one: str) -> None:
    @route(routes, "DELETE", one, Right.TENANT, "remove_changefeed", "Remove a changefeed", status_code=204)
    def remove(cluster_id: _Id, tenant_id: _Id, changefeed_id: _Name) -> Response:
        remove_changefeed(catalog, _known(catalog, cluster_id, tenant_id), changefeed_id)
        return Response(status_code=204)

    @route(routes, "POST", f"{one}:pause", Right.TENANT, "pause_changefeed", "Pause a changefeed")
    def pause(cluster_id: _Id, tenant_id: _Id, changefeed_id: _Name) -> Changefeed:
        tenant = _known(catalog, cluster_id, tenant_id)
        return _one_shown(catalog, switch_changefeed(catalog, tenant, changefeed_id, FeedState.STOPPED))

    @route(routes, "POST", f"{one}:resume", Right.TENANT, "resume_changefeed", "Resume a changefeed")
    def resume(
        cluster_id: _Id, tenant_id: _Id, changefeed_id: _Name, request: Request, how: Resumption | None = None
    ) -> Changefeed:
        tenant = _known(catalog, cluster_id, tenant_id)
        to_ts = None if how is None or how.checkpoint_ts is None else timestamp(how.checkpoint_ts)
        if get_changefeed(catalog, tenant, changefeed_id).is_replication:
            run.resume(tenant, changefeed_id, to_ts, actor=actor_of(request), sees=_seen(request))
        elif to_ts is not None:
            raise InvalidInput("A consumer is moved with :reset.", option="checkpoint_ts")
        else:
            switch_changefeed(catalog, tenant, changefeed_id, FeedState.NORMAL)
        return _one_shown(catalog, get_changefeed(catalog, tenant, changefeed_id))


def _replication_routes(catalog: Catalog, run: Replications, routes: APIRouter, one: str) -> None:
    @route(routes, "POST", f"{one}:update", Right.TENANT, "update_changefeed", "Change a paused replication")
    def update(
        cluster_id: _Id, tenant_id: _Id, changefeed_id: _Name, new: ReplicationChange, request: Request
    ) -> Changefeed:
        tenant = _known(catalog, cluster_id, tenant_id)
        before = replication_of(catalog, tenant, changefeed_id)
        _check_may_write(request, new.sink_uri or "", new.dead_letter or "")
        wanted = Wanted(
            sink_uri=new.sink_uri or before.sink_uri,
            dead_letter=before.dead_letter if new.dead_letter is None else new.dead_letter,
            filters=orjson.loads(before.filters) if new.filters is None else _texts(new.filters),
            keys=orjson.loads(before.options)["keys"] if new.keys is None else _texts(new.keys),
            target_ts=before.target_ts if new.target_ts is None else timestamp(new.target_ts),
            hold_ms=before.idle_limit_ms if new.idle_limit_s is None else int(new.idle_limit_s * 1000),
        )
        notes = run.update(tenant, changefeed_id, wanted, actor=actor_of(request), sees=_seen(request))
        return _one_shown(catalog, get_changefeed(catalog, tenant, changefeed_id), notes)

    @route(routes, "GET", f"{one}/tables", Right.LOOK, "list_changefeed_tables", "List the tables of a replication")
    def tables(cluster_id: _Id, tenant_id: _Id, changefeed_id: _Name) -> dict[str, list[ShownTable]]:
        tenant = _known(catalog, cluster_id, tenant_id)
        return {"items": [ShownTable(**found) for found in run.tables(tenant, changefeed_id)]}

    @route(
        routes, "POST", f"{one}:rebalance", Right.TENANT, "rebalance_changefeed",
        "Cut a replication anew by its destination's regions",
    )  # fmt: skip
    def rebalance(cluster_id: _Id, tenant_id: _Id, changefeed_id: _Name, how: Rebalance | None = None) -> Changefeed:
        tenant = _known(catalog, cluster_id, tenant_id)
        run.rebalance(tenant, changefeed_id, None if how is None else how.lanes)
        return _one_shown(catalog, get_changefeed(catalog, tenant, changefeed_id))

    @route(routes, "POST", f"{one}:retry", Right.TENANT, "retry_refused_change", "Try a refused change again")
    def retry(cluster_id: _Id, tenant_id: _Id, changefeed_id: _Name, which: LaneDecision) -> Changefeed:
        tenant = _known(catalog, cluster_id, tenant_id)
        run.decide(tenant, changefeed_id, which.lane, leave_out=False)
        return _one_shown(catalog, get_changefeed(catalog, tenant, changefeed_id))

    @route(routes, "POST", f"{one}:skip", Right.TENANT, "skip_refused_change", "Leave a refused change out")
    def leave_out(cluster_id: _Id, tenant_id: _Id, changefeed_id: _Name, which: LaneDecision) -> Changefeed:
        tenant = _known(catalog, cluster_id, tenant_id)
        run.decide(tenant, changefeed_id, which.lane, leave_out=True)
        return _one_shown(catalog, get_changefeed(catalog, tenant, changefeed_id))


def _start_of(catalog: Catalog, tenant: Tenant, new: NewChangefeed) -> int | None:
    """The start as a TSO; None = that of the log. A replication may be created before the log has begun."""
    word, served = new.start_ts, served_watermark(catalog, tenant)
    if not served and not new.sink_uri:
        raise InvalidInput("the tenant awaits its schema snapshot: its log has not started")
    if word == "earliest":
        return None
    if word != "latest":
        return timestamp(word)
    known = {row.changefeed_id: row for row in list_changefeeds(catalog, tenant)}.get(new.changefeed_id)
    return served if known is None else known.start_ts  # the latter: a repeat after a lost reply


def _add_consumer(catalog: Catalog, tenant: Tenant, start: int | None, new: NewChangefeed) -> bool:
    if new.keys or new.lanes is not None or new.dead_letter:
        raise InvalidInput(
            "Without sink_uri this is a consumer, which has no keys, lanes or dead letters.", option="sink-uri"
        )
    parse_filter(_texts(new.filters))
    return add_changefeed(
        catalog,
        tenant,
        new.changefeed_id,
        start,
        target_ts=timestamp(new.target_ts),
        filters=orjson.dumps(new.filters, option=orjson.OPT_SORT_KEYS).decode(),
        partitions=new.partitions,
        idle_limit_ms=_ms(new.idle_limit_s, CONSUMER_IDLE_HOURS_DEFAULT),
    )


def _check_may_write(request: Request, *uris: str) -> None:
    """The service writes for its operators alone to its own disks, and elsewhere for a tenant's administrators."""
    for uri in filter(None, uris):
        needed = Right.OPERATE if urlsplit(uri).scheme == "file" else Right.TENANT
        if needed not in principal_of(request).rights:
            raise NotAllowed(f"This key may not let the service write there: it needs the right '{needed}'.")


def _seen(request: Request) -> Sees:
    return principal_of(request).sees


def _texts(given: Any) -> dict[str, str]:
    return {str(name): text for name, text in given.items()}


def _ms(seconds: float | None, default_hours: float) -> int:
    return int((default_hours * 3600 if seconds is None else seconds) * 1000)


def _known(catalog: Catalog, cluster_id: int, tenant_id: int) -> Tenant:
    return get_tenant(catalog, Tenant(cluster_id, tenant_id)).tenant


def _one_shown(catalog: Catalog, row: ChangefeedRow, notes: Any = ()) -> Changefeed:
    return Changefeed(**one_consumer(catalog, row), notes=list(notes))
