"""`tistream changefeed verify`: the log against the TiKV cluster, folder or bucket to which a changefeed writes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from tistream.cli.output import OutputForm, show_facts
from tistream.cli.service import connect
from tistream.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

    from backup.core.compare import Comparison
    from destinations.storage.core.order import Interval
    from destinations.storage.reread import Reread
    from destinations.uri import SinkUri
    from tistream.cli.changefeed_options import FeedOptions
    from tistream.cli.service import ServiceOptions
    from tistream.client import Client
    from tistream.client.tenant import Tenant as ApiTenant
    from tistream.keyrange import KeyRange

_SHOWN = 10
_EVENTS_MAX = 100_000


def verify_cluster(of: FeedOptions, to: ServiceOptions) -> bool:
    """Whether the destination, a TiKV cluster, has the keys of the log."""
    from backup.core.compare import FOUND
    from backup.from_log import LogScan
    from backup.replica import Sides, verify_replica
    from destinations.protocol import Share
    from destinations.tikv.destination import open_tikv
    from destinations.uri import parse_sink_uri
    from reading.kv.selection import kept_selection
    from tistream import ts as tso
    from tistream.catalog.rows.kinds import Keyspace
    from tistream.clock import SystemClock
    from tistream.ids import Tenant
    from tistream.outbound.policy import OPERATED

    clock, path = SystemClock(), of.feed()
    with connect(to.url) as client:
        feed = client.send("GET", path)
        kept = kept_selection(feed["keys"])
        if kept.value_pattern is not None:
            raise InvalidInput(
                f"Changefeed {of.name} leaves out values: its destination may show any earlier value of a key.",
                option="value-pattern",
            )
        keyspace = Keyspace(**{name: client.get(of.path())["keyspace"][name] for name in ("id", "name")})
        share = Share(tenant=Tenant(of.cluster, of.tenant), changefeed_id=of.name, number=0, of=1)
        source = client.tenant(of.cluster, of.tenant)
        with closing(open_tikv(parse_sink_uri(feed["sink_uri"]), share, keyspace, clock, OPERATED)) as there:
            sides = Sides(
                source=lambda ts, part: _only(LogScan(source, ts).scan(part), kept.key_pattern),
                versions=partial(_written, source),
                destination=lambda part: _only(_scanned(there.pairs(part), FOUND), kept.key_pattern),
                bounds=lambda: _bounds(client.send("GET", path)),
                now_s=lambda: tso.physical_ms(there.now_ts()) // 1000,
            )
            as_of, comparison = verify_replica(sides, kept.range, clock=clock)
    _show_keys(as_of, comparison, to.output)
    return comparison.equal


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


def _scanned(pages: Iterator[pa.Table], schema: pa.Schema) -> Iterator[pa.Table]:
    """Pages of a scan, which says no expiry."""
    import pyarrow as pa

    for page in pages:
        unknown = pa.nulls(page.num_rows, pa.uint64())
        yield pa.Table.from_arrays([page["key"], page["value"], unknown], schema=schema)


def _show_keys(as_of: int, comparison: Comparison, output: OutputForm) -> None:
    from backup.core.compare import Fault

    facts: dict[str, Any] = {
        "equal": comparison.equal,
        "as_of": str(as_of),
        "pairs": comparison.source.pairs,
        "destination_pairs": comparison.destination.pairs,
        **{fault.value: count for fault, count in comparison.faults.items() if fault is not Fault.EXPIRY},
        "expiries": "not compared",  # a scan tells none
        "about_to_expire": comparison.about_to_expire,
    }
    show_facts(facts, output)
    for each in comparison.differences[:_SHOWN]:
        print(
            f"{each.fault}: key 0x{each.key.hex()}, source {each.source}, destination {each.destination}",
            file=sys.stderr,
        )


def verify_files(of: FeedOptions, to: ServiceOptions) -> bool:
    """Whether the files have the changes of the log, in order, and twice only where an event says so."""
    from destinations.storage.core.order import rows_reader
    from destinations.storage.files import open_files
    from destinations.storage.reread import ExpectedRows, reread
    from destinations.storage.settings import read_settings
    from tistream.clock import SystemClock
    from tistream.outbound.policy import OPERATED

    path = of.feed()
    with connect(to.url) as client:
        feed = client.send("GET", path)
        settings = read_settings(_reachable(feed["sink_uri"]))
        if settings.folder and not os.path.isdir(settings.folder):
            raise InvalidInput(
                f"There is no folder {settings.folder} here: run this where replicators run.", option="sink-uri"
            )
        read_rows = rows_reader(settings.protocol, settings.options)
        upto = int(feed["checkpoint_ts"])
        begins = int(client.send("GET", of.path())["earliest_ts"])
        above = min(max(int(feed["start_ts"]), begins), upto)
        tables = client.send("GET", f"{path}/tables")["items"]
        promised = ExpectedRows(
            above=above,
            upto=upto,
            log=_log(client, of, above, upto, feed["filters"]),
            without_key=frozenset((row["database"], row["table"]) for row in tables if not row["has_key"]),
            named=_named(client, of),
        )
        files = open_files(settings, SystemClock(), OPERATED)
        faults = asyncio.run(reread(files, settings.layout, read_rows, promised))
    _show_files(promised.above, upto, faults, to.output)
    return faults.is_right


def _reachable(sink_uri: str) -> SinkUri:
    """The destination without the keys that the service does not show: those of this process are used then."""
    from dataclasses import replace

    from destinations.uri import parse_sink_uri

    uri = parse_sink_uri(sink_uri)
    if uri.options.get("secret-access-key") is None:
        return uri
    keys = ("access-key", "secret-access-key", "session-token")
    return replace(uri, options={option: text for option, text in uri.options.items() if option not in keys})


def _log(client: Client, of: FeedOptions, above: int, upto: int, filters: dict[str, Any]) -> dict[Any, Any]:
    """The commit timestamps of the changes of each table, by the names that they had."""
    import numpy as np

    from tistream.client import frames

    parts: dict[tuple[str, str], list[Any]] = {}
    pages = client.tenant(of.cluster, of.tenant).changes(start=above, end=upto, **filters).pages("raw-arrow")
    for page in pages:
        rows = frames.read(page.content)
        for group in rows.group_by(["database", "table"]).aggregate([("commit_ts", "list")]).to_batches():
            for db, table, commit_ts in zip(
                *(group.column(n) for n in ("database", "table", "commit_ts_list")), strict=True
            ):
                parts.setdefault((db.as_py(), table.as_py()), []).append(commit_ts.values.to_numpy())
    return {name: np.concatenate(each) for name, each in parts.items()}


def _named(client: Client, of: FeedOptions) -> list[Interval]:
    """What events say of changes that the changefeed writes twice; of those before its creation, too, when an earlier
    changefeed has written to its place."""
    from tistream.cli.operate import OneTenantOptions, pages

    query = OneTenantOptions(cluster=of.cluster, tenant=of.tenant).query() | {"kind": "changefeed"}
    intervals, others_count = [], False
    for event in pages(client, "/v1/events", _EVENTS_MAX, query):
        detail, is_own = event["detail"], event["subject"] == of.name
        if (is_own or others_count) and "repeats_upto" in detail:
            intervals.append((int(detail["repeats_above"]), int(detail["repeats_upto"])))
        if is_own and event["kind"] == "changefeed.created":  # the newest events come first
            others_count |= "repeats_upto" in detail
            if not others_count:
                break
    return intervals


def _show_files(above: int, upto: int, reread: Reread, output: OutputForm) -> None:
    from destinations.storage.core.order import RowProblem

    facts: dict[str, Any] = {
        "equal": reread.is_right,
        "above": str(above),
        "as_of": str(upto),
        "files": reread.files,
        "rows": reread.rows,
        **{kind.name.lower(): reread.count(kind) for kind in RowProblem},
        "found": [
            {
                "kind": each.kind.name.lower(),
                "place": each.place,
                "other": each.other,
                "rows": each.rows,
                "least_ts": str(each.least_ts),
                "most_ts": str(each.most_ts),
            }
            for each in reread.found
        ],
    }
    show_facts(facts, output)
    for each in sorted(reread.found, key=lambda each: not each.kind.is_fault)[:_SHOWN]:
        print(each, file=sys.stderr)
