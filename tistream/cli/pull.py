"""`tistream pull`: writes changes to standard output."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated
from urllib.parse import parse_qsl, unquote, urlsplit

import typer

from tistream.cli.consumer_pull import Lease, Member, Name, write_batches
from tistream.cli.filter_options import Changed, Columns, FilterFile, Ops, Tables, Where, filters_of
from tistream.cli.following import StatusLine, Whole
from tistream.cli.key_options import (
    EndKey,
    FormatOfKeys,
    KeyPattern,
    Keys,
    Prefix,
    StartKey,
    ValuePattern,
    key_options,
)
from tistream.cli.options import DEFAULT_URL, Cluster, Key, Tenant, Url
from tistream.errors import InvalidInput
from tistream.limits import CONSUMER_LEASE_S_DEFAULT

if TYPE_CHECKING:
    from tistream.client import Changes, Client

DEFAULT_FORMAT = "ndjson"
_RULES = frozenset({"tables", "columns", "ops", "changed"})  # filters that may be repeated in a URL's query
#: in a URL's query; others are options of the format
_OWN_WORDS = frozenset(
    {"format", "end_ts", "limit", "cursor", "wait", "where", "event_filters", "snapshot", "as_of", *_RULES}
)


Since = Annotated[
    str | None, typer.Option(help="TSO, RFC 3339 time, earliest (default), latest or a span such as -15m.")
]
Snapshot = Annotated[bool, typer.Option("--snapshot", help="First all rows as of --as-of, then the changes above it.")]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C or until --until is reached.")
]
FormatName = Annotated[
    str | None,
    typer.Option(
        help="ndjson, canal-json, debezium, open-protocol, simple, csv, json or arrow; of keys ndjson, json, arrow "
        "or tikv-cdc. By default rows for people on a terminal, and ndjson elsewhere."
    ),
]
AsOf = Annotated[str | None, typer.Option(help="Of --snapshot: TSO or time; the watermark by default.")]


def pull(
    what: Annotated[str, typer.Argument(help="'database', 'database.table', '*', or a whole .../changes URL.")] = "*",
    url: Url = DEFAULT_URL,
    key: Key = None,
    cluster: Cluster = 1,
    tenant: Tenant = 1,
    since: Since = None,
    until: Annotated[str | None, typer.Option(help="Nothing above this TSO or time.")] = None,
    cursor: Annotated[str | None, typer.Option(help="Resume here; wins over --since.")] = None,
    snapshot: Snapshot = False,
    as_of: AsOf = None,
    follow: Follow = False,
    format: FormatName = None,
    option: Annotated[list[str] | None, typer.Option("--option", "-O", help="NAME=VALUE of the format.")] = None,
    tables: Tables = None,
    columns: Columns = None,
    ops: Ops = None,
    where: Where = None,
    changed: Changed = None,
    filter_file: FilterFile = None,
    keys: Keys = False,
    start_key: StartKey = None,
    end_key: EndKey = None,
    prefix: Prefix = None,
    key_format: FormatOfKeys = None,
    key_pattern: KeyPattern = None,
    value_pattern: ValuePattern = None,
    consumer: Name = None,
    member: Member = "default",
    lease: Lease = CONSUMER_LEASE_S_DEFAULT,
) -> None:
    """Pull changes of a tenant, a database, a table, keys or a registered consumer, in commit order.

    The query of a whole URL is used too: start_ts, end_ts, cursor, format, limit, filters and the format's options. A
    flag takes precedence.
    """
    query: dict[str, str] = {}
    if what.startswith(("http://", "https://")):
        url, cluster, tenant, database, table = parse_url(what)
        query = parse_query(what)
    else:
        database, table = parse_names(what)
    for name in ("start_ts", "start-ts"):
        since = since or query.pop(name, None)
    asked = _Asked(
        url=url, cluster=cluster, tenant=tenant, database=database, table=table, since=since,
        snapshot=snapshot or query.get("snapshot") == "true", as_of=as_of or query.get("as_of"),
        format=format or query.get("format"),
        until=until or query.get("end_ts"),
        limit=_limit(query.get("limit")),
        options={k: v for k, v in query.items() if k not in _OWN_WORDS} | dict(_option(text) for text in option or ()),
        filters=filters_of(
            query, filter_file, tables=tables, columns=columns, ops=ops, where=where, changed=changed
        ),
    )  # fmt: skip
    chosen = key_options(
        keys=keys or is_kv(what), address=is_kv(what),
        others={"database": database, "filters": asked.filters, "snapshot": asked.snapshot, "consumer": consumer},
        start_key=start_key, end_key=end_key, prefix=prefix, key_format=key_format, key_pattern=key_pattern,
        value_pattern=value_pattern,
    )  # fmt: skip
    if chosen is not None:
        asked = replace(asked, kv=True, options=asked.options | chosen)
    at = cursor or query.get("cursor")
    if consumer is None:
        _write(asked, at, follow=follow)
    else:
        _write_consumer(asked, at, consumer, member, lease, follow=follow)


def _write_consumer(asked: _Asked, at: str | None, name: str, member: str, lease_s: float, *, follow: bool) -> None:
    """Write what a registered consumer reads. It has its position and its filters."""
    from tistream.client import connect

    if at or asked.since or asked.until or asked.database or asked.filters:
        raise InvalidInput("A consumer has its own scope, position and filters: leave them out with --consumer.")
    with connect(asked.url, sleep=_patience(asked.url)) as client:
        consumer = client.tenant(asked.cluster, asked.tenant).consumer(
            name,
            member=member,
            lease_s=lease_s,
            format=asked.format or DEFAULT_FORMAT,
            limit=asked.limit,
            options=asked.options,
        )
        write_batches(consumer, asked.format, follow=follow)


def _write(asked: _Asked, at: str | None, *, follow: bool) -> None:
    """Write the pages from `at` on."""
    from tistream.cli.pages_out import drop_output, output_of
    from tistream.client import connect

    status = StatusLine(sys.stderr if follow and sys.stderr.isatty() else None)
    out = output_of(asked.format, sys.stdout.buffer, follow=follow)
    with connect(asked.url, sleep=_patience(asked.url)) as client, Whole() as whole:
        try:
            try:
                for page in asked.changes(client, at, follow=follow).pages(asked.format or DEFAULT_FORMAT, asked.sent):
                    with whole:
                        status.clear()
                        rows = out.write(page)
                        at = page.next_cursor
                    status.show(rows, page.resolved_ts, at)
                    if page.quarantined:
                        print(f"tistream: {page.quarantined} rows of this page could not be decoded", file=sys.stderr)
                out.close()
            except KeyboardInterrupt:
                status.clear()
                out.close()
                print(f"\nresume with: {asked.resume(at or '', follow=follow)}", file=sys.stderr)
                if not follow:
                    raise
        except BrokenPipeError:
            drop_output()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The pull that flags and URL describe."""

    url: str
    cluster: int
    tenant: int
    database: str | None
    table: str | None
    format: str | None
    until: str | None
    limit: int | None
    since: str | None = None
    snapshot: bool = False
    as_of: str | None = None
    options: dict[str, str]
    filters: dict[str, str]
    kv: bool = False  #: keys and values

    @property
    def sent(self) -> dict[str, str]:
        """The part of the query that the client passes on as it is."""
        return self.options | self.filters

    def changes(self, client: Client, cursor: str | None, *, follow: bool) -> Changes:
        """What is pulled, from the cursor on."""
        tenant = client.tenant(self.cluster, self.tenant)
        scope = tenant.keys() if self.kv else tenant.within(self.database, self.table)
        return (scope.follow if follow else scope.changes)(
            start=self.since, end=self.until, cursor=cursor, snapshot=self.snapshot, as_of=self.as_of, limit=self.limit
        )

    def resume(self, cursor: str, *, follow: bool) -> str:
        """A command line that continues at the cursor."""
        names = ".".join(name for name in (self.database, self.table) if name) or "*"
        words = ["tistream", "pull", names, "--url", self.url, "-c", str(self.cluster), "-t", str(self.tenant)]
        words += ["--keys"] if self.kv else []
        words += ["--format", self.format] if self.format else []
        for name, value in self.options.items():
            words += ["-O", f"{name}={value}"]
        for name, value in self.filters.items():
            words += ["-O", f"{name}={value}"] if name == "event_filters" else [f"--{name}={value}"]
        words += ["--until", self.until] if self.until else []
        words += ["--snapshot"] if self.snapshot else []
        words += ["--as-of", self.as_of] if self.as_of and not cursor else []
        since = ["--since", self.since] if self.since else []
        words += ["--cursor", cursor] if cursor else since
        return shlex.join(words + (["--follow"] if follow else []))


def is_kv(what: str) -> bool:
    """Whether this is the URL of keys and values."""
    return what.startswith(("http://", "https://")) and urlsplit(what).path.rstrip("/").endswith("/kv/changes")


def parse_names(what: str) -> tuple[str | None, str | None]:
    """'*' -> whole tenant, 'db' -> database, 'db.table' -> table."""
    if what in ("*", ""):
        return None, None
    database, _, table = what.partition(".")
    return database, table or None


def parse_url(text: str) -> tuple[str, int, int, str | None, str | None]:
    """(service, cluster, tenant, database, table) of a .../changes URL."""
    parts = urlsplit(text)
    words = [unquote(w) for w in parts.path.strip("/").split("/")]
    names = dict(zip(words[1::2], words[2::2], strict=False))
    try:
        cluster, tenant = int(names["clusters"]), int(names["tenants"])
    except (KeyError, ValueError) as e:
        raise InvalidInput(f"{text} is not a .../v1/clusters/C/tenants/T/.../changes address.") from e
    return f"{parts.scheme}://{parts.netloc}", cluster, tenant, names.get("databases"), names.get("tables")


def _option(text: str) -> tuple[str, str]:
    name, eq, value = text.partition("=")
    if not eq:
        raise InvalidInput(f"--option {text}: write NAME=VALUE.")
    return name, value


def parse_query(text: str) -> dict[str, str]:
    """The query of a .../changes URL; of a repeated name the last value, of rules all."""
    found: dict[str, str] = {}
    for name, value in parse_qsl(urlsplit(text).query, keep_blank_values=True):
        found[name] = f"{found[name]},{value}" if name in _RULES and name in found else value
    return found


def _limit(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal():
        raise InvalidInput(f"limit={text}: give a number of rows.")
    return int(text)


def _patience(url: str) -> Callable[[float], None]:
    """How the client sleeps between tries: on a terminal it prints once that it waits."""
    said = False

    def sleep(seconds: float) -> None:
        nonlocal said
        if not said and sys.stderr.isatty():
            print(f"waiting for {url} ...", file=sys.stderr)
            said = True
        time.sleep(seconds)

    return sleep
