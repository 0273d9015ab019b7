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
from typing import Any

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
from tistream.errors import DecodeError, NotFound, StoreUnavailable, TsOutOfRange
from tistream.limits import SPLITS_MAX
from tistream.spark.access import ChangeLog, open_log
from tistream.spark.columns import Conform, like, own_name, spark_schema
from tistream.spark.core.filters import Narrowed, narrow
from tistream.spark.core.options import ReadOptions, Scope, parse_options

_TENANT = Scope()
_POLL_S = 0.2
_BEHIND_S_MAX = 120.0  # how far another server may be behind the one that made the plan
_IDLE_MS = 60_000  # while what is read is idle, its offset advances this often

Offset = dict[str, Any]


class ChangePartition(InputPartition):  # type: ignore[misc]
    """Changes in (cursor, end_ts] of a scope."""

    def __init__(self, scope: Scope, cursor: str, end_ts: int) -> None:
        super().__init__(None)
        self.scope, self.cursor, self.end_ts = scope, cursor, end_ts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Query:
    """What is sent to executors."""

    options: ReadOptions
    schema: StructType
    schema_ts: int | None


class TiStreamDataSource(DataSource):  # type: ignore[misc]
    """The source `tistream`; every session knows it by `pyspark_tistream`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Called once for a frame. `latest`, a span or a date is resolved here, because Spark asks for a reader with
        every action, and a stream for an end with every trigger."""
        of = parse_options(options)
        with open_log(of) as log:
            at = log.splits(_TENANT, start_ts=of.start_ts, end_ts=of.start_ts)
            self._served_ts = int(at["resolved_ts"])
            end_ts = None if of.end_ts is None else _moment(log, of.end_ts)
            schema_ts = _moment(log, of.schema_ts or of.end_ts or "latest")
        self._options = replace(of, start_ts=at["start_ts"], end_ts=end_ts)
        self._looked_up_ts = min(int(schema_ts), self._served_ts) if schema_ts.isdecimal() else self._served_ts
        self._schema_ts: int | None = None  # the schema is of this timestamp; None: the user gave it

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
            raise TsOutOfRange(f"A batch read ends at a served timestamp; endTs={end_ts} lies in the future.")
        options = replace(self._options, end_ts=str(min(int(end_ts), self._served_ts)))
        query = self._query(options, schema)
        return _FilteredReader(query) if options.pushes_filters else _Reader(query)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of one query."""
        return _StreamReader(self._query(self._options, schema))

    def _query(self, options: ReadOptions, schema: StructType) -> _Query:
        if options.decodes and self._schema_ts is None:
            schema = like(schema, self._columns())
        return _Query(options=options, schema=schema, schema_ts=self._schema_ts)

    def _columns(self) -> pa.Schema:
        ts = str(self._looked_up_ts)
        with open_log(self._options) as log:
            page = log.pull(self._options.scope, start_ts=ts, end_ts=ts, limit=1)
        return pa.ipc.open_stream(page.content).schema


def _moment(log: ChangeLog, ts: str) -> str:
    """A timestamp, a date, a span or `latest` as a number. A date in the future stays a date."""
    try:
        return str(log.splits(_TENANT, start_ts=ts, end_ts=ts)["start_ts"])
    except TsOutOfRange:
        return ts


class _Reader(DataSourceReader):  # type: ignore[misc]
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
                return []  # a filter names what does not exist, or did not at that time

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a part."""
        if isinstance(partition, ChangePartition):  # Spark adds an empty one of its own when there are no parts
            yield from _read(self._query, partition)

    def _planned(self, log: ChangeLog) -> list[InputPartition]:
        of, found, scope = self._query.options, self._narrowed, self._query.options.scope
        if found.database is not None and of.database is None:
            scope = Scope(database=found.database, table=found.table)
        elif found.table is not None and of.table is None and of.database is not None:
            scope = Scope(database=of.database, table=found.table)
        start, end = of.start_ts, of.end_ts or "latest"
        if found.after is not None or found.upto is not None:
            begins = int(log.splits(self._query.options.scope, start_ts=start, end_ts=start)["start_ts"])
            ends = int(log.splits(self._query.options.scope, start_ts=end, end_ts=end)["start_ts"])
            after = begins if found.after is None else max(begins, found.after)
            upto = ends if found.upto is None else min(ends, found.upto)
            if upto <= after:
                return []
            start, end = str(after), str(upto)
        return _parts(log, self._query, scope, start_ts=start, end_ts=end)


class _FilteredReader(_Reader):
    """A batch read with filters. Spark refuses such a reader unless `spark.sql.python.filterPushdown.enabled`."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Returns those that Spark must still apply."""
        decodes = self._query.options.decodes
        undecoded = "commit_ts" if self._query.options.keys is None else "ts"
        commit_ts = own_name(self._query.schema, "_commit_ts") if decodes else undecoded
        self._narrowed, left = narrow(filters, commit_ts=commit_ts, by_name=not decodes)
        return left


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """A streaming query, in one Python process beside the driver; `read` runs on executors."""

    def __init__(self, query: _Query, clock: Clock | None = None) -> None:
        self._query = query
        self._clock: Clock = SystemClock() if clock is None else clock
        self._target: str | None = query.options.end_ts
        self._found_nothing: float | None = None

    def initialOffset(self) -> Offset:
        """The position of `startTs` now."""
        start = self._query.options.start_ts
        with open_log(self._query.options) as log:
            at = log.splits(self._query.options.scope, start_ts=start, end_ts=start)
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
            found = log.splits(self._query.options.scope, cursor=start["cursor"], end_ts=self._target, rows=rows)
        end = int(found["end_ts"])
        idle_ms = tso.physical_ms(end) - tso.physical_ms(int(start["commit_ts"]))
        if end <= int(start["commit_ts"]) or (found["rows"] == 0 and not found["has_more"] and idle_ms < _IDLE_MS):
            self._found_nothing = self._clock.monotonic()
            return start
        self._found_nothing = None
        return _offset(found["end_ts"], found["next_cursor"])

    def prepareForTriggerAvailableNow(self) -> None:
        """End the query at what is served now."""
        end = self._query.options.end_ts or "latest"
        with open_log(self._query.options) as log:
            now = int(log.splits(_TENANT, start_ts="latest", end_ts="latest")["resolved_ts"])
        self._target = str(min(int(end), now) if end.isdecimal() else now)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The parts between two offsets."""
        if int(start["commit_ts"]) >= int(end["commit_ts"]):
            return []
        with open_log(self._query.options) as log:
            scope = self._query.options.scope
            return _parts(log, self._query, scope, cursor=start["cursor"], end_ts=end["commit_ts"], waits=True)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a part."""
        if isinstance(partition, ChangePartition):
            yield from _read(self._query, partition)

    def commit(self, end: Offset) -> None:
        """Nothing: retention of the log does not depend on its readers."""


def _offset(commit_ts: str, cursor: str) -> Offset:
    return {"commit_ts": commit_ts, "cursor": cursor}


def _parts(
    log: ChangeLog,
    query: _Query,
    scope: Scope,
    *,
    end_ts: str,
    start_ts: str | None = None,
    cursor: str | None = None,
    waits: bool = False,
) -> list[InputPartition]:
    """The parts up to `end_ts`, or up to what is served. With `waits` another server has served the end already: what
    this server does not have yet is one more part, whose reader waits for it."""
    of = query.options
    parts = SPLITS_MAX if of.partitions is None else of.partitions
    part_bytes = of.partition_bytes if of.partitions is None else 1
    found: list[InputPartition] = []
    while True:
        plan = log.splits(scope, start_ts=start_ts, cursor=cursor, end_ts=end_ts, parts=parts, part_bytes=part_bytes)
        found += [ChangePartition(scope, part["cursor"], int(part["end_ts"])) for part in plan["parts"]]
        start_ts, cursor = None, plan["next_cursor"]
        if not plan["has_more"]:
            break
    if waits and int(plan["end_ts"]) < int(end_ts):
        found.append(ChangePartition(scope, plan["next_cursor"], int(end_ts)))
    return found


def _read(query: _Query, part: ChangePartition) -> Iterator[pa.RecordBatch]:
    """Read page by page to the end of the part; DecodeError names a row that cannot be decoded."""
    pa.set_cpu_count(1)  # there is a Python worker for each core
    conform = Conform(query.schema, query.schema_ts)
    clock, cursor = SystemClock(), part.cursor
    deadline = clock.monotonic() + _BEHIND_S_MAX
    with open_log(query.options) as log:
        while True:
            limit = query.options.rows_per_page
            page = log.pull(part.scope, cursor=cursor, end_ts=part.end_ts, limit=limit)
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
                    "The server is far behind the one that planned this read.",
                    resolved_ts=str(page.resolved_ts),
                    end_ts=str(part.end_ts),
                )
            clock.wait(threading.Event(), _POLL_S)
