"""`tistream pull`: writes changes to standard output.

Ctrl-C while a page is being written takes effect after the page, so the command that resumes neither repeats nor skips
a row. A second Ctrl-C takes effect at once. A batch of a registered consumer is acknowledged after its rows have been
written and flushed. A member that is killed in between leaves its rows to the next one, which writes them again.
"""

from __future__ import annotations

import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Annotated, Self, TextIO
from urllib.parse import parse_qsl, unquote, urlsplit

import typer

from tistream.cli.filter_options import FilterFile, FilterOptions, KeyFilterOptions, chosen_keys, filters_of
from tistream.cli.options import DEFAULT_URL, Cluster, Tenant, Url
from tistream.cli.pages_out import drop_output, output_of
from tistream.cli.terminal import clean, unguarded
from tistream.errors import InvalidInput
from tistream.limits import CONSUMER_LEASE_S_DEFAULT

if TYPE_CHECKING:
    from tistream.client import Changes, Client, Consumer

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
    *,
    what: Annotated[str, typer.Argument(help="'database', 'database.table', '*', or a whole .../changes URL.")] = "*",
    url: Url = DEFAULT_URL,
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
    filters: FilterOptions,
    filter_file: FilterFile = None,
    of_keys: KeyFilterOptions,
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
    request = PullRequest(
        url=url, cluster=cluster, tenant=tenant, database=database, table=table, since=since,
        snapshot=snapshot or query.get("snapshot") == "true", as_of=as_of or query.get("as_of"),
        format=format or query.get("format"),
        until=until or query.get("end_ts"),
        limit=_limit(query.get("limit")),
        options={k: v for k, v in query.items() if k not in _OWN_WORDS} | dict(_option(text) for text in option or ()),
        filters=filters_of(query, filter_file, filters),
    )  # fmt: skip
    others = {"database": database, "filters": request.filters, "snapshot": request.snapshot, "consumer": consumer}
    chosen = chosen_keys(of_keys, others=others, keys=is_kv(what), address=is_kv(what))
    if chosen is not None:
        request = replace(request, kv=True, options=request.options | chosen)
    at = cursor or query.get("cursor")
    if consumer is None:
        _write(request, at, follow=follow)
    else:
        _write_consumer(request, at, consumer, member, lease, follow=follow)


def _write_consumer(
    request: PullRequest, at: str | None, name: str, member: str, lease_s: float, *, follow: bool
) -> None:
    """Write what a registered consumer reads. It has its position and its filters."""
    from tistream.client import connect

    if at or request.since or request.until or request.database or request.filters:
        raise InvalidInput("A consumer has its own scope, position and filters: leave them out with --consumer.")
    with connect(request.url, sleep=_patience(request.url)) as client:
        consumer = client.tenant(request.cluster, request.tenant).consumer(
            name,
            member=member,
            lease_s=lease_s,
            format=request.format or DEFAULT_FORMAT,
            limit=request.limit,
            options=request.options,
        )
        write_batches(consumer, request.format, follow=follow)


def _write(request: PullRequest, at: str | None, *, follow: bool) -> None:
    """Write the pages from `at` on."""
    from tistream.cli.pages_out import drop_output, output_of
    from tistream.client import connect

    status = StatusLine(sys.stderr if follow and sys.stderr.isatty() else None)
    out = output_of(request.format, sys.stdout.buffer, follow=follow)
    with connect(request.url, sleep=_patience(request.url)) as client, DeferInterrupt() as deferred:
        try:
            try:
                for page in request.changes(client, at, follow=follow).pages(
                    request.format or DEFAULT_FORMAT, request.sent
                ):
                    with deferred:
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
                print(f"\nresume with: {request.resume(at or '', follow=follow)}", file=sys.stderr)
                if not follow:
                    raise
        except BrokenPipeError:
            drop_output()


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
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
    query: dict[str, str] = {}
    for name, value in parse_qsl(urlsplit(text).query, keep_blank_values=True):
        query[name] = f"{query[name]},{value}" if name in _RULES and name in query else value
    return query


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


Name = Annotated[str | None, typer.Option(help="Read as a registered consumer: the service keeps the position.")]
Member = Annotated[str, typer.Option(help="With --consumer: name of this process among its members.")]
Lease = Annotated[
    float, typer.Option(min=1, help="With --consumer: seconds without a pull after which other members take over.")
]


def write_batches(consumer: Consumer, format: str | None, *, follow: bool) -> None:
    """Write the batches of a consumer, and acknowledge each."""
    out = output_of(format, sys.stdout.buffer, follow=True)  # written at once: it is acknowledged
    try:
        with DeferInterrupt() as deferred:
            try:
                for batch in consumer.batches(follow=follow, acknowledge=False):
                    with deferred:
                        out.write(batch.page)
                        consumer.acknowledge(batch)
            except KeyboardInterrupt:
                if not follow:
                    raise
            finally:
                consumer.leave()
        out.close()
    except BrokenPipeError:
        drop_output()


_EACH_S = 0.2
_OVER_S = 5.0  # rows per second are averaged over about so long
_CLEAR = "\r\x1b[K"


class StatusLine:
    """Rows, rows per second, lag and cursor, below the rows. `out` None: shows nothing."""

    def __init__(self, out: TextIO | None) -> None:
        self._out = None if out is None else unguarded(out)
        self._rows = 0
        self._rate = 0.0
        self._shown_at = self._at = time.monotonic()
        self._is_shown = False

    def show(self, rows: int, resolved_ts: int, cursor: str) -> None:
        """Count rows and show, a few times a second at most."""
        if self._out is None:
            return
        from tistream import ts as tso
        from tistream.clock import SystemClock

        now = time.monotonic()
        weight = min(1.0, (now - self._at) / _OVER_S)
        self._rate += weight * (rows / max(now - self._at, 1e-3) - self._rate)
        self._rows, self._at = self._rows + rows, now
        if self._is_shown and now - self._shown_at < _EACH_S:
            return
        lag_s = max(0, SystemClock().unix_ms() - tso.physical_ms(resolved_ts)) / 1000 if resolved_ts else 0.0
        text = f"{self._rows:,} lines · {self._rate:,.0f}/s · {lag_s:,.1f} s behind · {clean(cursor)}"
        self._out.write(f"{_CLEAR}{text[: _width() - 1]}")
        self._out.flush()
        self._shown_at, self._is_shown = now, True

    def clear(self) -> None:
        """Remove the line before rows are written."""
        if self._out is not None and self._is_shown:
            self._out.write(_CLEAR)
            self._out.flush()
            self._is_shown = False


class DeferInterrupt:
    """Blocks that Ctrl-C does not interrupt: `with DeferInterrupt() as deferred: ... with deferred: write(page)`."""

    def __init__(self) -> None:
        self._depth = 0
        self._asked = False
        self._before: signal.Handlers | object = None

    def __enter__(self) -> Self:
        if self._depth == 0 and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._interrupted)
        self._depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth == 0 and self._before is not None:
            signal.signal(signal.SIGINT, self._before)  # type: ignore[arg-type]
        if self._depth == 1 and self._asked and kind is None:
            raise KeyboardInterrupt

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self._depth < 2 or self._asked:
            raise KeyboardInterrupt
        self._asked = True


def _width() -> int:
    import shutil

    return shutil.get_terminal_size().columns
