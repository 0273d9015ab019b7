"""Creates, changes and repairs changefeeds.

Before a changefeed starts, its destination is asked, its lanes are cut, and its start is checked against the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from destinations.letters.place import check_letters, letters_location
from destinations.opening import (
    Reached,
    Target,
    check_destination,
    cut_lanes,
    keys_of,
    location_of,
    operated_of,
    recut,
)
from destinations.tables import tables_by_lane, tables_without_key
from reading.filters import parse_filter
from reading.kv.selection import kept_selection
from reading.rows.scope import Scope
from schemas.registry.schema_registry import SchemaRegistry
from tistream import ts as tso
from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.kinds import TenantKind
from tistream.catalog.rows.tenants import TenantRow
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS, ChangefeedRow
from tistream.catalog.tenancy.targets import policy_of
from tistream.catalog.tenancy.tenants import GIVEN_UP, every_tenant, get_tenant
from tistream.catalog.work import changefeeds
from tistream.catalog.work.changefeeds import Sees, no_other
from tistream.catalog.work.core.location import location_facts
from tistream.catalog.work.lanes import replace_lanes
from tistream.clock import Clock
from tistream.errors import InvalidInput, TsExpired
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.outbound.policy import Policy, Terms
from tistream.outbound.rules import TargetRefused

_NAMED = 5  # tables of a note


class TransactionsThere(InvalidInput):
    """A changefeed of RawKV would write to a cluster or keyspace from which transactions are captured."""

    code = "TS-1106"
    hint = (
        "Name the PD of the recovery cluster, or another keyspace. If RawKV data does belong there, beside that of "
        "TiDB with API V2, register and push its keyspace as a raw tenant first. docs/replication.md has the rule."
    )

    @classmethod
    def of(cls, captured: TenantRow, reached: Reached, sees: Sees) -> TransactionsThere:
        """`captured`: the tenant of TiDB or TxnKV; its name is for those who may see it."""
        where = f"cluster {reached.cluster_id}"
        if captured.kind is TenantKind.TXN:
            where = f"keyspace {reached.keyspace_id} of {where}"
        data = "TiDB" if captured.kind is TenantKind.TIDB else "TxnKV"
        who = f"tenant {captured.tenant} of {data}" if sees(captured.tenant) else f"a tenant of {data}"
        return cls(
            f"The destination is {where}, from which {who} is captured: keys of RawKV do not belong there.",
            option="sink-uri",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangefeedSettings:
    """The settings of a changefeed."""

    sink_uri: str
    filters: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)  #: the entries of a keyspace, see `kept_selection`
    target_ts: int = 0
    hold_ms: int = 86_400_000
    dead_letter: str = ""  #: URI of the place of refused changes; empty = none
    operated: bool = True  #: an operator asks for them; routes say so of their callers

    def operated_options(self, before: ChangefeedRow | None) -> tuple[str, ...]:
        """The URIs that an operator has named: now, or before and they are the same."""
        had = {} if before is None else {"sink-uri": before.sink_uri, "dead-letter": before.dead_letter}
        kept = () if before is None else operated_of(before.options)
        named = {"sink-uri": self.sink_uri, "dead-letter": self.dead_letter}
        return tuple(
            option
            for option, uri in named.items()
            if uri and ((option in kept and had[option] == uri) or (self.operated and had.get(option) != uri))
        )

    def options(self, target: Target, reached: Reached, keys: KeyRange, operated: Sequence[str]) -> str:
        """As the catalog keeps them, with what the destination is. `keys`: user keys of a keyspace. `operated`: the
        options that an operator has named."""
        options: dict[str, object] = {"sink_cluster": reached.cluster_id, "sink_keyspace": reached.keyspace_id}
        if operated:
            options["operated"] = list(operated)
        options["location"] = location_facts(location_of(target, reached, keys))
        if self.dead_letter:
            options["dead_letter"] = self.dead_letter
            options["dead_letter_location"] = location_facts(letters_location(self.dead_letter))
        return orjson.dumps({"keys": dict(self.keys), **options}, option=orjson.OPT_SORT_KEYS).decode()

    @property
    def filters_text(self) -> str:
        """As the catalog keeps them."""
        return orjson.dumps(dict(self.filters), option=orjson.OPT_SORT_KEYS).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangefeedControl:
    """The control plane of changefeeds."""

    catalog: Catalog
    clock: Clock
    registry: SchemaRegistry
    outbound: Terms  #: what the deployment allows for all tenants

    def create(
        self,
        tenant: Tenant,
        name: str,
        start_ts: int | None,
        given: ChangefeedSettings,
        *,
        lanes: int | None,
        actor: str,
        sees: Sees = no_other,
    ) -> tuple[bool, Sequence[str]]:
        """(whether it is new, what its user must know). InvalidInput names the option at fault. `sees`: the tenants
        that the user may know of, here as in what follows."""
        row = get_tenant(self.catalog, tenant)
        operated = given.operated_options(None)
        target, keys = self._checked(row, given, operated)
        reached = self._reached(target, name, given, operated)
        self._check_direction(row, name, target, reached, sees)
        notes = [*reached.notes, *self._without_key(row, given), *_without_start(row, start_ts)]
        scopes = cut_lanes(target, name, keys, lanes, self.clock)
        made = changefeeds.create_changefeed(
            self.catalog, tenant, name, start_ts, sink_uri=given.sink_uri, filters=given.filters_text, scopes=scopes,
            options=given.options(target, reached, keys, operated), target_ts=given.target_ts, hold_ms=given.hold_ms,
            actor=actor, sees=sees,
        )  # fmt: skip
        return made, notes

    def update(
        self, tenant: Tenant, name: str, given: ChangefeedSettings, *, actor: str, sees: Sees = no_other
    ) -> Sequence[str]:
        """Other settings of a changefeed that does not run; what its user must know. Its keys stay the same."""
        row = get_tenant(self.catalog, tenant)
        before = CHANGEFEEDS.get(self.catalog, tenant, name)
        operated = given.operated_options(before)
        target, keys = self._checked(row, given, operated)
        had = kept_selection(orjson.loads(before.options)["keys"]).range
        if row.kind.is_keyspace and kept_selection(given.keys).range != had:
            raise InvalidInput("The range of a changefeed cannot change: create another one.", option="start-key")
        reached = self._reached(target, name, given, operated)
        self._check_direction(row, name, target, reached, sees)
        notes = [*reached.notes, *self._without_key(row, given)]
        changefeeds.update_changefeed(
            self.catalog, tenant, name, sink_uri=given.sink_uri,
            options=given.options(target, reached, keys, operated), filters=given.filters_text,
            target_ts=given.target_ts, hold_ms=given.hold_ms, actor=actor, sees=sees,
        )  # fmt: skip
        return notes

    def resume(self, tenant: Tenant, name: str, to_ts: int | None, *, actor: str, sees: Sees = no_other) -> None:
        """Run it again, above `to_ts` if given, and try what was refused again. TsExpired when the log begins later."""
        if to_ts is not None and to_ts < (earliest_ts := get_tenant(self.catalog, tenant).earliest_ts):
            raise TsExpired(f"The log of this tenant begins at {earliest_ts}.", earliest_ts=str(earliest_ts))
        changefeeds.resume_changefeed(self.catalog, tenant, name, to_ts=to_ts, actor=actor, sees=sees)

    def rebalance(self, tenant: Tenant, name: str, lanes: int | None) -> None:
        """Cut it anew, by the destination's regions as they are now. StateForbids while a change is refused."""
        _, scopes = recut(self.catalog, tenant, name, lanes, self.clock, self.outbound)
        replace_lanes(self.catalog, tenant, name, scopes)

    def decide(
        self, tenant: Tenant, name: str, number: int, *, leave_out: bool, change: tuple[str, int] | None = None
    ) -> None:
        """Try the refused change of a lane again, or leave it out. StateForbids when the lane is not stopped."""
        changefeeds.decide_refusal(self.catalog, tenant, name, number, leave_out=leave_out, change=change)

    def tables(self, tenant: Tenant, name: str) -> list[dict[str, Any]]:
        """The tables that it writes, each with its lane; none before the first schema snapshot."""
        row, feed = get_tenant(self.catalog, tenant), CHANGEFEEDS.get(self.catalog, tenant, name)
        return tables_by_lane(self.catalog, self.registry, row, feed)

    def _reached(self, target: Target, name: str, given: ChangefeedSettings, operated: Sequence[str]) -> Reached:
        """Reach the destination and the place of dead letters. InvalidInput, TargetRefused, DestinationUnavailable,
        DeadLetterUnavailable."""
        if given.dead_letter:
            policy = self._policy(target.row.tenant, "dead-letter", operated)
            check_letters(given.dead_letter, target.uri, name, self.clock, policy)
        return check_destination(target, name, self.clock)

    def _policy(self, tenant: Tenant, option: str, operated: Sequence[str]) -> Policy:
        return policy_of(self.catalog, self.outbound, tenant, is_operated=option in operated)

    def _check_direction(self, row: TenantRow, name: str, target: Target, reached: Reached, sees: Sees) -> None:
        """InvalidInput when this changefeed would write to its own source, or another one writes the other way: each
        write would come back and be written again, without end. TargetRefused and TransactionsThere as
        `_check_sources`."""
        if reached.cluster_id is None:
            return
        self._check_sources(row, target, reached, sees)
        if row.upstream_id is None:
            return
        here, there = (row.upstream_id, row.keyspace.id), (reached.cluster_id, reached.keyspace_id)
        if here == there:
            raise InvalidInput("The destination is the keyspace that this tenant is.", option="sink-uri")
        for other in every_tenant(self.catalog):
            if (other.upstream_id, other.keyspace.id) != there:
                continue
            for feed in CHANGEFEEDS.of_tenant(self.catalog, other.tenant):
                options = orjson.loads(feed.options)
                if (options["sink_cluster"], options["sink_keyspace"]) == here:
                    who = changefeeds.called(other.tenant, feed.name, row.tenant, sees)
                    raise InvalidInput(
                        f"{who} writes the other way, so that each would feed the other. Remove it before {name} is "
                        "created.",
                        option="sink-uri",
                    )

    def _check_sources(self, row: TenantRow, target: Target, reached: Reached, sees: Sees) -> None:
        """TargetRefused when the destination is a cluster from which another tenant is captured, and an administrator
        of a tenant names it. TransactionsThere when an operator does, and what is captured are transactions: of TiDB,
        or of the keyspace that would be written. Not so where the same keyspace is captured as RawKV, too."""
        others = [other for other in every_tenant(self.catalog) if other.state not in GIVEN_UP]
        if not target.policy.is_operated and any(_is_source(other, row, reached) for other in others):
            raise TargetRefused(target=target.uri.place)
        there = [other for other in others if other.upstream_id == reached.cluster_id]
        place = reached.keyspace_id
        if place is not None and any(o.kind is TenantKind.RAW and o.keyspace.id == place for o in there):
            return
        for other in there:
            if other.kind is TenantKind.TIDB or (other.kind is TenantKind.TXN and other.keyspace.id == place):
                raise TransactionsThere.of(other, reached, sees)

    def _without_key(self, row: TenantRow, given: ChangefeedSettings) -> Sequence[str]:
        """What to know of tables whose rows nothing identifies; nothing before the first schema snapshot."""
        if row.kind.is_keyspace or not row.has_log:
            return ()
        history = self.registry.history(row.tenant)
        if history is None:
            return ()
        tables = tables_without_key(
            history, history.resolved_ts, Scope(tenant=row.tenant), parse_filter(dict(given.filters))
        )
        if not tables:
            return ()
        names = ", ".join(f"{table.db}.{table.name}" for table in tables[:_NAMED])
        more = f" and {len(tables) - _NAMED} more" if len(tables) > _NAMED else ""
        return (
            f"Nothing identifies the rows of {names}{more}: their changes are delivered at least once, and a repeated "
            "one cannot be told from another.",
        )

    def _checked(self, row: TenantRow, given: ChangefeedSettings, operated: Sequence[str]) -> tuple[Target, KeyRange]:
        """The destination, and the user keys of a keyspace. InvalidInput, FilterInvalid."""
        target = Target.of(given.sink_uri, row, self._policy(row.tenant, "sink-uri", operated))
        if row.kind.is_keyspace:
            if given.filters:
                raise InvalidInput("A keyspace has keys, not tables: filter by key.", option=next(iter(given.filters)))
            return target, keys_of(row, given.keys)
        if given.keys:
            raise InvalidInput("A tenant of TiDB has tables, not keys: filter by table.", option=next(iter(given.keys)))
        if "columns" in given.filters:
            raise InvalidInput("A destination gets whole rows: leave columns out where it is read.", option="columns")
        parse_filter(dict(given.filters))
        return target, KeyRange()


def _is_source(other: TenantRow, row: TenantRow, reached: Reached) -> bool:
    """Whether another tenant than `row` is captured from the destination. Before its first push its cluster is not
    known: then, of tenants of the same cluster, the one with this keyspace."""
    if other.tenant == row.tenant:
        return False
    if other.upstream_id is None and other.tenant.cluster_id == row.tenant.cluster_id:
        return other.kind.is_keyspace and other.keyspace.id in (None, reached.keyspace_id)
    return other.upstream_id == reached.cluster_id


def _without_start(row: TenantRow, start_ts: int | None) -> Sequence[str]:
    """What to know of a keyspace that is written from the beginning of a log whose first part retention has deleted."""
    if not row.kind.is_keyspace or start_ts is not None or row.floor_ts <= row.start_ts:
        return ()
    return (
        f"The log begins at {tso.described(row.floor_ts)}, because retention has deleted what was before: keys that "
        "were not written since are not in it and do not reach the destination. To have all, restore a backup there, "
        "and create the changefeed with its backup-ts as --start-ts.",
    )
