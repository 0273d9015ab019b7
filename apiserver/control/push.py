"""Routes for pushers without read access to the bucket: credentials, and what they need to know of its contents.

    POST /v1/clusters/{c}/tenants/{t}/push-credentials         session credentials for the tenant's folders
    POST /v1/clusters/{c}/tenants/{t}/push-objects:compare     whether an object has these bytes
    GET  /v1/clusters/{c}/tenants/{t}/push-schemas             the pushed schema snapshots
    GET  /v1/clusters/{c}/tenants/{t}/push-schemas/{ts}        one of them
    DELETE /v1/clusters/{c}/tenants/{t}/push-probes/{name}     the object that a check of pushing has written

Credentials appear in the response only: never in a log or a stored answer. A comparison confirms bytes that the caller
has, and reveals nothing else. Only folders to which the tenant's pushers may write are read.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, Field

from apiserver.answers.fields import Time, Tso
from apiserver.control.push_access import CredentialIssuer
from apiserver.control.push_policy import push_prefixes
from tistream import ts as tso
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.clock import SystemClock
from tistream.errors import InvalidInput, NotAllowed, NotFound, ObjectNotFound, StateForbids
from tistream.http.auth.access import needs, principal_of
from tistream.http.auth.core.roles import Right
from tistream.http.parameters import Id, PathTenant
from tistream.ids import Tenant
from tistream.limits import SNAPSHOT_BYTES_MAX
from tistream.objectstore.bounded import sha256_of, small_object
from tistream.objectstore.keys import check_key
from tistream.objectstore.layout import ProbeKey, SchemaSnapKey, foreign_probe, parse, probe_prefix, schema_snap_prefix
from tistream.objectstore.protocol import ObjectStore

_ProbeName = Annotated[str, Path(pattern="^[a-z0-9-]{1,64}$")]
_KEY_CHARS_MAX = 1024  # S3's bound
_FORGOTTEN_MS = 3_600_000  # an older probe belongs to a check that died
_BASE = "/v1/clusters/{cluster_id}/tenants/{tenant_id}"


class Credentials(BaseModel):
    """Session credentials of S3, for one tenant's folders."""

    access_key_id: str = Field(examples=["ASIA..."])
    secret_access_key: str = Field(examples=["..."])
    session_token: str = Field(examples=["..."])
    expires_time: Time = Field(description="by the clock of STS")
    valid_s: int = Field(description="seconds from the request")
    prefixes: list[str] = Field(
        description="folders to which objects may be written; nothing else is allowed",
        examples=[["data_change_buffer/cluster-1/tenant-1/", "seeds/cluster-1/tenant-1/"]],
    )
    kms_key_arn: str = Field(description="KMS key that each put must name; empty = none", examples=[""])


class Written(BaseModel):
    """An object that a pusher has written, or may have written."""

    key: str = Field(max_length=_KEY_CHARS_MAX, description="of the object, without the deployment's folder")
    bytes: int = Field(ge=0)
    sha256: str = Field(description="of the whole object, hexadecimal", pattern="^[0-9a-f]{64}$")


class Compared(BaseModel):
    """The result of a comparison."""

    there: Literal["same", "other", "nothing"]


class PushedSchema(BaseModel):
    """A schema snapshot in the bucket."""

    ts: Tso
    bytes: int


class PushedSchemas(BaseModel):
    """All pushed schema snapshots, by time."""

    items: list[PushedSchema]


def push_router(catalog: Catalog, store: ObjectStore, issuer: CredentialIssuer | None) -> APIRouter:
    """The routes over this catalog and bucket. Without an `issuer` no credentials are issued."""
    routes = APIRouter(tags=["control"], dependencies=[needs(Right.PUSH)])

    @routes.post(
        f"{_BASE}/push-credentials",
        status_code=201,
        summary="Session credentials for the tenant's folders of the bucket",
    )
    def issue_push_credentials(tenant: PathTenant, response: Response) -> Credentials:
        response.headers["Cache-Control"] = "no-store"
        return issue(catalog, issuer, tenant)

    @routes.post(f"{_BASE}/push-objects:compare", summary="Whether an object has these bytes")
    def compare_pushed_object(tenant: PathTenant, written: Written) -> Compared:
        tenant = get_tenant(catalog, tenant).tenant
        check_key(written.key)
        if not written.key.startswith(push_prefixes(tenant)):
            raise InvalidInput("key lies outside the folders of this tenant's pushers", key=written.key)
        return Compared(there=_there(store, written))

    @routes.get(f"{_BASE}/push-schemas", summary="List pushed schema snapshots")
    def list_pushed_schemas(tenant: PathTenant) -> PushedSchemas:
        tenant = get_tenant(catalog, tenant).tenant
        objects = [(parse(info.key), info.size) for info in store.list(schema_snap_prefix(tenant))]
        items = [PushedSchema(ts=str(key.ts), bytes=size) for key, size in objects if isinstance(key, SchemaSnapKey)]
        return PushedSchemas(items=items)

    @routes.get(
        f"{_BASE}/push-schemas/{{ts}}",
        summary="Get a pushed schema snapshot",
        response_class=Response,
        responses={200: {"content": {"application/zstd": {"schema": {"type": "string", "format": "binary"}}}}},
    )
    def get_pushed_schema(tenant: PathTenant, ts: Id, request: Request) -> Response:
        who = principal_of(request)
        if who.sees_all and Right.READ not in who.rights:
            raise NotAllowed(f"A key of role {who.role} does not read schemas: it needs the right '{Right.READ}'.")
        tenant = get_tenant(catalog, tenant).tenant
        try:
            data = small_object(store, str(SchemaSnapKey(tenant=tenant, ts=ts)), SNAPSHOT_BYTES_MAX)
        except ObjectNotFound as e:
            raise NotFound(f"tenant {tenant} has no schema snapshot at {ts}", ts=ts) from e
        return Response(data, media_type="application/zstd")

    @routes.delete(f"{_BASE}/push-probes/{{name}}", status_code=204, summary="Delete the probe object of a push check")
    def delete_push_probe(tenant: PathTenant, name: _ProbeName) -> None:
        drop_probes(store, get_tenant(catalog, tenant).tenant, name, SystemClock().unix_ms())

    return routes


def issue(catalog: Catalog, issuer: CredentialIssuer | None, tenant: Tenant) -> Credentials:
    """Credentials for a tenant. TenantDeleted; StateForbids when this service issues none."""
    get_tenant(catalog, tenant)
    if issuer is None:
        none = StateForbids("this service issues no bucket credentials: pushers use their own")
        none.hint = "Set push.role_arn to issue them."
        raise none
    issued = issuer.issue(tenant)
    return Credentials(
        access_key_id=issued.access_key_id,
        secret_access_key=issued.secret_access_key,
        session_token=issued.session_token,
        expires_time=tso.to_text(tso.compose(round(issued.expires_at.timestamp() * 1000))),
        valid_s=issuer.duration_s,
        prefixes=list(push_prefixes(tenant)),
        kms_key_arn=issuer.terms.kms_key_arn,
    )


def drop_probes(store: ObjectStore, tenant: Tenant, name: str, now_ms: int) -> None:
    """Delete the probe of this name, its counterpart outside the tenant's folder, and old probes of the tenant."""
    for key in (ProbeKey(tenant=tenant, name=name), foreign_probe(tenant, name)):
        store.delete(str(key))
    for info in [*store.list(probe_prefix(tenant))]:
        if info.modified_ms < now_ms - _FORGOTTEN_MS:
            store.delete(info.key)


def _there(store: ObjectStore, written: Written) -> Literal["same", "other", "nothing"]:
    try:
        if store.size(written.key) != written.bytes:
            return "other"
        sha256 = sha256_of(store, written.key, written.bytes)
    except ObjectNotFound:
        return "nothing"
    return "same" if sha256 == written.sha256 else "other"
