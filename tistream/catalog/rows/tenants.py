"""Tenants and the kinds of their tasks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from tistream.catalog.rows.kinds import AnotherKind, Keyspace, TenantKind, user_range
from tistream.ids import Tenant
from tistream.keyrange import KeyRange


class TenantState(StrEnum):
    """The state of a tenant."""

    AWAITING_SNAPSHOT = "AWAITING_SNAPSHOT"
    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    DELETING = "DELETING"
    DELETED = "DELETED"


class TaskKind(StrEnum):
    """What a task's range holds."""

    DATA = "data"
    DDL = "ddl"


_REPLACED = re.compile(r"replaced by (\d+)/(\d+) from (\d+) on, after (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Successor:
    """The tenant that has taken the place of a deleted one. A tombstone keeps it as its reason, so that releases that
    know of no successors show it, too."""

    tenant: Tenant
    start_ts: int  #: its log is complete above this, and it has a seed of all rows here
    after_ts: int  #: up to here the deleted tenant was served; what was committed in between is in neither log

    @property
    def reason(self) -> str:
        return f"replaced by {self.tenant} from {self.start_ts} on, after {self.after_ts}"

    @classmethod
    def of_reason(cls, reason: str) -> Successor | None:
        """The successor that a tombstone's reason names, if any."""
        if (named := _REPLACED.fullmatch(reason)) is None:
            return None
        cluster_id, tenant_id, start_ts, after_ts = map(int, named.groups())
        return cls(tenant=Tenant(cluster_id, tenant_id), start_ts=start_ts, after_ts=after_ts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRow:
    """A registered tenant."""

    tenant: Tenant
    kind: TenantKind
    keyspace: Keyspace  #: of a raw or txn tenant
    state: TenantState
    start_ts: int  #: the log is complete above this; 0 while awaiting the snapshot
    upstream_id: int | None  #: PD's id of the cluster, as a pusher has reported it
    range: KeyRange  #: of a raw or txn tenant; user keys while the id of the keyspace is unknown, else stored keys
    created_ms: int  #: Unix milliseconds by the database's clock
    reason: str  #: why it is in this state; may be empty
    floor_ts: int = 0  #: the log at or below it was deleted; 0 = none yet
    retention_s: int | None = None  #: seconds of log to keep; 0 = all; None = the setting
    schema_hints: int = 0  #: rises with each notification of a schema snapshot while it waits for one

    @property
    def has_log(self) -> bool:
        """Whether its log has begun. That of a raw or txn tenant may begin at 0."""
        return self.state is not TenantState.AWAITING_SNAPSHOT

    @property
    def earliest_ts(self) -> int:
        """Reads may start here: the log is complete above it."""
        return max(self.start_ts, self.floor_ts)

    @property
    def user_keys(self) -> KeyRange:
        """The range of a raw or txn tenant, as its users see keys."""
        return self.range if self.keyspace.id is None else user_range(self.kind, self.keyspace.id, self.range)

    def check_tables(self) -> None:
        """AnotherKind when it has no tables."""
        if self.kind.is_keyspace:
            base = f"/v1/clusters/{self.tenant.cluster_id}/tenants/{self.tenant.tenant_id}/kv"
            raise AnotherKind(
                f"Tenant {self.tenant} is keyspace {self.keyspace}, kind {self.kind}: it has keys and values, and no "
                f"databases, tables or schema. Read {base}/changes, {base}/rows or {base}/history.",
                tenant=str(self.tenant),
                tenant_kind=str(self.kind),
            )

    def check_keys(self) -> None:
        """AnotherKind when it has tables."""
        if not self.kind.is_keyspace:
            base = f"/v1/clusters/{self.tenant.cluster_id}/tenants/{self.tenant.tenant_id}"
            raise AnotherKind(
                f"Tenant {self.tenant} is one of TiDB: it has tables, not keys and values. Read {base}/changes.",
                tenant=str(self.tenant),
                tenant_kind=str(self.kind),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTask:
    """A task to be created."""

    kind: str  #: a TaskKind
    range: KeyRange
