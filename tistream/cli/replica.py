"""`tistream changefeed verify`: a keyspace by the log against the cluster to which its changefeed writes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from tistream.cli.output import Output, show_facts
from tistream.cli.service import connect, tenant_path
from tistream.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

    from backup.core.compare import Comparison
    from tistream.catalog.tenancy.kinds import Keyspace
    from tistream.client import Client
    from tistream.client.tenant import Tenant as ApiTenant
    from tistream.keyrange import KeyRange

_SHOWN = 10


def verify(url: str, cluster: int, tenant: int, name: str, output: Output) -> bool:
    """Whether the destination has the keys of the log. InvalidInput for another destination than a TiKV cluster."""
    from backup.core.compare import FOUND
    from backup.from_log import LogScan
    from backup.replica import Sides, verify_replica
    from destinations.protocol import Share
    from destinations.tikv.destination import open_tikv
    from destinations.uri import parse_sink_uri
    from reading.kv.selection import kept_selection
    from tistream import ts as tso
    from tistream.clock import SystemClock
    from tistream.ids import Tenant

    clock, path = SystemClock(), tenant_path(cluster, tenant, "changefeeds", name)
    with connect(url) as client:
        feed = client.send("GET", path)
        if not feed["sink_uri"].startswith("tikv:"):
            raise InvalidInput(
                f"Changefeed {name} writes to no TiKV cluster: there is nothing to scan.", option="sink-uri"
            )
        kept = kept_selection(feed["keys"])
        if kept.value_pattern is not None:
            raise InvalidInput(
                f"Changefeed {name} leaves out values: its destination may show any earlier value of a key.",
                option="value-pattern",
            )
        keyspace = _keyspace_of(client, cluster, tenant)
        share = Share(tenant=Tenant(cluster, tenant), changefeed_id=name, number=0, of=1)
        source = client.tenant(cluster, tenant)
        with closing(open_tikv(parse_sink_uri(feed["sink_uri"]), share, keyspace, clock)) as there:
            sides = Sides(
                source=lambda ts, part: _only(LogScan(source, ts).scan(part), kept.key_pattern),
                versions=partial(_written, source),
                destination=lambda part: _only(_scanned(there.pairs(part), FOUND), kept.key_pattern),
                bounds=lambda: _bounds(client.send("GET", path)),
                now_s=lambda: tso.physical_ms(there.now_ts()) // 1000,
            )
            as_of, found = verify_replica(sides, kept.range, clock=clock)
    _show(as_of, found, output)
    return found.equal


def _bounds(feed: dict[str, Any]) -> tuple[int, int]:
    """(checkpoint_ts, the highest attempted_ts of the lanes)."""
    checkpoint_ts = int(feed["checkpoint_ts"])
    return checkpoint_ts, max((int(lane["attempted_ts"]) for lane in feed["lanes"]), default=checkpoint_ts)


def _written(source: ApiTenant, above: int, upto: int, part: KeyRange) -> Iterator[pa.Table]:
    """The writes of a range in the log above a timestamp, up to another (schema VERSIONS)."""
    from backup.replica import VERSIONS
    from tistream.client import frames

    keys = source.keys(start=part.start or None, end=part.end or None)
    for page in keys.changes(start=above, end=upto).pages("arrow"):
        rows = frames.read(page.content)
        yield rows.select(VERSIONS.names).cast(VERSIONS)


def _only(pages: Iterator[pa.Table], pattern: bytes | None) -> Iterator[pa.Table]:
    """The pairs whose keys have a match."""
    import pyarrow.compute as pc

    for page in pages:
        yield page if pattern is None else page.filter(pc.match_substring_regex(page["key"], pattern))


def _keyspace_of(client: Client, cluster: int, tenant: int) -> Keyspace:
    from tistream.catalog.tenancy.kinds import Keyspace

    found = client.send("GET", tenant_path(cluster, tenant))["keyspace"]
    return Keyspace(id=found["id"], name=found["name"])


def _scanned(pages: Iterator[pa.Table], schema: pa.Schema) -> Iterator[pa.Table]:
    """Pages of a scan, which says no expiry."""
    import pyarrow as pa

    for page in pages:
        unknown = pa.nulls(page.num_rows, pa.uint64())
        yield pa.Table.from_arrays([page["key"], page["value"], unknown], schema=schema)


def _show(as_of: int, found: Comparison, output: Output) -> None:
    facts: dict[str, Any] = {
        "equal": found.equal,
        "as_of": str(as_of),
        "pairs": found.source.pairs,
        "destination_pairs": found.destination.pairs,
        **{fault.value: count for fault, count in found.faults.items()},
        "about_to_expire": found.about_to_expire,
    }
    show_facts(facts, output)
    for each in found.differences[:_SHOWN]:
        print(
            f"{each.fault}: key 0x{each.key.hex()}, source {each.source}, destination {each.destination}",
            file=sys.stderr,
        )
