"""Creates, changes and repairs replications: changefeeds that the service writes to a destination.

Before a replication starts, its destination is asked, its lanes are cut, and its start is checked against the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from destinations.opening import LANES, Reached, Target, check_destination, cut_lanes
from destinations.storage.eligible import tables_without_key
from reading.filters import parse_filter
from reading.kv.selection import parse_selection
from reading.scope import Scope
from schemas.registry.schema_registry import SchemaRegistry
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.changefeeds import (
    ChangefeedRow,
    FeedState,
    get_changefeed,
    list_changefeeds,
    switch_changefeed,
)
from tistream.catalog.tenancy.tenants import TenantRow, every_tenant, get_tenant
from tistream.catalog.work import lanes as lane_rows
from tistream.catalog.work import replications
from tistream.catalog.work.core.lane_scope import skip
from tistream.catalog.work.lanes import LaneRow, list_lanes
from tistream.clock import Clock
from tistream.codec.key_format import KeyFormat
from tistream.errors import InvalidInput, NotFound, StateForbids
from tistream.ids import Tenant
from tistream.keyrange import KeyRange

_NAMED = 5  # tables of a note
KEY_OPTIONS = ("key_format", "start_key", "end_key", "key_prefix", "key_pattern", "value_pattern")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The settings of a replication."""

    sink_uri: str
    filters: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)  #: KEY_OPTIONS of a keyspace
    target_ts: int = 0
    hold_ms: int = 86_400_000

    def options(self, reached: Reached) -> str:
        """As the catalog keeps them, with what the destination is."""
        found = {"sink_cluster": reached.cluster_id, "sink_keyspace": reached.keyspace_id}
        return orjson.dumps({"keys": dict(self.keys), **found}, option=orjson.OPT_SORT_KEYS).decode()

    @property
    def filters_text(self) -> str:
        """As the catalog keeps them."""
        return orjson.dumps(dict(self.filters), option=orjson.OPT_SORT_KEYS).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Replications:
    """The control plane of replications."""

    catalog: Catalog
    clock: Clock
    registry: SchemaRegistry

    def create(
        self, tenant: Tenant, name: str, start_ts: int | None, wanted: Wanted, *, lanes: int | None, actor: str
    ) -> tuple[bool, Sequence[str]]:
        """(whether it is new, what its user must know). InvalidInput names the option at fault."""
        row = get_tenant(self.catalog, tenant)
        target, keys = self._checked(row, wanted)
        reached = check_destination(target, name, self.clock)
        self._check_direction(row, name, reached)
        notes = [*reached.notes, *self._without_key(row, wanted)]
        scopes = cut_lanes(target, name, keys, lanes or LANES, self.clock)
        made = replications.create_replication(
            self.catalog, tenant, name, start_ts, sink_uri=wanted.sink_uri, options=wanted.options(reached),
            filters=wanted.filters_text, scopes=scopes, target_ts=wanted.target_ts, hold_ms=wanted.hold_ms, actor=actor,
        )  # fmt: skip
        return made, notes

    def update(self, tenant: Tenant, name: str, wanted: Wanted, *, actor: str) -> Sequence[str]:
        """Other settings of a replication that does not run; what its user must know. Its keys stay the same."""
        row = get_tenant(self.catalog, tenant)
        before = replication_of(self.catalog, tenant, name)
        target, _ = self._checked(row, wanted)
        if row.kind.is_keyspace and key_range_of(wanted.keys) != key_range_of(orjson.loads(before.options)["keys"]):
            raise InvalidInput("The range of a changefeed cannot change: create another one.", option="start-key")
        reached = check_destination(target, name, self.clock)
        self._check_direction(row, name, reached)
        notes = [*reached.notes, *self._without_key(row, wanted)]
        replications.update_replication(
            self.catalog, tenant, name, sink_uri=wanted.sink_uri, options=wanted.options(reached),
            filters=wanted.filters_text, target_ts=wanted.target_ts, hold_ms=wanted.hold_ms, actor=actor,
        )  # fmt: skip
        return notes

    def pause(self, tenant: Tenant, name: str) -> None:
        """No lane is written any more, after the stretch that is being written."""
        switch_changefeed(self.catalog, tenant, name, FeedState.STOPPED)

    def resume(self, tenant: Tenant, name: str, to_ts: int | None, *, actor: str) -> None:
        """Run it again, above `to_ts` if given, and try what was refused again."""
        replications.resume_replication(self.catalog, tenant, name, to_ts=to_ts, actor=actor)

    def rebalance(self, tenant: Tenant, name: str, lanes: int | None) -> None:
        """Cut it anew, by the destination's regions as they are now. StateForbids while a change is refused."""
        found = replication_of(self.catalog, tenant, name)
        before = list_lanes(self.catalog, tenant, name)
        stopped = next((lane for lane in before if lane.is_stopped), None)
        if stopped is not None:
            raise StateForbids(
                f"Lane {stopped.number} of changefeed {name} waits for a decision about a refused change.",
                lane=stopped.number,
            )
        row = get_tenant(self.catalog, tenant)
        wanted = Wanted(
            sink_uri=found.sink_uri, filters=orjson.loads(found.filters), keys=orjson.loads(found.options)["keys"]
        )
        target, keys = self._checked(row, wanted)
        scopes = cut_lanes(target, name, keys, lanes or len(before), self.clock)
        lane_rows.replace_lanes(self.catalog, tenant, name, scopes)

    def decide(self, tenant: Tenant, name: str, number: int, *, leave_out: bool) -> None:
        """Try the refused change of a lane again, or leave it out. StateForbids when the lane is not stopped."""
        replication_of(self.catalog, tenant, name)
        lane = _lane(list_lanes(self.catalog, tenant, name), name, number)
        error = lane.error
        if error is None or not lane.is_stopped:
            raise StateForbids(f"Lane {number} of changefeed {name} is not stopped.", lane=number)
        if leave_out and not {"key", "commit_ts"} <= error.keys():
            raise StateForbids(f"The destination did not say which change of lane {number} it refuses.", lane=number)
        scope = skip(lane.scope, str(error["key"]), int(error["commit_ts"])) if leave_out else lane.scope
        lane_rows.rescope(self.catalog, lane, scope)

    def _check_direction(self, row: TenantRow, name: str, reached: Reached) -> None:
        """InvalidInput when this changefeed would write to its own source, or another one writes the other way: each
        write would come back and be written again, without end."""
        if reached.cluster_id is None or row.upstream_id is None:
            return
        here, there = (row.upstream_id, row.keyspace.id), (reached.cluster_id, reached.keyspace_id)
        if here == there:
            raise InvalidInput("The destination is the keyspace that this tenant is.", option="sink-uri")
        for other in every_tenant(self.catalog):
            if (other.upstream_id, other.keyspace.id) != there:
                continue
            for feed in list_changefeeds(self.catalog, other.tenant):
                known = orjson.loads(feed.options)
                if feed.is_replication and (known["sink_cluster"], known["sink_keyspace"]) == here:
                    raise InvalidInput(
                        f"Changefeed {feed.changefeed_id} of tenant {other.tenant} writes the other way, so that each "
                        f"would feed the other. Remove it before {name} is created.",
                        option="sink-uri",
                        changefeed_id=feed.changefeed_id,
                        tenant=str(other.tenant),
                    )

    def _without_key(self, row: TenantRow, wanted: Wanted) -> Sequence[str]:
        """What to know of tables whose rows nothing identifies; nothing before the first schema snapshot."""
        if row.kind.is_keyspace or not row.has_log:
            return ()
        history = self.registry.history(row.tenant)
        if history is None:
            return ()
        found = tables_without_key(
            history, history.resolved_ts, Scope(tenant=row.tenant), parse_filter(dict(wanted.filters))
        )
        if not found:
            return ()
        names = ", ".join(f"{table.db}.{table.name}" for table in found[:_NAMED])
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        return (
            f"Nothing identifies the rows of {names}{more}: their changes are delivered at least once, and a repeated "
            "one cannot be told from another.",
        )

    def _checked(self, row: TenantRow, wanted: Wanted) -> tuple[Target, KeyRange]:
        """The destination, and the user keys of a keyspace. InvalidInput, FilterInvalid."""
        target = Target.of(wanted.sink_uri, row)
        if row.kind.is_keyspace:
            if wanted.filters:
                raise InvalidInput("A keyspace has keys, not tables: filter by key.", option=next(iter(wanted.filters)))
            keys = key_range_of(wanted.keys).intersect(row.user_keys)
            if keys is None:
                raise InvalidInput(
                    f"The tenant has the keys {row.user_keys}: none of them is wanted.", option="start-key"
                )
            return target, keys
        if wanted.keys:
            raise InvalidInput(
                "A tenant of TiDB has tables, not keys: filter by table.", option=next(iter(wanted.keys))
            )
        if "columns" in wanted.filters:
            raise InvalidInput("A destination gets whole rows: leave columns out where it is read.", option="columns")
        parse_filter(dict(wanted.filters))
        return target, KeyRange()


def replication_of(catalog: Catalog, tenant: Tenant, name: str) -> ChangefeedRow:
    """The replication of this name. StateForbids for a consumer."""
    found = get_changefeed(catalog, tenant, name)
    if not found.is_replication:
        raise StateForbids(f"Changefeed {name} has no destination: members read it.", state=found.state)
    return found


def key_range_of(keys: Mapping[str, str]) -> KeyRange:
    """The user keys that these KEY_OPTIONS mean. InvalidInput, FilterInvalid."""
    return parse_selection(
        KeyFormat(keys.get("key_format", KeyFormat.HEX)),
        start_key=keys.get("start_key"),
        end_key=keys.get("end_key"),
        prefix=keys.get("key_prefix"),
        key_pattern=keys.get("key_pattern"),
        value_pattern=keys.get("value_pattern"),
    ).range


def _lane(lanes: Sequence[LaneRow], name: str, number: int) -> LaneRow:
    for lane in lanes:
        if lane.number == number:
            return lane
    raise NotFound(f"Changefeed {name} has no lane {number}.", lane=number)
