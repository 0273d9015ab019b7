"""How many bytes of a body a row of the log becomes, before anything is decoded.

A line of a table version without values is rendered once and measured: names, types and, in debezium, the whole schema
are most of a wide table's line. Values are estimated by the bytes that they have in the log. An estimate decides how
many rows are decoded at once; what is written is measured exactly (`reading.formats.lines.write`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reading.core.changes import UPDATE, TableChanges
from reading.formats import create_format
from reading.formats.lines import write
from reading.formats.options import FormatOptions
from schemas.layout import ByIdentity, kept_by_version, row_layout
from schemas.model import Column, Table
from tistream.codec.row.layout import SET, storage_type

_VALUE_BYTES_MIN = 4  # of a value in a row of the log, with its column's id and offset
_TEXT_BYTES = 20  # that a number or a time has more as text
_ARROW_BYTES = 34  # of a column in an Arrow body: a value and one of the row before, with offsets and validity


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of rows of one table version."""

    line: int  #: bytes without values
    columns: int
    filled: int  #: bytes of values that the table version has for rows which lack them

    def of(self, stored: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """`stored`: bytes of key, value and old value of each row."""
        values = np.minimum(2 * self.columns, stored // _VALUE_BYTES_MIN)
        sizes: npt.NDArray[np.int64] = self.line + 2 * self.filled + stored * 4 // 3 + values * _TEXT_BYTES
        return sizes


def estimated(format: str, options: FormatOptions, table: Table) -> Estimate:
    """The estimate of a table version in a format; `arrow` and `json` are formats, too."""
    return _estimated("ndjson" if format == "json" else format, replace(options, built_ms=0), ByIdentity(table))


@kept_by_version
def _estimated(format: str, options: FormatOptions, of: ByIdentity) -> Estimate:
    table = of.table
    columns = len(row_layout(table).columns)
    filled = sum(len(str(c.origin_default or "")) + _label_bytes(c) for c in table.columns)
    line = _ARROW_BYTES * (columns + 2) if format == "arrow" else _line_bytes(format, options, table)
    return Estimate(line=line, columns=columns, filled=filled)


def _label_bytes(column: Column) -> int:
    """Bytes of the longest text that the number of an ENUM or SET value means."""
    sizes = [len(label) + 1 for label in column.elems]
    return sum(sizes) if column.tp == SET else max(sizes, default=0)


def _line_bytes(format: str, options: FormatOptions, table: Table) -> int:
    """Bytes of the line of an update whose columns are all NULL."""
    specs = row_layout(table).columns
    image = pa.RecordBatch.from_arrays(
        [pa.nulls(1, storage_type(spec)) for spec in specs], names=[spec.name for spec in specs]
    )
    stamp = np.ones(1, np.uint64)
    changes = TableChanges(
        table=table,
        kind=np.full(1, UPDATE, np.uint8),
        order=np.zeros(1, np.int64),
        physical_id=np.full(1, table.id, np.int64),
        start_ts=stamp,
        commit_ts=stamp,
        key=pa.array([b""], pa.binary()),
        after=image,
        before=image,
        split=np.zeros(1, np.bool_),
    )
    fmt = create_format(format, options)
    return int(write(list(fmt.rows(changes)), end=fmt.terminator)[0][-1])
