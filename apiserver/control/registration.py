"""Routes that register a tenant and tell its pushers where to push and where to start.

    POST /v1/tenants                                                     register (idempotent)
    GET  /v1/clusters/{c}/tenants/{t}/push                               where to push, and the tenant's state
    POST /v1/clusters/{c}/tenants/{t}/push:begin                         first contact of a pusher of a cluster
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
from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from apiserver.answers.fields import EndKey, HexKey, Tso
from apiserver.control.push_access import CredentialIssuer
from apiserver.control.push_policy import push_prefixes
from apiserver.control.routing import route
from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.kinds import Keyspace, TenantKind
from tistream.catalog.rows.tenants import TenantRow, TenantState
from tistream.catalog.tenancy import tenants
from tistream.catalog.tenancy.keys import list_keys
from tistream.catalog.work import stores, stream_ends, tasks
from tistream.catalog.work.stopped_items import is_snapshot_refused
from tistream.errors import Fenced, InvalidInput, NotFound
from tistream.http.audit.request import note_target
from tistream.http.auth.access import Who
from tistream.http.auth.core.keys import parse_key
from tistream.http.auth.core.roles import Principal, Right, Role
from tistream.http.auth.issue import issue_key
from tistream.http.parameters import Id, PathTenant
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.limits import INT_MAX
from tistream.objectstore.factory import s3_place
from tistream.objectstore.layout import ProbeKey, buffer_prefix

_HEX = "^([0-9a-f]{2})*$"
_KEY_CHARS_MAX = 2 * 8192  # TiKV refuses keys above 8 KiB
_TENANT = "/v1/clusters/{cluster_id}/tenants/{tenant_id}"


class NewTenant(BaseModel):
    """A tenant to register."""

    cluster_id: int = Field(ge=0, le=INT_MAX)
    tenant_id: int = Field(ge=0, le=INT_MAX)
    kind: TenantKind = Field(TenantKind.TIDB, description="tidb: tables; raw, txn: keys and values of a keyspace")
    keyspace: str | None = Field(
        None, min_length=1, max_length=256, description="of a raw or txn tenant: an id or a name; null = keyspace 0"
    )
    start_key: str = Field(
        "",
        pattern=_HEX,
        max_length=_KEY_CHARS_MAX,
        description="of a range of the keyspace, a user key; hexadecimal",
    )
    end_key: str = Field(
        "", pattern=_HEX, max_length=_KEY_CHARS_MAX, description="hexadecimal; empty = the end of the keyspace"
    )


class Begin(BaseModel):
    """First contact of a pusher."""

    keyspace_id: int | None = Field(None, ge=0, le=0xFF_FFFF, description="of a raw or txn tenant")
    start_ts: str = Field("0", pattern=r"^\d{1,19}$", description="of a recording: its first checkpoint")
    upstream_id: str | None = Field(None, pattern=r"^\d{1,19}$", description="PD's id of the cluster")


class BucketAccess(BaseModel):
    """The credentials with which a pusher writes."""

    by: Literal["service", "pusher"] = Field(
        description="service: the service issues session credentials; pusher: it uses its own"
    )
    url: str | None = Field(
        description="POST here to issue or renew them; null when the service issues none",
        examples=["/v1/clusters/1/tenants/1/push-credentials"],
    )
    words: str = Field(
        description="explanation for people", examples=["The service issues credentials for 60 minutes."]
    )


class Push(BaseModel):
    """Where a pusher writes."""

    object_store: str = Field(description="URL of the bucket", examples=["s3://bucket/prefix"])
    prefix: str = Field(
        description="folder of the tenant's schema snapshots and batch files",
        examples=["data_change_buffer/cluster-1/tenant-1/"],
    )
    state: TenantState
    start_ts: Tso = Field(description="of the first schema snapshot; 0 while the tenant awaits it")
    snapshot_refused: bool = Field(description="every pushed schema snapshot is unusable: push another one")
    kind: TenantKind
    keyspace_id: int | None = Field(description="of a raw or txn tenant; null until its pusher has looked up the name")
    keyspace_name: str | None = Field(examples=["app"])
    start_key: HexKey = Field(description="of the tenant's keys with mode and keyspace, hexadecimal")
    end_key: EndKey = Field(description="hexadecimal; empty = plus infinity")
    credentials: BucketAccess


class PushBundle(Push):
    """Where a pusher writes, and its key."""

    key: str | None = Field(
        description="API key of role pusher, shown at the first registration only; null also without authentication",
        examples=["tsk_..."],
    )
    env: dict[str, str] = Field(
        description="environment of the pusher", examples=[{"TISTREAM_URL": "http://127.0.0.1:8711"}]
    )
    check: str = Field(
        description="command that checks pushing in this environment",
        examples=["tistream push --check --cluster 1 --tenant 2"],
    )
    aws: str | None = Field(
        description="aws-cli command: one put as a pusher does it; null when the store is no bucket",
        examples=["aws s3api put-object --bucket bucket --key data_change_buffer/cluster-1/tenant-2/probe/by-hand"],
    )


class RegisteredTenant(BaseModel):
    """A tenant, with the settings of its pushers."""

    cluster_id: int
    tenant_id: int
    state: TenantState
    start_ts: Tso = Field(description="the log is complete above this; 0 while the tenant awaits its schema snapshot")
    push: PushBundle


class FrontierEntry(BaseModel):
    """Progress of one key range."""

    start_key: HexKey
    end_key: EndKey = Field(description="hexadecimal; empty = plus infinity")
    durable_ts: Tso = Field(description="everything at or below it is in the committed log")
    resubscribe_id: int = Field(description="a new value asks pushers to resubscribe the range")


class NewIncarnation(BaseModel):
    """An incarnation of a pusher."""

    incarnation: int
    max_cut_ts: Tso = Field(description="largest cut_ts of the store; no new file may have a lower one")


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
    end_ts: Tso


class RetriedTask(BaseModel):
    """A retried task."""

    task_id: int
    resubscribe_id: int


def registration_router(catalog: Catalog, store_url: str, issuer: CredentialIssuer | None = None) -> APIRouter:
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
            snapshot_refused=row.state is TenantState.AWAITING_SNAPSHOT and is_snapshot_refused(catalog, row.tenant),
            kind=row.kind,
            keyspace_id=row.keyspace.id,
            keyspace_name=row.keyspace.name,
            start_key=row.range.start.hex(),
            end_key=row.range.end.hex(),
            credentials=access,
        )

    kms_key_arn = issuer.terms.kms_key_arn if issuer is not None else ""
    _operators_routes(routes, catalog, push_of, lambda tenant: aws_line(tenant, store_url, kms_key_arn))

    @route(routes, "GET", f"{base}/push", Right.PUSH, "Where to push")
    def get_push(tenant: PathTenant) -> Push:
        return push_of(tenants.get_tenant(catalog, tenant))

    @route(routes, "GET", f"{base}/frontier", Right.PUSH, "Where new subscriptions may start")
    def get_frontier(tenant: PathTenant) -> list[FrontierEntry]:
        row = tenants.get_tenant(catalog, tenant)
        return [
            FrontierEntry(
                start_key=progress.range.start.hex(),
                end_key=progress.range.end.hex(),
                durable_ts=str(progress.durable_ts),
                resubscribe_id=progress.resubscribe_id,
            )
            for progress in tasks.frontier(catalog, row.tenant)
        ]

    @route(
        routes, "POST", f"{base}/stores/{{store_id}}/incarnations", Right.PUSH,
        "Issue an incarnation to a store's pusher", status_code=201,
    )  # fmt: skip
    def issue_incarnation(tenant: PathTenant, store_id: Id) -> NewIncarnation:
        row = tenants.get_tenant(catalog, tenant)
        incarnation, max_cut_ts = stores.issue_incarnation(catalog, row.tenant, store_id)
        return NewIncarnation(incarnation=incarnation, max_cut_ts=str(max_cut_ts))

    _begin_route(routes, catalog, push_of)
    _store_routes(routes, catalog)
    return routes


def _begin_route(routes: APIRouter, catalog: Catalog, push_of: Callable[[TenantRow], Push]) -> None:
    @route(routes, "POST", f"{_TENANT}/push:begin", Right.PUSH, "Say which cluster and keyspace a tenant is")
    def begin_push(tenant: PathTenant, at: Begin) -> Push:
        start_ts = int(at.start_ts)
        if start_ts > INT_MAX:
            raise InvalidInput(f"start_ts: {at.start_ts} is not a timestamp.")
        upstream_id = None if at.upstream_id is None else int(at.upstream_id) & INT_MAX
        return push_of(tenants.begin_tenant(catalog, tenant, at.keyspace_id, start_ts, upstream_id))


def _store_routes(routes: APIRouter, catalog: Catalog) -> None:
    @route(
        routes,
        "GET",
        f"{_TENANT}/stores/{{store_id}}/incarnations",
        Right.PUSH,
        "Newest incarnation of a store's pusher",
    )
    def get_incarnation(tenant: PathTenant, store_id: Id) -> NewestIncarnation:
        row = tenants.get_tenant(catalog, tenant)
        return NewestIncarnation(incarnation=stores.newest_incarnation(catalog, row.tenant, store_id))

    @route(
        routes,
        "POST",
        f"{_TENANT}/stores/{{store_id}}/incarnations/{{incarnation}}:end",
        Right.PUSH,
        "End the stream of a store",
    )
    def end_stream(tenant: PathTenant, store_id: Id, incarnation: Id, at: StreamEnd) -> EndedStream:
        row, end_ts = tenants.get_tenant(catalog, tenant), int(at.end_ts)
        if end_ts > INT_MAX:
            raise InvalidInput(f"end_ts: {at.end_ts} is not a timestamp.")
        if not stream_ends.end_stream(catalog, row.tenant, store_id, incarnation, end_ts):
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
    @route(routes, "POST", "/v1/tenants", Right.OPERATE, "Register a tenant", status_code=201)
    def register_tenant(new: NewTenant, who: Who, request: Request) -> RegisteredTenant:
        row = tenants.register_tenant(
            catalog,
            Tenant(new.cluster_id, new.tenant_id),
            kind=new.kind,
            keyspace=_keyspace(new),
            user_keys=_user_keys(new),
            actor=who.key_id,
        )
        key = _push_key(catalog, row.tenant, who)
        note_target(request, tenant=row.tenant, **({"key_id": parse_key(key).key_id} if key else {}))
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

    @route(routes, "POST", f"{_TENANT}/tasks/{{task_id}}:retry", Right.TENANT, "Retry a stopped task")
    def retry_task(tenant: PathTenant, task_id: Id) -> RetriedTask:
        of_tenant = tasks.list_tasks(catalog, tenant)
        task = next((row for row in of_tenant if row.task_id == task_id), None)
        if task is None:
            raise NotFound(f"tenant {tenant} has no task {task_id}", task_id=task_id)
        if not tasks.retry_task(catalog, task_id, epoch=task.epoch, actor="API"):
            raise Fenced("the task was reassigned meanwhile; ask again", task_id=task_id)
        return RetriedTask(task_id=task_id, resubscribe_id=tasks.get_task(catalog, task_id).resubscribe_id)


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
    return issue_key(catalog, name=f"pushers of {tenant}", role=Role.PUSHER, tenant=tenant, created_by=who.key_id).text
