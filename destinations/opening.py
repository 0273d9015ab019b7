"""Opens the destination of a changefeed by its sink URI, and checks it before the changefeed starts.

check_destination   is it there, does it take what the tenant has; what must its user know
location_of            what it writes there, to be compared with other changefeeds
cut_lanes           the lanes of a changefeed: sub-ranges aligned with the destination's regions, or shares of tables
open_destination    for the owner of a lane
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import orjson

from destinations.protocol import Destination, Share
from destinations.storage.destination import open_storage
from destinations.storage.settings import read_settings
from destinations.tikv.destination import TikvDestination, open_tikv
from destinations.uri import SinkUri, parse_sink_uri
from reading.kv.selection import kept_selection
from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.kinds import TenantKind
from tistream.catalog.rows.tenants import TenantRow
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS
from tistream.catalog.tenancy.targets import policy_of
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.catalog.work.core.lane_scope import KeyScope, LaneScope, TableScope, covers
from tistream.catalog.work.core.location import Files, Keys, Location
from tistream.catalog.work.lanes import LaneRow, list_lanes
from tistream.clock import Clock
from tistream.errors import InvalidInput, StateForbids, invariant
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.outbound.policy import Policy, Terms

LANES = 2  #: unless given


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A destination and the tenant that is written to it."""

    uri: SinkUri
    row: TenantRow
    policy: Policy  #: what it may open
    cluster_id: int | None = None  #: PD's, which it had when the changefeed was created

    @classmethod
    def of(cls, sink_uri: str, row: TenantRow, policy: Policy) -> Target:
        """InvalidInput for a URI that is none, or a destination that does not take the tenant's kind."""
        uri = parse_sink_uri(sink_uri)
        takes = TenantKind.RAW if uri.scheme == "tikv" else TenantKind.TIDB
        if row.kind is not takes:
            what = "RawKV tenants" if takes is TenantKind.RAW else "tenants of TiDB"
            raise InvalidInput(
                f"A {uri.scheme} destination takes {what}, and tenant {row.tenant} is of kind {row.kind}.",
                option="sink-uri",
            )
        return cls(uri=uri, row=row, policy=policy)

    def open(self, share: Share, clock: Clock) -> Destination:
        """The destination for one lane."""
        if self.uri.scheme == "tikv":
            return open_tikv(self.uri, share, self.row.keyspace, clock, self.policy, self.cluster_id)
        return open_storage(self.uri, share, self.policy, clock)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What a check has found."""

    notes: Sequence[str]  #: what the user of the changefeed must know
    cluster_id: int | None = None  #: PD's, of a TiKV cluster
    keyspace_id: int | None = None


def check_destination(target: Target, changefeed_id: str, clock: Clock) -> Reached:
    """Reach the destination. InvalidInput names the option at fault; DestinationUnavailable when nothing answers."""
    share = Share(tenant=target.row.tenant, changefeed_id=changefeed_id, number=0, of=1)
    opened = target.open(share, clock)
    try:
        notes = opened.check()
        if not isinstance(opened, TikvDestination):
            return Reached(notes=notes)
        reached = opened.look()
        return Reached(notes=notes, cluster_id=reached.cluster_id, keyspace_id=reached.keyspace_id)
    finally:
        opened.close()


def location_of(target: Target, reached: Reached, keys: KeyRange) -> Location:
    """Where a changefeed writes. `keys`: user keys of a keyspace."""
    uri = target.uri
    if reached.cluster_id is not None:
        return Keys(cluster_id=reached.cluster_id, keyspace_id=reached.keyspace_id, range=keys)
    endpoint = uri.options.get("endpoint", "")
    return Files.of(scheme=uri.scheme, bucket=uri.authority, path=uri.path, endpoint=endpoint)


def cut_lanes(
    target: Target, changefeed_id: str, range_: KeyRange, lanes: int | None, clock: Clock
) -> Sequence[LaneScope]:
    """The lanes of a changefeed. `range_`: user keys of a keyspace. `lanes`: as many; None = as the URI's worker-count
    says, else LANES. DestinationUnavailable when its regions cannot be read."""
    if not target.row.kind.is_keyspace:
        count = lanes or read_settings(target.uri).worker_count or LANES
        return [TableScope(number=number, of=count) for number in range(count)]
    share = Share(tenant=target.row.tenant, changefeed_id=changefeed_id, number=0, of=1)
    opened = target.open(share, clock)
    try:
        ranges = opened.ranges(range_, lanes or LANES)
    finally:
        opened.close()
    invariant(covers(ranges, range_), "the lanes of a changefeed cover its keys once", lanes=[str(r) for r in ranges])
    return [KeyScope(range=part) for part in ranges]


def open_destination(
    sink_uri: str,
    row: TenantRow,
    tenant: Tenant,
    changefeed_id: str,
    number: int,
    of: int,
    clock: Clock,
    policy: Policy,
    options: str = "{}",
) -> Destination:
    """The destination of a lane. `options` of the changefeed, as the catalog has them: a cluster that is another one
    than when it was created is refused when it is first used."""
    share = Share(tenant=tenant, changefeed_id=changefeed_id, number=number, of=of)
    cluster_id = orjson.loads(options).get("sink_cluster")
    return replace(Target.of(sink_uri, row, policy), cluster_id=cluster_id).open(share, clock)


def operated_of(options: str) -> Sequence[str]:
    """The options of a changefeed that an operator has named: `sink-uri`, `dead-letter`. `options`: as the catalog has
    them."""
    return tuple(orjson.loads(options).get("operated", ()))


def keys_of(row: TenantRow, keys: Mapping[str, str]) -> KeyRange:
    """The user keys of a keyspace that a changefeed's settings mean. InvalidInput when the tenant has none of them."""
    if not row.kind.is_keyspace:
        return KeyRange()
    wanted = kept_selection(keys).range.intersect(row.user_keys)
    if wanted is None:
        raise InvalidInput(f"The tenant has the keys {row.user_keys}: none of them is wanted.", option="start-key")
    return wanted


def recut(
    catalog: Catalog, tenant: Tenant, changefeed_id: str, lanes: int | None, clock: Clock, terms: Terms
) -> tuple[Sequence[LaneRow], Sequence[LaneScope]]:
    """(the lanes of a changefeed, new ones by the regions of its destination). `lanes`: as many as now unless
    given. StateForbids while a lane waits for a decision, and for a consumer."""
    row, feed = get_tenant(catalog, tenant), CHANGEFEEDS.get(catalog, tenant, changefeed_id)
    before = list_lanes(catalog, tenant, changefeed_id)
    if not before:
        raise StateForbids(f"Changefeed {changefeed_id} has no destination: members read it.", state=feed.state)
    for lane in before:
        if lane.is_stopped:
            raise StateForbids(f"Lane {lane.number} waits for a decision about a refused change.", lane=lane.number)
    keys = keys_of(row, orjson.loads(feed.options)["keys"])
    policy = policy_of(catalog, terms, tenant, is_operated="sink-uri" in operated_of(feed.options))
    return before, cut_lanes(Target.of(feed.sink_uri, row, policy), changefeed_id, keys, lanes or len(before), clock)
