"""Cursors: opaque, URL-safe, versioned, logical resume points of a pull.

A cursor says "everything with commit_ts at or below T of this scope has been delivered". It names no file, offset, task
or region, so splits, merges, failovers, DDL and compaction leave it valid. It always stands between two commit
timestamps: a transaction is never cut in two. The checksum catches damage, not forgery; access is checked elsewhere.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass

import orjson

from tistream.errors import CursorInvalid
from tistream.ids import Tenant

_VERSION = b"1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a pull covers: a tenant, one of its databases, or one table."""

    tenant: Tenant
    database: str | None = None
    table: str | None = None

    def __str__(self) -> str:
        parts = [str(self.tenant), self.database or "*", self.table or "*"]
        return "/".join(parts)


def encode(scope: Scope, commit_ts: int) -> str:
    """The cursor of `scope` after everything at or below `commit_ts`."""
    body = orjson.dumps([scope.tenant.cluster_id, scope.tenant.tenant_id, scope.database, scope.table, commit_ts])
    return base64.urlsafe_b64encode(_VERSION + zlib.crc32(body).to_bytes(4, "big") + body).rstrip(b"=").decode()


def decode(text: str, scope: Scope) -> int:
    """The commit_ts a cursor stands at. CursorInvalid when it is damaged or belongs to another scope."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as e:
        raise CursorInvalid("The cursor is not one of ours: it is not base64.", cursor=text[:80]) from e
    if raw[:1] != _VERSION:
        raise CursorInvalid("The cursor is not one of ours: its version is unknown.", cursor=text[:80])
    if len(raw) < 6 or raw[1:5] != zlib.crc32(raw[5:]).to_bytes(4, "big"):
        raise CursorInvalid("The cursor is damaged: its checksum does not match.", cursor=text[:80])
    try:
        cluster, tenant, database, table, commit_ts = orjson.loads(raw[5:])
        made_for = Scope(tenant=Tenant(int(cluster), int(tenant)), database=database, table=table)
        at = int(commit_ts)
    except (ValueError, TypeError) as e:
        raise CursorInvalid("The cursor is not one of ours: it does not hold a position.", cursor=text[:80]) from e
    if made_for != scope:
        raise CursorInvalid("The cursor belongs to another scope.", cursor_scope=str(made_for), scope=str(scope))
    if not 0 <= at < 1 << 63:
        raise CursorInvalid("The cursor is not one of ours: its position has more than 63 bits.", cursor=text[:80])
    return at
