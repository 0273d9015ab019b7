"""The Spark data source: `spark.read` and `spark.readStream` with `format("tistream")`.

    driver    position and end -> a plan of parts (tistream.spark.access)         no rows
    executor  a part: pages from its cursor to its end -> record batches          no Python object per row

A part is (cursor, end_ts], both at or below the served watermark, so it always holds the same rows: tasks may be
repeated, and a micro-batch read again between the same two offsets is the same. An offset is the cursor of a pull with
its commit_ts.

The first micro-batch of a new query is empty. It records where the query begins: Spark keeps no initial offset in its
checkpoint, and `latest`, a span, or the beginning of a log with retention would be something else after a restart.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tistream import ts as tso
from tistream.clock import Clock, SystemClock
from tistream.errors import (
    DecodeError,
    InvalidInput,
    NotConvertible,
    NotFound,
    StoreUnavailable,
    TsExpired,
    TsOutOfRange,
)
from tistream.limits import SPLITS_MAX
from tistream.spark.access import WHOLE, ChangeLog, PageForm, ReadSpan, open_log
from tistream.spark.columns import BEGIN_AGAIN, Conform, like, names_of, own_name, spark_schema
from tistream.spark.core.filters import Narrowed, narrow
from tistream.spark.core.options import ReadOptions, Scope, parse_options

if TYPE_CHECKING:
    from reading.pages.request import PullAnswer
    from tistream.client.core.requests import Page

_TENANT = Scope()
_POLL_S = 0.2
_BEHIND_S_MAX = 120.0  # how far another server may be behind the one that made the plan
_IDLE_MS = 60_000  # while what is read is idle, its offset advances this often

Offset = dict[str, Any]


class ChangePartition(InputPartition):
    """Changes in (cursor, end_ts] of a scope."""

    def __init__(self, scope: Scope, cursor: str, end_ts: int) -> None:
        super().__init__(None)
        self.scope, self.cursor, self.end_ts = scope, cursor, end_ts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Query:
    """What is sent to executors."""

    options: ReadOptions
    schema: StructType
    schema_ts: str | None  #: None: the user gave the schema
    form: PageForm = WHOLE


class TiStreamDataSource(DataSource):
    """The source `tistream`; every session knows it by `pyspark_tistream`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Called once for a frame. `latest`, a span or a date is resolved here, because Spark asks for a reader with
        every action, and a stream for an end with every trigger."""
        of = parse_options(options)
        with open_log(of) as log:
            start_ts, self._served_ts = _begin(log, of.start_ts)
            end_ts = None if of.end_ts is None else _moment(log, of.end_ts)
            self._looked_up_ts = self._schema_moment(log, of)
        self._options = replace(of, start_ts=start_ts, end_ts=end_ts)
        self._schema_ts: str | None = None  # the schema is of this timestamp; None: the user gave it

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "tistream"

    def schema(self) -> StructType:
        """The schema of the table at `schemaTs`, or of undecoded rows."""
        if self._options.decodes:
            self._schema_ts = self._looked_up_ts
        return spark_schema(self._columns())

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of one frame, which always ends at what was served when the frame was made."""
        end_ts = self._options.end_ts or str(self._served_ts)
        if not end_ts.isdecimal():
            raise TsOutOfRange(f"A batch read ends at a served timestamp; endTs={end_ts} is in the future.")
        options = replace(self._options, end_ts=str(min(int(end_ts), self._served_ts)))
        query = self._query(options, schema)
        return _FilteredReader(query) if options.pushes_filters else _Reader(query)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of one query."""
        return _StreamReader(self._query(self._options, schema))

    def _query(self, options: ReadOptions, schema: StructType) -> _Query:
        if self._schema_ts is not None:
            form = PageForm(schema_ts=self._schema_ts)
            return _Query(options=options, schema=schema, schema_ts=self._schema_ts, form=form)
        schema = like(schema, self._columns())
        if not options.decodes:
            return _Query(options=options, schema=schema, schema_ts=None)
        form = PageForm(schema_ts=self._looked_up_ts, names=tuple(names_of(schema)) or None)
        return _Query(options=options, schema=schema, schema_ts=None, form=form)

    def _columns(self) -> pa.Schema:
        of = self._options
        form = PageForm(schema_ts=self._looked_up_ts) if of.decodes else WHOLE
        with open_log(of) as log:
            page = log.pull(ReadSpan(of.scope, "earliest", "earliest"), 1, form)
        return pa.ipc.open_stream(page.content).schema

    def _schema_moment(self, log: ChangeLog, of: ReadOptions) -> str:
        """The timestamp of the columns, at most what is served. One below what is kept stays as it was given: the
        schema may be known there."""
        ts_text = of.schema_ts or of.end_ts or "latest"
        try:
            ts = _moment(log, ts_text)
        except TsExpired:
            return ts_text
        return str(min(int(ts), self._served_ts) if ts.isdecimal() else self._served_ts)


def _position(log: ChangeLog, scope: Scope, ts: str) -> dict[str, Any]:
    """An empty plan at a timestamp: its cursor, and what is served."""
    return log.splits(ReadSpan(scope, ts, ts))


def _begin(log: ChangeLog, start_ts: str) -> tuple[str, int]:
    """(`startTs` as a number, what is served). One below what is kept stays as it was given: a stream that continues
    from its checkpoint does not need it, and a reader that begins there is refused."""
    try:
        at = _position(log, _TENANT, start_ts)
    except TsExpired:
        return start_ts, int(_position(log, _TENANT, "latest")["resolved_ts"])
    return str(at["start_ts"]), int(at["resolved_ts"])


def _moment(log: ChangeLog, ts: str) -> str:
    """A timestamp, a date, a span or `latest` as a number. A date in the future stays a date."""
    try:
        return str(_position(log, _TENANT, ts)["start_ts"])
    except TsOutOfRange:
        return ts


class _Reader(DataSourceReader):
    """A batch read."""

    def __init__(self, query: _Query) -> None:
        self._query = query
        self._narrowed = Narrowed()

    def partitions(self) -> Sequence[InputPartition]:
        """The parts of what is requested and served."""
        of = self._query.options
        with open_log(of) as log:
            try:
                return self._planned(log)
            except NotFound:
                if self._narrowed == Narrowed():
                    raise
                # the filter's own fault: it names what does not exist, or did not at that time
                log.splits(ReadSpan(of.scope, of.end_ts, of.start_ts))
                return []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a part."""
        if isinstance(partition, ChangePartition):  # Spark adds an empty one of its own when there are no parts
            yield from _read(self._query, partition)

    def _planned(self, log: ChangeLog) -> list[InputPartition]:
        of, narrowed, scope = self._query.options, self._narrowed, self._query.options.scope
        if narrowed.database is not None and of.database is None:
            scope = Scope(database=narrowed.database, table=narrowed.table)
        elif narrowed.table is not None and of.table is None and of.database is not None:
            scope = Scope(database=of.database, table=narrowed.table)
        start, end = of.start_ts, str(of.end_ts)
        if narrowed.after is not None or narrowed.upto is not None:
            begins = int(_position(log, of.scope, start)["start_ts"])
            after = begins if narrowed.after is None else max(begins, narrowed.after)
            upto = int(end) if narrowed.upto is None else min(int(end), narrowed.upto)
            if upto <= after:
                return []
            start, end = str(after), str(upto)
        return _parts(log, self._query, ReadSpan(scope, end, start))


class _FilteredReader(_Reader):
    """A batch read with filters. Spark refuses such a reader unless `spark.sql.python.filterPushdown.enabled`."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Returns those that Spark must still apply."""
        decodes = self._query.options.decodes
        undecoded = "commit_ts" if self._query.options.keys is None else "ts"
        commit_ts = own_name(self._query.schema, "_commit_ts") if decodes else undecoded
        self._narrowed, left = narrow(filters, commit_ts=commit_ts, by_name=not decodes)
        return left


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query, in one Python process beside the driver; `read` runs on executors."""

    def __init__(self, query: _Query, clock: Clock | None = None) -> None:
        self._query = query
        self._clock: Clock = SystemClock() if clock is None else clock
        self._target: str | None = query.options.end_ts
        self._found_nothing: float | None = None

    def initialOffset(self) -> Offset:
        """The position of `startTs` now."""
        of = self._query.options
        with open_log(of) as log:
            at = _position(log, of.scope, of.start_ts)
        return {"begins": True, "commit_ts": at["start_ts"], "cursor": at["cursor"]}

    def getDefaultReadLimit(self) -> ReadLimit:
        """`maxRowsPerTrigger`."""
        rows = self._query.options.rows_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the next micro-batch; `start` itself when there is nothing new."""
        if start.get("begins"):
            return _offset(start["commit_ts"], start["cursor"])
        if self._found_nothing is not None:
            left = _POLL_S - (self._clock.monotonic() - self._found_nothing)
            if left > 0:
                self._clock.wait(threading.Event(), left)
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        with open_log(self._query.options) as log:
            plan = log.splits(ReadSpan(self._query.options.scope, self._target, cursor=start["cursor"]), rows=rows)
        end = int(plan["end_ts"])
        idle_ms = tso.physical_ms(end) - tso.physical_ms(int(start["commit_ts"]))
        if end <= int(start["commit_ts"]) or (plan["rows"] == 0 and not plan["has_more"] and idle_ms < _IDLE_MS):
            self._found_nothing = self._clock.monotonic()
            return start
        self._found_nothing = None
        return _offset(plan["end_ts"], plan["next_cursor"])

    def prepareForTriggerAvailableNow(self) -> None:
        """End the query at what is served now."""
        end = self._query.options.end_ts or "latest"
        with open_log(self._query.options) as log:
            now = int(_position(log, _TENANT, "latest")["resolved_ts"])
        self._target = str(min(int(end), now) if end.isdecimal() else now)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The parts between two offsets."""
        if int(start["commit_ts"]) >= int(end["commit_ts"]):
            return []
        with open_log(self._query.options) as log:
            span = ReadSpan(self._query.options.scope, end["commit_ts"], cursor=start["cursor"])
            return _parts(log, self._query, span)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a part."""
        if isinstance(partition, ChangePartition):
            yield from _read(self._query, partition)

    def commit(self, end: Offset) -> None:
        """Nothing: retention of the log does not depend on its readers."""


def _offset(commit_ts: str, cursor: str) -> Offset:
    return {"commit_ts": commit_ts, "cursor": cursor}


def _parts(log: ChangeLog, query: _Query, span: ReadSpan) -> list[InputPartition]:
    """The parts up to the end, which was served when it was chosen. What this server does not serve now is one more
    part, whose reader waits for it: another server was ahead, or a store of the tenant was quarantined since."""
    of = query.options
    parts = SPLITS_MAX if of.partitions is None else of.partitions
    part_bytes = of.partition_bytes if of.partitions is None else 1
    partitions: list[InputPartition] = []
    while True:
        plan = log.splits(span, parts=parts, part_bytes=part_bytes)
        partitions += [ChangePartition(span.scope, part["cursor"], int(part["end_ts"])) for part in plan["parts"]]
        span = replace(span, start_ts=None, cursor=plan["next_cursor"])
        if not plan["has_more"]:
            break
    if int(plan["end_ts"]) < int(str(span.end_ts)):
        partitions.append(ChangePartition(span.scope, plan["next_cursor"], int(str(span.end_ts))))
    return partitions


def _read(query: _Query, part: ChangePartition) -> Iterator[pa.RecordBatch]:
    """Read page by page to the end of the part; DecodeError names a row that cannot be decoded."""
    pa.set_cpu_count(1)  # there is a Python worker for each core
    conform = Conform(query.schema, query.schema_ts)
    clock, cursor = SystemClock(), part.cursor
    deadline = clock.monotonic() + _BEHIND_S_MAX
    with open_log(query.options) as log:
        while True:
            page = _pulled(log, query, part, cursor)
            if page is not None:
                rows = pa.ipc.open_stream(page.content).read_all()
                if page.quarantined and not query.options.skips_undecodable:
                    quarantined = (rows.schema.metadata or {}).get(b"quarantined", b"[]").decode()
                    raise DecodeError(
                        f"{page.quarantined} rows cannot be decoded; the option onUndecodable=skip leaves them out: "
                        f"{quarantined[:500]}"
                    )
                yield from conform.batches(rows)
                cursor = page.next_cursor
                if page.has_more:
                    deadline = clock.monotonic() + _BEHIND_S_MAX
                    continue
                if page.resolved_ts >= part.end_ts:
                    return
            if clock.monotonic() > deadline:
                raise StoreUnavailable(
                    "The server does not serve the end of this read: it is far behind the one that chose it, or a "
                    "store of the tenant has been quarantined since.",
                    resolved_ts=None if page is None else str(page.resolved_ts),
                    end_ts=str(part.end_ts),
                )
            clock.wait(threading.Event(), _POLL_S)


def _pulled(log: ChangeLog, query: _Query, part: ChangePartition, cursor: str) -> Page | PullAnswer | None:
    """The next page; None from a server that does not know the schema of the query yet. InvalidInput for a column that
    was changed since the query began."""
    try:
        return log.pull(ReadSpan(part.scope, part.end_ts, cursor=cursor), query.options.rows_per_page, query.form)
    except TsOutOfRange:
        return None
    except NotConvertible as e:
        if "schema_ts" not in e.facts:
            raise
        raise InvalidInput(f"{e.message} {BEGIN_AGAIN}", **e.facts) from e
