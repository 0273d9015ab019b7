"""Creates, changes and repairs replications: changefeeds that the service writes to a destination.

Before a replication starts, its destination is asked, its lanes are cut, and its start is checked against the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from destinations.letters.place import check_letters
from destinations.opening import LANES, Reached, Target, check_destination, cut_lanes, keys_of, place_of, recut
from destinations.tables import tables_by_lane, tables_without_key
from reading.filters import parse_filter
from reading.kv.selection import kept_selection
from reading.scope import Scope
from schemas.registry.schema_registry import SchemaRegistry
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.changefeeds import (
    ChangefeedRow,
    get_changefeed,
    list_changefeeds,
)
from tistream.catalog.tenancy.tenants import TenantRow, every_tenant, get_tenant
from tistream.catalog.work import replications
from tistream.catalog.work.core.place import place_facts
from tistream.catalog.work.lanes import replace_lanes
from tistream.catalog.work.replications import Sees, no_other
from tistream.clock import Clock
from tistream.errors import InvalidInput, StateForbids, TsExpired
from tistream.ids import Tenant
from tistream.keyrange import KeyRange

_NAMED = 5  # tables of a note


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The settings of a replication."""

    sink_uri: str
    filters: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)  #: the entries of a keyspace, see `kept_selection`
    target_ts: int = 0
    hold_ms: int = 86_400_000
    dead_letter: str = ""  #: URI of the place of refused changes; empty = none

    def options(self, target: Target, reached: Reached, keys: KeyRange) -> str:
        """As the catalog keeps them, with what the destination is. `keys`: user keys of a keyspace."""
        found: dict[str, object] = {"sink_cluster": reached.cluster_id, "sink_keyspace": reached.keyspace_id}
        found["place"] = place_facts(place_of(target, reached, keys))
        if self.dead_letter:
            found["dead_letter"] = self.dead_letter
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
        self,
        tenant: Tenant,
        name: str,
        start_ts: int | None,
        wanted: Wanted,
        *,
        lanes: int | None,
        actor: str,
        sees: Sees = no_other,
    ) -> tuple[bool, Sequence[str]]:
        """(whether it is new, what its user must know). InvalidInput names the option at fault. `sees`: the tenants
        that the user may know of, here as in what follows."""
        row = get_tenant(self.catalog, tenant)
        target, keys = self._checked(row, wanted)
        reached = self._reached(target, name, wanted)
        self._check_direction(row, name, reached, sees)
        notes = [*reached.notes, *self._without_key(row, wanted)]
        scopes = cut_lanes(target, name, keys, lanes or LANES, self.clock)
        made = replications.create_replication(
            self.catalog, tenant, name, start_ts, sink_uri=wanted.sink_uri, filters=wanted.filters_text, scopes=scopes,
            options=wanted.options(target, reached, keys), target_ts=wanted.target_ts, hold_ms=wanted.hold_ms,
            actor=actor, sees=sees,
        )  # fmt: skip
        return made, notes

    def update(self, tenant: Tenant, name: str, wanted: Wanted, *, actor: str, sees: Sees = no_other) -> Sequence[str]:
        """Other settings of a replication that does not run; what its user must know. Its keys stay the same."""
        row = get_tenant(self.catalog, tenant)
        before = replication_of(self.catalog, tenant, name)
        target, keys = self._checked(row, wanted)
        had = kept_selection(orjson.loads(before.options)["keys"]).range
        if row.kind.is_keyspace and kept_selection(wanted.keys).range != had:
            raise InvalidInput("The range of a changefeed cannot change: create another one.", option="start-key")
        reached = self._reached(target, name, wanted)
        self._check_direction(row, name, reached, sees)
        notes = [*reached.notes, *self._without_key(row, wanted)]
        replications.update_replication(
            self.catalog, tenant, name, sink_uri=wanted.sink_uri, options=wanted.options(target, reached, keys),
            filters=wanted.filters_text, target_ts=wanted.target_ts, hold_ms=wanted.hold_ms, actor=actor,
            sees=sees,
        )  # fmt: skip
        return notes

    def resume(self, tenant: Tenant, name: str, to_ts: int | None, *, actor: str, sees: Sees = no_other) -> None:
        """Run it again, above `to_ts` if given, and try what was refused again. TsExpired when the log begins later."""
        if to_ts is not None and to_ts < (earliest_ts := get_tenant(self.catalog, tenant).earliest_ts):
            raise TsExpired(f"The log of this tenant begins at {earliest_ts}.", earliest_ts=str(earliest_ts))
        replications.resume_replication(self.catalog, tenant, name, to_ts=to_ts, actor=actor, sees=sees)

    def rebalance(self, tenant: Tenant, name: str, lanes: int | None) -> None:
        """Cut it anew, by the destination's regions as they are now. StateForbids while a change is refused."""
        _, scopes = recut(self.catalog, tenant, name, lanes, self.clock)
        replace_lanes(self.catalog, tenant, name, scopes)

    def decide(self, tenant: Tenant, name: str, number: int, *, leave_out: bool) -> None:
        """Try the refused change of a lane again, or leave it out. StateForbids when the lane is not stopped."""
        replications.decide_refusal(self.catalog, tenant, name, number, leave_out=leave_out)

    def tables(self, tenant: Tenant, name: str) -> list[dict[str, Any]]:
        """The tables that it writes, each with its lane; none before the first schema snapshot."""
        row, feed = get_tenant(self.catalog, tenant), replication_of(self.catalog, tenant, name)
        return tables_by_lane(self.catalog, self.registry, row, feed)

    def _reached(self, target: Target, name: str, wanted: Wanted) -> Reached:
        """Reach the destination and the place of dead letters. InvalidInput, DestinationUnavailable,
        DeadLetterUnavailable."""
        if wanted.dead_letter:
            check_letters(wanted.dead_letter, target.uri, name, self.clock)
        return check_destination(target, name, self.clock)

    def _check_direction(self, row: TenantRow, name: str, reached: Reached, sees: Sees) -> None:
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
                    who = replications.called(other.tenant, feed.changefeed_id, row.tenant, sees)
                    raise InvalidInput(
                        f"{who} writes the other way, so that each would feed the other. Remove it before {name} is "
                        "created.",
                        option="sink-uri",
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
            return target, keys_of(row, wanted.keys)
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
