"""`tistream changefeed verify`: a keyspace by the log against the cluster to which its changefeed writes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from tistream.cli.output import Output, show_facts
from tistream.cli.service import connect, tenant_path
from tistream.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

    from backup.core.compare import Comparison
    from tistream.client import Client
    from tistream.keyrange import KeyRange

_SHOWN = 10


def verify(url: str, cluster: int, tenant: int, name: str, output: Output) -> bool:
    """Whether the destination has the keys of the log. InvalidInput for another destination than a TiKV cluster."""
    from backup.core.compare import FOUND
    from backup.from_log import LogScan
    from backup.replica import verify_replica
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
        keyspace = _keyspace_of(client, cluster, tenant)
        share = Share(tenant=Tenant(cluster, tenant), changefeed_id=name, number=0, of=1)
        source = client.tenant(cluster, tenant)
        with closing(open_tikv(parse_sink_uri(feed["sink_uri"]), share, keyspace, clock)) as there:
            as_of, found = verify_replica(
                lambda ts, part: LogScan(source, ts).scan(part),
                _scanned(there.pairs, FOUND),
                lambda: int(client.send("GET", path)["checkpoint_ts"]),
                kept_selection(feed["keys"]).range,
                clock=clock,
                now_s=lambda: tso.physical_ms(there.now_ts()) // 1000,
            )
    _show(as_of, found, output)
    return found.equal


def _keyspace_of(client: Client, cluster: int, tenant: int) -> int | None:
    keyspace = client.send("GET", tenant_path(cluster, tenant))["keyspace"]
    return None if keyspace is None else keyspace["id"]


def _scanned(
    pairs: Callable[[KeyRange], Iterator[pa.Table]], schema: pa.Schema
) -> Callable[[KeyRange], Iterator[pa.Table]]:
    """Pages of a scan, which says no expiry."""
    import pyarrow as pa

    def scan(part: KeyRange) -> Iterator[pa.Table]:
        for page in pairs(part):
            unknown = pa.nulls(page.num_rows, pa.uint64())
            yield pa.Table.from_arrays([page["key"], page["value"], unknown], schema=schema)

    return scan


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
