"""Control routes for pushers and operators.

    POST /v1/tenants                                                     register (idempotent)
    GET  /v1/clusters/{c}/tenants/{t}/push                               where to push, and the tenant's state
    POST /v1/clusters/{c}/tenants/{t}/push:begin                         first contact of a keyspace's pusher
    GET  /v1/clusters/{c}/tenants/{t}/frontier                           where new subscriptions may start
    POST /v1/clusters/{c}/tenants/{t}/stores/{s}/incarnations            issue an incarnation to a pusher
    GET  /v1/clusters/{c}/tenants/{t}/stores/{s}/incarnations            the newest incarnation of a store
    POST /v1/clusters/{c}/tenants/{t}/stores/{s}/incarnations/{i}:end    the stream of a store ends
    POST /v1/clusters/{c}/tenants/{t}/tasks/{id}:retry                   retry a stopped task

Any process, leader or not, answers them from the catalog. 64-bit numbers are text, keys are hexadecimal. Errors are
TiStreamError; the app that includes the router turns them into problem documents.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, Field

from metaserver.activation import is_refused
from metaserver.push_access import CredentialIssuer
from metaserver.push_policy import push_prefixes
from metaserver.routing import route
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.keys import list_keys
from tistream.catalog.tenancy.kinds import Keyspace, TenantKind
from tistream.catalog.tenancy.tenants import TenantRow, TenantState, begin_tenant, get_tenant, register_tenant
from tistream.catalog.work.stores import issue_incarnation, newest_incarnation
from tistream.catalog.work.stream_ends import end_stream
from tistream.catalog.work.tasks import frontier, get_task, list_tasks, retry_task
from tistream.errors import Fenced, InvalidInput, NotFound
from tistream.http.auth.access import Who
from tistream.http.auth.core.roles import Principal, Right, Role
from tistream.http.auth.issue import issue_key
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.objectstore.factory import s3_place
from tistream.objectstore.layout import ProbeKey, buffer_prefix

_INT_MAX = (1 << 63) - 1
_HEX = "^([0-9a-f]{2})*$"
_TENANT = "/v1/clusters/{cluster_id}/tenants/{tenant_id}"
_Id = Annotated[int, Path(ge=0, le=_INT_MAX)]


class NewTenant(BaseModel):
    """A tenant to register."""

    cluster_id: int = Field(ge=0, le=_INT_MAX)
    tenant_id: int = Field(ge=0, le=_INT_MAX)
    kind: TenantKind = Field(TenantKind.TIDB, description="tidb: tables; raw, txn: keys and values of a keyspace")
    keyspace: str | None = Field(
        None, min_length=1, max_length=256, description="of a raw or txn tenant: an id or a name; null = keyspace 0"
    )
    start_key: str = Field("", pattern=_HEX, description="of a range of the keyspace, a user key; hexadecimal")
    end_key: str = Field("", pattern=_HEX, description="hexadecimal; empty = the end of the keyspace")


class Begin(BaseModel):
    """First contact of the pusher of a raw or txn tenant."""

    keyspace_id: int = Field(ge=0, le=0xFF_FFFF)
    start_ts: str = Field("0", pattern=r"^\d{1,19}$", description="of a recording: its first checkpoint")
    upstream_id: str | None = Field(None, pattern=r"^\d{1,19}$", description="PD's id of the cluster")


class BucketAccess(BaseModel):
    """The credentials with which a pusher writes."""

    by: Literal["service", "pusher"] = Field(
        description="service: the service issues session credentials; pusher: it uses its own"
    )
    url: str | None = Field(description="POST here to issue or renew them; null when the service issues none")
    words: str = Field(description="explanation for people")


class Push(BaseModel):
    """Where a pusher writes."""

    object_store: str = Field(description="URL of the bucket")
    prefix: str = Field(description="folder of the tenant's schema snapshots and batch files")
    state: TenantState
    start_ts: str = Field(description="of the first schema snapshot; 0 while the tenant awaits it")
    snapshot_refused: bool = Field(description="every pushed schema snapshot is unusable: push another one")
    kind: TenantKind
    keyspace_id: int | None = Field(description="of a raw or txn tenant; null until its pusher has looked up the name")
    keyspace_name: str | None
    start_key: str = Field(description="of the tenant's keys with mode and keyspace, hexadecimal")
    end_key: str = Field(description="hexadecimal; empty = plus infinity")
    credentials: BucketAccess


class PushBundle(Push):
    """Where a pusher writes, and its key."""

    key: str | None = Field(
        description="API key of role pusher, shown at the first registration only; null also without authentication"
    )
    env: dict[str, str] = Field(description="environment of the pusher")
    check: str = Field(description="command that checks pushing in this environment")
    aws: str | None = Field(
        description="aws-cli command: one put as a pusher does it; null when the store is no bucket"
    )


class RegisteredTenant(BaseModel):
    """A tenant, with the settings of its pushers."""

    cluster_id: int
    tenant_id: int
    state: TenantState
    start_ts: str = Field(description="the log is complete above this; 0 while the tenant awaits its schema snapshot")
    push: PushBundle


class FrontierEntry(BaseModel):
    """Progress of one key range."""

    start_key: str = Field(description="hexadecimal")
    end_key: str = Field(description="hexadecimal; empty = plus infinity")
    durable_ts: str = Field(description="everything at or below it is in the committed log")
    resubscribe_id: int = Field(description="a new value asks pushers to resubscribe the range")


class NewIncarnation(BaseModel):
    """An incarnation of a pusher."""

    incarnation: int
    max_cut_ts: str = Field(description="largest cut_ts of the store; no new file may have a lower one")


class NewestIncarnation(BaseModel):
    """The newest incarnation of a store's pusher."""

    incarnation: int = Field(description="0 when none was issued")


class StreamEnd(BaseModel):
    """The end of a store's stream: a recording has one, a live store has none."""

    end_ts: str = Field(pattern=r"^[1-9]\d{0,18}$", description="the store has no change above it")


class EndedStream(BaseModel):
    """A store whose stream ends."""

    store_id: int
    incarnation: int
    end_ts: str


class RetriedTask(BaseModel):
    """A retried task."""

    task_id: int
    resubscribe_id: int


def control_router(catalog: Catalog, store_url: str, issuer: CredentialIssuer | None = None) -> APIRouter:
    """The routes over this catalog. `store_url`: the bucket's address for pushers; `issuer` of credentials for it, if
    any."""
    routes = APIRouter(tags=["control"])
    base = _TENANT

    def push_of(row: TenantRow) -> Push:
        access = bucket_access(row.tenant, store_url, issuer)
        return Push(
            object_store=store_url,
            prefix=buffer_prefix(row.tenant),
            state=row.state,
            start_ts=str(row.start_ts),
            snapshot_refused=row.state is TenantState.AWAITING_SNAPSHOT and is_refused(catalog, row.tenant),
            kind=row.kind,
            keyspace_id=row.keyspace.id,
            keyspace_name=row.keyspace.name,
            start_key=row.range.start.hex(),
            end_key=row.range.end.hex(),
            credentials=access,
        )

    kms_key_arn = issuer.terms.kms_key_arn if issuer is not None else ""
    _operators_routes(routes, catalog, push_of, lambda tenant: aws_line(tenant, store_url, kms_key_arn))

    @route(routes, "GET", f"{base}/push", Right.PUSH, "get_push", "Where to push")
    def push(cluster_id: _Id, tenant_id: _Id) -> Push:
        return push_of(get_tenant(catalog, Tenant(cluster_id, tenant_id)))

    @route(routes, "GET", f"{base}/frontier", Right.PUSH, "get_frontier", "Where new subscriptions may start")
    def read_frontier(cluster_id: _Id, tenant_id: _Id) -> list[FrontierEntry]:
        row = get_tenant(catalog, Tenant(cluster_id, tenant_id))
        return [
            FrontierEntry(
                start_key=found.range.start.hex(),
                end_key=found.range.end.hex(),
                durable_ts=str(found.durable_ts),
                resubscribe_id=found.resubscribe_id,
            )
            for found in frontier(catalog, row.tenant)
        ]

    @route(
        routes,
        "POST",
        f"{base}/stores/{{store_id}}/incarnations",
        Right.PUSH,
        "issue_incarnation",
        "Issue an incarnation to a store's pusher",
        status_code=201,
    )
    def new_incarnation(cluster_id: _Id, tenant_id: _Id, store_id: _Id) -> NewIncarnation:
        row = get_tenant(catalog, Tenant(cluster_id, tenant_id))
        incarnation, max_cut_ts = issue_incarnation(catalog, row.tenant, store_id)
        return NewIncarnation(incarnation=incarnation, max_cut_ts=str(max_cut_ts))

    _begin_route(routes, catalog, push_of)
    _store_routes(routes, catalog)
    return routes


def _begin_route(routes: APIRouter, catalog: Catalog, push_of: Callable[[TenantRow], Push]) -> None:
    @route(
        routes,
        "POST",
        f"{_TENANT}/push:begin",
        Right.PUSH,
        "begin_push",
        "Bind a raw or txn tenant to its keyspace",
        description="First contact of its pusher, which knows the id of a keyspace that was registered by name."
        " Idempotent. `start_ts` counts until the first incarnation is issued.",
    )
    def begin(cluster_id: _Id, tenant_id: _Id, at: Begin) -> Push:
        start_ts = int(at.start_ts)
        if start_ts > _INT_MAX:
            raise InvalidInput(f"start_ts: {at.start_ts} is not a timestamp.")
        upstream_id = None if at.upstream_id is None else int(at.upstream_id) & _INT_MAX
        return push_of(begin_tenant(catalog, Tenant(cluster_id, tenant_id), at.keyspace_id, start_ts, upstream_id))


def _store_routes(routes: APIRouter, catalog: Catalog) -> None:
    @route(
        routes,
        "GET",
        f"{_TENANT}/stores/{{store_id}}/incarnations",
        Right.PUSH,
        "get_incarnation",
        "Newest incarnation of a store's pusher",
        description="A pusher that reads another number than its own has been replaced, and must stop.",
    )
    def read_incarnation(cluster_id: _Id, tenant_id: _Id, store_id: _Id) -> NewestIncarnation:
        row = get_tenant(catalog, Tenant(cluster_id, tenant_id))
        return NewestIncarnation(incarnation=newest_incarnation(catalog, row.tenant, store_id))

    @route(
        routes,
        "POST",
        f"{_TENANT}/stores/{{store_id}}/incarnations/{{incarnation}}:end",
        Right.PUSH,
        "end_stream",
        "End the stream of a store",
        description="Of a recording: the store has no change above `end_ts`. Its tenant's lag counts up to there, and"
        " once the watermark is there the tenant has ended. A newer incarnation of the store takes it back.",
    )
    def end(cluster_id: _Id, tenant_id: _Id, store_id: _Id, incarnation: _Id, at: StreamEnd) -> EndedStream:
        row, end_ts = get_tenant(catalog, Tenant(cluster_id, tenant_id)), int(at.end_ts)
        if end_ts > _INT_MAX:
            raise InvalidInput(f"end_ts: {at.end_ts} is not a timestamp.")
        if not end_stream(catalog, row.tenant, store_id, incarnation, end_ts):
            raise Fenced(
                f"incarnation {incarnation} is not the newest of store {store_id}",
                store_id=store_id,
                incarnation=incarnation,
            )
        return EndedStream(store_id=store_id, incarnation=incarnation, end_ts=at.end_ts)


def bucket_access(tenant: Tenant, store_url: str, issuer: CredentialIssuer | None) -> BucketAccess:
    """The credentials with which the tenant's pushers write."""
    if issuer is None:
        words = "Pushers open the bucket with their own credentials (AWS_*, or the machine's role): without"
        words += " push.role_arn only these restrict them to their tenant's folder."
        if not store_url.startswith("s3://"):
            words = "Pushers open the store directly: it is no S3 bucket and has no credentials."
        return BucketAccess(by="pusher", url=None, words=words)
    url = f"/v1/clusters/{tenant.cluster_id}/tenants/{tenant.tenant_id}/push-credentials"
    folders = " and ".join(push_prefixes(tenant))
    words = f"The service issues credentials for {issuer.duration_s // 60} minutes. They may only write objects below"
    return BucketAccess(by="service", url=url, words=f"{words} {folders}. tistream push renews them.")


def check_line(tenant: Tenant) -> str:
    """The command that checks pushing."""
    return f"tistream push --check --cluster {tenant.cluster_id} --tenant {tenant.tenant_id}"


def aws_line(tenant: Tenant, store_url: str, kms_key_arn: str = "") -> str | None:
    """An aws-cli command that puts an empty object into the tenant's folder; None when the store is no bucket."""
    place = s3_place(store_url)
    if place is None:
        return None
    key = str(ProbeKey(tenant=tenant, name="by-hand"))
    words = ["aws", "s3api", "put-object", "--bucket", place.bucket]
    words += ["--key", f"{place.prefix}/{key}" if place.prefix else key]
    words += ["--region", place.region] if place.region else []
    words += ["--endpoint-url", place.endpoint] if place.endpoint else []
    words += ["--server-side-encryption", "aws:kms", "--ssekms-key-id", kms_key_arn] if kms_key_arn else []
    return shlex.join(words)


def _operators_routes(
    routes: APIRouter, catalog: Catalog, push_of: Callable[[TenantRow], Push], aws_of: Callable[[Tenant], str | None]
) -> None:
    @route(routes, "POST", "/v1/tenants", Right.OPERATE, "register_tenant", "Register a tenant", status_code=201)
    def register(new: NewTenant, who: Who, request: Request) -> RegisteredTenant:
        row = register_tenant(
            catalog,
            Tenant(new.cluster_id, new.tenant_id),
            kind=new.kind,
            keyspace=_keyspace(new),
            user_keys=_user_keys(new),
        )
        key = _push_key(catalog, row.tenant, who)
        env = {"TISTREAM_URL": str(request.base_url).rstrip("/")} | ({"TISTREAM_KEY": key} if key else {})
        return RegisteredTenant(
            cluster_id=row.tenant.cluster_id,
            tenant_id=row.tenant.tenant_id,
            state=row.state,
            start_ts=str(row.start_ts),
            push=PushBundle(
                **push_of(row).model_dump(), key=key, env=env, check=check_line(row.tenant), aws=aws_of(row.tenant)
            ),
        )

    @route(routes, "POST", f"{_TENANT}/tasks/{{task_id}}:retry", Right.TENANT, "retry_task", "Retry a stopped task")
    def retry(cluster_id: _Id, tenant_id: _Id, task_id: _Id) -> RetriedTask:
        of_tenant = list_tasks(catalog, Tenant(cluster_id, tenant_id))
        task = next((row for row in of_tenant if row.task_id == task_id), None)
        if task is None:
            raise NotFound(f"tenant {cluster_id}/{tenant_id} has no task {task_id}", task_id=task_id)
        if not retry_task(catalog, task_id, epoch=task.epoch, actor="API"):
            raise Fenced("the task was reassigned meanwhile; ask again", task_id=task_id)
        return RetriedTask(task_id=task_id, resubscribe_id=get_task(catalog, task_id).resubscribe_id)


def _keyspace(new: NewTenant) -> Keyspace:
    """The keyspace that is asked for: digits are an id, and keyspace 0 is the default one."""
    text = new.keyspace
    if text is None:
        return Keyspace(id=0) if new.kind.is_keyspace else Keyspace()
    return Keyspace(id=int(text)) if text.isascii() and text.isdigit() else Keyspace(name=text)


def _user_keys(new: NewTenant) -> KeyRange:
    try:
        return KeyRange(bytes.fromhex(new.start_key), bytes.fromhex(new.end_key))
    except ValueError as e:
        raise InvalidInput(f"end_key: {new.end_key} is not above start_key {new.start_key or '-'}.") from e


def _push_key(catalog: Catalog, tenant: Tenant, who: Principal) -> str | None:
    """A first key for the tenant's pushers; None when they have one, or keys are not required."""
    if not who.key_id or any(row.role == Role.PUSHER and row.state == "living" for row in list_keys(catalog, tenant)):
        return None
    return issue_key(catalog, name=f"pushers of {tenant}", role=Role.PUSHER, tenant=tenant, made_by=who.key_id).text
