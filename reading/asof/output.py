"""Renders the rows of a table as NDJSON, CSV, an Arrow stream, Parquet or SQL.

    ndjson    {"database":...,"table":...,"columns":{...}}      values as in the ndjson of a pull
    csv       a line of names, then one record per row          for LOAD DATA (see `asof.csv`)
    arrow     one IPC stream, native types (docs/types.md)
    parquet   one file, native types; TIME as microseconds (int64)
    sql       session settings, then INSERT statements (see `asof.sql`)

A writer takes batches in storage form and returns bytes; concatenated, they are the body.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from reading.asof import csv
from reading.asof.core.projection import LeftOut
from reading.asof.sql import SETTINGS, inserts
from reading.formats.lines import Block, write
from reading.formats.ndjson import column_values
from reading.formats.pieces import Piece
from reading.formats.rows import fields_of, image, json_bytes
from schemas.layout import row_layout
from schemas.model import Table
from tistream.codec.row.native import native, native_type
from tistream.limits import LEFT_OUT_BYTES_MAX

LEFT_OUT_KEY = "tistream.left_out"  #: in the metadata of an Arrow or Parquet schema

#: format name -> media type
FORMATS: Mapping[str, str] = {
    "ndjson": "application/x-ndjson",
    "csv": "text/csv",
    "arrow": "application/vnd.apache.arrow.stream",
    "parquet": "application/vnd.apache.parquet",
    "sql": "application/sql",
}


class RowsWriter(ABC):
    """Writes one body."""

    def __init__(self, table: Table, left_out: Sequence[LeftOut]) -> None:
        self.table = table

    def begin(self) -> bytes:
        """The bytes before the rows."""
        return b""

    @abstractmethod
    def rows(self, batch: pa.RecordBatch) -> bytes:
        """The bytes of these rows; some may be returned with later ones."""

    def end(self) -> bytes:
        """The bytes after the rows."""
        return b""


def writer_of(name: str, table: Table, left_out: Sequence[LeftOut] = ()) -> RowsWriter:
    """The writer of a format in FORMATS. Arrow and Parquet name in their metadata what is left out."""
    writers: Mapping[str, Callable[[Table, Sequence[LeftOut]], RowsWriter]] = {
        "ndjson": _Ndjson,
        "csv": _Csv,
        "arrow": _Arrow,
        "parquet": _Parquet,
        "sql": _Sql,
    }
    return writers[name](table, left_out)


class _Ndjson(RowsWriter):
    def rows(self, batch: pa.RecordBatch) -> bytes:
        fields = fields_of(self.table)
        head = b'{"database":%b,"table":%b,"columns":' % (json_bytes(self.table.db), json_bytes(self.table.name))
        pieces: list[Piece] = [head, *image(fields, column_values(fields, batch)), b"}"]
        return _lines(batch.num_rows, pieces, b"\n")


class _Csv(RowsWriter):
    def begin(self) -> bytes:
        return csv.header(self.table)

    def rows(self, batch: pa.RecordBatch) -> bytes:
        return csv.records(self.table, batch)


class _Sql(RowsWriter):
    def begin(self) -> bytes:
        return SETTINGS

    def rows(self, batch: pa.RecordBatch) -> bytes:
        return inserts(self.table, batch)


class _Arrow(RowsWriter):
    def __init__(self, table: Table, left_out: Sequence[LeftOut]) -> None:
        super().__init__(table, left_out)
        self._schema = native_schema(table, left_out)
        self._sink = _Sink()
        self._writer = pa.ipc.new_stream(self._sink, self._schema)

    def rows(self, batch: pa.RecordBatch) -> bytes:
        self._writer.write_batch(_native(self.table, batch, self._schema))
        return self._sink.take()

    def end(self) -> bytes:
        self._writer.close()
        return self._sink.take()


class _Parquet(RowsWriter):
    def __init__(self, table: Table, left_out: Sequence[LeftOut]) -> None:
        super().__init__(table, left_out)
        self._schema = without_durations(native_schema(table, left_out))
        self._sink = _Sink()
        self._writer = pq.ParquetWriter(self._sink, self._schema, compression="zstd", compression_level=3)

    def rows(self, batch: pa.RecordBatch) -> bytes:
        converted = _native(self.table, batch, native_schema(self.table))
        columns = [
            c.cast(f.type) if pa.types.is_duration(c.type) else c for c, f in zip(converted, self._schema, strict=True)
        ]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        return self._sink.take()

    def end(self) -> bytes:
        self._writer.close()
        return self._sink.take()


class _Sink:
    """An append-only file object whose bytes are taken out as they arrive."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self.closed = False

    def write(self, data: object) -> int:
        part = bytes(memoryview(data).cast("B"))  # type: ignore[arg-type]
        self._parts.append(part)
        self._size += len(part)
        return len(part)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None: ...

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def take(self) -> bytes:
        """The bytes written since the last call."""
        content, self._parts = b"".join(self._parts), []
        return content


def left_out_json(left_out: Sequence[LeftOut]) -> str:
    """The columns that are left out, as JSON in ASCII."""
    return json.dumps([asdict(each) for each in left_out])


def left_out_headers(left_out: Sequence[tuple[str, LeftOut]]) -> dict[str, str]:
    """The same of (table, column), as headers of a bounded size; a column of an answer about one table has the table
    ''. Where not all fit, the first ones and the number of the others are shown."""
    shown, size = [], 2
    for table, column in left_out:
        one = json.dumps({**({"table": table} if table else {}), **asdict(column)})
        size += len(one) + 2
        if size > LEFT_OUT_BYTES_MAX:
            break
        shown.append(one)
    headers = {"TiStream-Left-Out": f"[{', '.join(shown)}]"} if left_out else {}
    more = len(left_out) - len(shown)
    return {**headers, "TiStream-Left-Out-More": str(more)} if more else headers


def native_schema(table: Table, left_out: Sequence[LeftOut] = ()) -> pa.Schema:
    """The columns in native types; what is left out is metadata."""
    metadata = {LEFT_OUT_KEY: left_out_json(left_out)} if left_out else None
    return pa.schema([pa.field(spec.name, native_type(spec)) for spec in row_layout(table).columns], metadata=metadata)


def _native(table: Table, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    specs = row_layout(table).columns
    arrays = [native(spec, batch.column(n)) for n, spec in enumerate(specs)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def without_durations(schema: pa.Schema) -> pa.Schema:
    """The schema with integers of microseconds where it has durations, which Parquet lacks."""
    fields = [f.with_type(pa.int64()) if pa.types.is_duration(f.type) else f for f in schema]
    return pa.schema(fields, metadata=schema.metadata)


def _lines(rows: int, pieces: list[Piece], end: bytes) -> bytes:
    _, data = write([Block(at=np.arange(rows), pieces=pieces)], end=end)
    return data.tobytes()
