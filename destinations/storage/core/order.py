"""What the data files of a table have again, behind later changes, or not at all. Pure.

    files in the order in which they are read ──> a row that was there before: again
                                              ──> a row below an earlier one: behind
    their rows, and those of the log          ──> commits with fewer rows than the log has: lost; with rows that the
                                                  log does not have: unknown

A row is recognised by its commit timestamp and a CRC-64 of its bytes, which have the key. What is in an interval
that an event of a changefeed names is allowed: at least once is what is promised.

The rows of a file:

    lines      from one terminator to the next; a terminator within quotes of a CSV value ends none
    Parquet    the columns of a row as text, one after the other

Nothing is made for a single row: lines are slices of the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reading.formats import FormatOptions
from tistream.codec.crc import crc64s
from tistream.errors import CorruptObject, InvalidInput
from tistream.model.arrays import U64

Interval = tuple[int, int]
"""Commit timestamps above the first, up to the second."""


class RowProblem(StrEnum):
    """What is found in files."""

    AGAIN_NAMED = "again, named by an event"
    BEHIND_NAMED = "behind later changes, named by an event"
    AGAIN = "again"
    BEHIND = "behind later changes"
    LOST = "lost"
    NOT_IN_LOG = "not in the log"

    @property
    def is_fault(self) -> bool:
        """Whether the promises are broken."""
        return self not in (RowProblem.AGAIN_NAMED, RowProblem.BEHIND_NAMED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemRows:
    """Rows of a table or of one of its files."""

    kind: RowProblem
    place: str  #: the file; the table when no file has them
    other: str = ""  #: the file that had them first, or that has the later changes
    rows: int
    least_ts: int
    most_ts: int

    def __str__(self) -> str:
        of = {RowProblem.AGAIN: "as in", RowProblem.AGAIN_NAMED: "as in"}.get(self.kind, "later ones are in")
        other = f", {of} {self.other}" if self.other else ""
        return f"{self.place}: {self.rows:,} rows {self.kind}{other}, commit_ts {self.least_ts} to {self.most_ts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRows:
    """The rows of a data file, in their order."""

    name: str
    commit_ts: U64
    digests: U64  #: of the bytes of each row


def read_in_order(
    files: Sequence[FileRows], named: Sequence[Interval], *, has_key: bool
) -> tuple[list[ProblemRows], U64]:
    """(what is not once and in order, the commit timestamps of the rows without those that are there again). `files` in
    the order in which they are read. Without a key equal rows of a transaction are different ones: none is there again,
    but in another file below an earlier row."""
    ts = np.concatenate([file.commit_ts for file in files]) if files else np.zeros(0, np.uint64)
    if not len(ts):
        return [], ts
    file_of = np.repeat(np.arange(len(files)), [len(file.commit_ts) for file in files])
    highest = np.maximum.accumulate(ts)
    behind = ts < highest
    first = _first_copies(ts, np.concatenate([file.digests for file in files]))
    again = first != np.arange(len(ts))
    if not has_key:
        again &= behind
    is_named = np.zeros(len(ts), np.bool_)
    for above, upto in named:
        is_named |= (ts > np.uint64(above)) & (ts <= np.uint64(upto))
    later = np.searchsorted(highest, ts, side="right").clip(max=len(ts) - 1)  # the first row that is above each
    faults = list[ProblemRows]()
    for kind, rows, others in (
        (RowProblem.AGAIN, again & ~is_named, first),
        (RowProblem.BEHIND, behind & ~again & ~is_named, later),
        (RowProblem.AGAIN_NAMED, again & is_named, first),
        (RowProblem.BEHIND_NAMED, behind & ~again & is_named, later),
    ):
        faults += _by_file(kind, files, np.flatnonzero(rows), file_of, file_of[others], ts)
    return faults, ts[~again]


def compare_commits(table: str, there: U64, log: U64, above: int, upto: int) -> list[ProblemRows]:
    """What the log has and the files lack in (above, upto], and the other way round. `there`, `log`: the commit
    timestamp of each row. Files may have two rows for one of the log, never fewer."""
    ours, here = _counted(there, above, upto)
    theirs, wanted = _counted(log, above, upto)
    every = np.union1d(ours, theirs)
    in_files, in_log = _spread(every, ours, here), _spread(every, theirs, wanted)
    missing = np.maximum(in_log - in_files, 0)
    strange = np.where(in_log == 0, in_files, 0)
    return [
        ProblemRows(
            kind=kind, place=table, rows=int(rows.sum()), least_ts=int(every[rows > 0].min()),
            most_ts=int(every[rows > 0].max()),
        )
        for kind, rows in ((RowProblem.LOST, missing), (RowProblem.NOT_IN_LOG, strange))
        if rows.any()
    ]  # fmt: skip


def _first_copies(ts: U64, digests: U64) -> npt.NDArray[np.int64]:
    """For each row the place of the first one that is equal."""
    order = np.lexsort((np.arange(len(ts)), digests, ts))
    begins = np.ones(len(ts), np.bool_)
    begins[1:] = (ts[order][1:] != ts[order][:-1]) | (digests[order][1:] != digests[order][:-1])
    first = np.empty(len(ts), np.int64)
    first[order] = order[np.flatnonzero(begins)][np.cumsum(begins) - 1]
    return first


def _by_file(
    kind: RowProblem,
    files: Sequence[FileRows],
    rows: npt.NDArray[np.int64],
    file_of: npt.NDArray[np.int64],
    other_of: npt.NDArray[np.int64],
    ts: U64,
) -> list[ProblemRows]:
    """One entry for each pair of files."""
    pairs = file_of[rows] * len(files) + other_of[rows]
    faults = []
    for pair in np.unique(pairs).tolist():
        chosen = ts[rows[pairs == pair]]
        mine, other = divmod(pair, len(files))
        faults.append(
            ProblemRows(
                kind=kind, place=files[mine].name, other=files[other].name, rows=len(chosen),
                least_ts=int(chosen.min()), most_ts=int(chosen.max()),
            )
        )  # fmt: skip
    return faults


def _counted(ts: U64, above: int, upto: int) -> tuple[U64, npt.NDArray[np.int64]]:
    """The timestamps of an interval, each once, and how many rows each has."""
    return np.unique(ts[(ts > np.uint64(above)) & (ts <= np.uint64(upto))], return_counts=True)


def _spread(every: U64, ts: U64, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The counts by the timestamps of `every`."""
    numbers = np.zeros(len(every), np.int64)
    numbers[np.searchsorted(every, ts)] = counts
    return numbers


_TIDB_TS = r'"_tidb":\{"commitTs":(?P<ts>\d+)'
_NULL, _SEPARATOR = b"\x00", b"\x1f"

ReadRows = Callable[[str, bytes], FileRows]
"""(name, bytes) of a data file -> its rows. CorruptObject when it is none of the protocol."""


def rows_reader(protocol: str, options: FormatOptions) -> ReadRows:
    """For the files of a changefeed. InvalidInput when they do not say the commit timestamp of a row."""
    if protocol == "parquet":
        return _parquet_rows
    if protocol == "csv":
        if not options.include_commit_ts:
            raise _no_timestamps("include-commit-ts")
        return _TextRows(options.terminator, _csv_pattern(options), options.quote).read
    if not options.enable_tidb_extension:
        raise _no_timestamps("enable-tidb-extension")
    return _TextRows(options.terminator, _TIDB_TS, "").read


class _TextRows:
    """Files of lines."""

    def __init__(self, end: str, pattern: str, quote: str) -> None:
        """`pattern`: of a line, with its commit timestamp as `ts`. `quote`: around values that may have ends of lines;
        empty = none does."""
        self._end, self._pattern, self._quote = end.encode(), pattern, quote.encode()

    def read(self, name: str, data: bytes) -> FileRows:
        """See `ReadRows`."""
        if not data.endswith(self._end):
            raise CorruptObject(f"{name} does not end with the end of a line: it is not whole, or of other options.")
        lines = self._lines(data)
        texts = pc.struct_field(pc.extract_regex(lines, self._pattern), "ts")
        if texts.null_count:
            at = pc.index(pc.is_null(texts), True).as_py()
            raise CorruptObject(f"{name} has no commit timestamp in line {at + 1}.")
        commit_ts = texts.cast(pa.string()).cast(pa.uint64()).to_numpy(zero_copy_only=False)
        return FileRows(name=name, commit_ts=commit_ts, digests=_digests(lines))

    def _lines(self, data: bytes) -> pa.BinaryArray:
        """The lines with their ends."""
        pieces = pc.split_pattern(pa.array([data], pa.binary()), self._end).values[:-1]
        ends = np.cumsum(pc.binary_length(pieces).to_numpy(zero_copy_only=False).astype(np.int64) + len(self._end))
        if self._quote:
            quotes = pc.count_substring(pieces, self._quote).to_numpy(zero_copy_only=False)
            ends = ends[np.cumsum(quotes) % 2 == 0]
        offsets = pa.array(np.concatenate([np.zeros(1, np.int64), ends]).astype(np.int32))
        return pa.Array.from_buffers(pa.binary(), len(ends), [None, offsets.buffers()[1], pa.py_buffer(data)])


def _parquet_rows(name: str, data: bytes) -> FileRows:
    try:
        table = pq.read_table(pa.BufferReader(data))
    except pa.ArrowInvalid as error:
        raise CorruptObject(f"{name} cannot be read as Parquet: {error}") from error
    cells = [_cell(column.combine_chunks()) for column in table.columns]
    lines = pc.binary_join_element_wise(*cells, _SEPARATOR)
    commit_ts = table.column(1).to_numpy().astype(np.uint64)  # its name gives way to a column of the table's
    return FileRows(name=name, commit_ts=commit_ts, digests=_digests(lines))


def _cell(values: pa.Array) -> pa.BinaryArray:
    """The values of a column, as bytes."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        values = values.dictionary_decode()
    elif pa.types.is_duration(kind) or pa.types.is_time(kind):
        values = values.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    elif pa.types.is_list(kind):
        values = pc.binary_join(values.cast(pa.list_(pa.string())), ",")
    if not pa.types.is_binary(values.type):
        values = values.cast(pa.string()).cast(pa.binary())
    return pc.fill_null(values, _NULL)


def _digests(rows: pa.BinaryArray) -> U64:
    return crc64s(rows, pa.nulls(len(rows), pa.binary()))


def _csv_pattern(options: FormatOptions) -> str:
    """Of a record: operation, table and schema, then the commit timestamp."""
    quote, delimiter = re.escape(options.quote), re.escape(options.delimiter)
    text = f"{quote}(?:[^{quote}]|{quote}{quote})*{quote}" if options.quote else r"(?:\\.|[^\\])*?"
    return f"(?s)^(?:{text}{delimiter}){{3}}(?P<ts>\\d+)(?:{delimiter}|{re.escape(options.terminator)})"


def _no_timestamps(option: str) -> InvalidInput:
    return InvalidInput(
        f"The files of this changefeed have no commit timestamps, by which a row is recognised: only with {option}.",
        option="sink-uri",
    )
