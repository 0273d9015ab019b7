"""The bytes of data files: lines of a text format, or Parquet.

A change that cannot be rendered is refused by its table, key and commit_ts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from destinations.protocol import DestinationRefused, together
from destinations.storage.core.parts import cut
from reading.core.changes import DELETE, INSERT, UPDATE, TableChanges
from reading.core.split import pick
from reading.formats import Format
from reading.formats.lines import write
from schemas.layout import row_layout
from tistream.codec.row.native import native
from tistream.errors import TiStreamError

_OPS = pa.array(["insert", "update", "delete"], pa.string())
_OP_OF = np.zeros(3, np.int8)
_OP_OF[[INSERT, UPDATE, DELETE]] = (0, 1, 2)

File = tuple[int, bytes | memoryview]
"""(number of changes, bytes)"""
Render = Callable[[TableChanges, Sequence[int]], list[File]]
"""Files of these changes, cut after the given counts of changes, or by size when no counts are given."""


@dataclass(frozen=True, slots=True)
class TextFiles:
    """Files of lines."""

    format: Format
    end: bytes  #: of a line
    limit: int  #: bytes of a file

    @property
    def splits_updates(self) -> bool:
        return self.format.splits_updates

    def render(self, changes: TableChanges, counts: Sequence[int] = ()) -> list[File]:
        offsets, data = write(list(self.format.rows(changes)), end=self.end)
        counts = _fitting(counts, len(changes)) or cut(offsets, self.limit)
        ends = [0, *accumulate(counts)]
        view = data.data
        return [(n, view[int(offsets[a]) : int(offsets[a + n])]) for a, n in zip(ends, counts, strict=False)]

    def holds(self, whole: bytes, part: bytes | memoryview) -> bool:
        """Whether a file has all lines of another one, one after the other."""
        wanted, at = bytes(part), 0
        while (at := whole.find(wanted, at)) >= 0:
            if not at or whole.endswith(self.end, 0, at):
                return True
            at += 1
        return False


@dataclass(frozen=True, slots=True)
class ParquetFiles:
    """Parquet: a row for each change, with `_op`, `_commit_ts` and the columns of the table in the types of Arrow
    pulls. A delete has the row before it."""

    limit: int  #: bytes of a file

    @property
    def splits_updates(self) -> bool:
        return False

    def render(self, changes: TableChanges, counts: Sequence[int] = ()) -> list[File]:
        table = _native(changes)
        if counts := _fitting(counts, len(changes)):
            starts = [0, *accumulate(counts)]
            return [(n, _parquet(table.slice(a, n))) for a, n in zip(starts, counts, strict=False)]
        return self._halved(table)

    def holds(self, whole: bytes, part: bytes | memoryview) -> bool:
        """Whether a file has all rows of another one, one after the other."""
        try:
            table, wanted = pq.read_table(pa.BufferReader(whole)), pq.read_table(pa.BufferReader(pa.py_buffer(part)))
        except pa.ArrowInvalid:  # of another protocol
            return False
        if table.schema != wanted.schema or not wanted.num_rows:
            return False
        ts = table.column_names[1]  # the timestamps, in commit order
        first = pc.index(table[ts], wanted[ts][0]).as_py()
        return bool(first >= 0 and table.slice(first, wanted.num_rows).equals(wanted))

    def _halved(self, table: pa.Table) -> list[File]:
        data = _parquet(table)
        if len(data) <= self.limit or table.num_rows == 1:
            return [(table.num_rows, data)]
        half = table.num_rows // 2
        return [*self._halved(table.slice(0, half)), *self._halved(table.slice(half))]


def render_or_refuse(render: Render, parts: Sequence[tuple[TableChanges, Sequence[int]]]) -> list[list[File]]:
    """The files of each part, which is changes and their cuts. DestinationRefused names all changes that cannot be
    rendered."""
    files, bad = list[list[File]](), list[DestinationRefused]()
    for changes, counts in parts:
        try:
            files.append(render(changes, counts))
        except TiStreamError as error:
            bad += _refused_of(render, changes, error)
    if bad:
        raise together(bad)
    return files


def refused(db: str, table: str, key: bytes, commit_ts: int, cause: str) -> DestinationRefused:
    """The error of one change."""
    return DestinationRefused(
        f"A change of {db}.{table} cannot be written: {cause}",
        db=db,
        table=table,
        key=key.hex(),
        commit_ts=commit_ts,
        cause=cause,
    )


def _refused_of(render: Render, changes: TableChanges, error: TiStreamError) -> list[DestinationRefused]:
    """The refusals of those that cannot be rendered; `error` is that of all together, and is raised when each half can
    be rendered."""
    table = changes.table
    if len(changes) == 1:
        return [refused(table.db, table.name, changes.key[0].as_py(), int(changes.commit_ts[0]), str(error))]
    middle = len(changes) // 2
    refusals = list[DestinationRefused]()
    for half in (np.arange(middle), np.arange(middle, len(changes))):
        some = pick(changes, half)
        try:
            render(some, ())
        except TiStreamError as cause:
            refusals += _refused_of(render, some, cause)
    if not refusals:
        raise error
    return refusals


def _fitting(counts: Sequence[int], rows: int) -> Sequence[int]:
    """The recorded counts, if they are of these changes."""
    return counts if sum(counts) == rows else ()


def _native(changes: TableChanges) -> pa.Table:
    specs = row_layout(changes.table).columns
    deleted = pa.array(
        np.where(changes.kind == DELETE, np.arange(len(changes)) + len(changes), np.arange(len(changes)))
    )
    taken = {spec.name.lower() for spec in specs}
    columns = {
        _free("_op", taken): pa.DictionaryArray.from_arrays(pa.array(_OP_OF[changes.kind]), _OPS),
        _free("_commit_ts", taken): pa.array(changes.commit_ts),
    }
    for n, spec in enumerate(specs):
        both = [native(spec, changes.after.column(n)), native(spec, changes.before.column(n))]
        columns[spec.name] = pa.concat_arrays(both).take(deleted)
    return pa.table(columns)


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name = "_" + name
    return name


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())
