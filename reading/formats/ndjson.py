"""ndjson: TiStream's own lines. JSON types match the columns, updates are not split, the record key identifies the row.

    {"type":"insert|update|delete","database","table","table_id","key","commit_ts","start_ts","commit_time",
     "columns":{...}|null,"old":{...}|null}
    {"type":"ddl","query","database","table","commit_ts","start_ts","commit_time","kind","finished_ts"}
    {"type":"resolved","resolved_ts","resolved_time"}

`table_id` is the physical id, timestamps are strings, `columns` is null in a delete and `old` in an insert. A DDL
appears where it takes effect, `commit_ts`; `finished_ts` is when its job finished, null if that was long after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reading.core.changes import DELETE, INSERT, UPDATE, TableChanges
from reading.formats.pieces import HEX, JSON_ONE_LINE, Piece, Slot, bare, base64_text, quoted
from reading.formats.protocol import Encoder
from reading.formats.rows import Field, commit_ts, fields_of, image, json_bytes, json_float, plain_text
from schemas.model import DdlEvent
from tistream import ts as tso
from tistream.codec.row.layout import ValueKind
from tistream.codec.row.text import bit_bytes, enum_labels, set_labels

_TYPES = {INSERT: b"insert", UPDATE: b"update", DELETE: b"delete"}
_EXACT_MAX = 2**53 - 1  # larger integers are strings: most JSON readers keep 53 bits


@dataclass(frozen=True, slots=True)
class Ndjson(Encoder):
    """TiStream's own format."""

    name: ClassVar[str] = "ndjson"
    media_type: ClassVar[str] = "application/x-ndjson"

    @property
    def splits_updates(self) -> bool:
        return False

    def pieces(self, changes: TableChanges, kind: int) -> list[Piece]:
        table = changes.table
        fields = fields_of(table)
        pieces: list[Piece] = [
            b'{"type":"%b","database":%b,"table":%b,"table_id":'
            % (_TYPES[kind], json_bytes(table.db), json_bytes(table.name)),
            Slot(values=changes.physical_id),
            b',"key":',
            quoted(changes.key, HEX),
            b',"commit_ts":"',
            commit_ts(changes),
            b'","start_ts":"',
            Slot(values=changes.start_ts),
            b'","commit_time":"',
            _times(changes.commit_ts),
            b'","columns":',
        ]
        pieces += image(fields, column_values(fields, changes.after)) if kind != DELETE else [b"null"]
        pieces.append(b',"old":')
        pieces += image(fields, column_values(fields, changes.before)) if kind != INSERT else [b"null"]
        return [*pieces, b"}"]

    def ddl(self, event: DdlEvent) -> list[bytes]:
        """One line."""
        line = {
            "type": "ddl",
            "query": event.statement,
            "database": event.db,
            "table": event.table,
            "commit_ts": str(event.commit_ts),
            "start_ts": str(event.start_ts),
            "commit_time": tso.to_text(event.commit_ts),
            "kind": event.kind,
            "finished_ts": str(event.finished_ts) if event.finished_ts else None,
        }
        return [json_bytes(line)]

    def watermark(self, ts: int) -> bytes | None:
        """A resolved line."""
        return json_bytes({"type": "resolved", "resolved_ts": str(ts), "resolved_time": tso.to_text(ts)})


def _times(commit_ts_values: npt.NDArray[np.uint64]) -> Slot:
    """RFC 3339 in UTC with milliseconds."""
    ms = (commit_ts_values >> np.uint64(tso.LOGICAL_BITS)).astype(np.int64)
    distinct, back = np.unique(ms, return_inverse=True)
    texts = np.datetime_as_string(distinct.astype("datetime64[ms]"), unit="ms", timezone="UTC")
    return bare(pa.array(texts, pa.large_string()).take(pa.array(back)))


def column_values(fields: Sequence[Field], batch: pa.RecordBatch) -> list[Slot]:
    """The values of the columns, one slot per column."""
    return [_value(f, batch.column(f.place)) for f in fields]


def _value(field: Field, values: pa.Array) -> Slot:
    kind = field.kind
    if kind in (ValueKind.SIGNED, ValueKind.UNSIGNED, ValueKind.YEAR):
        return _integer(values)
    if kind in (ValueKind.FLOAT, ValueKind.DOUBLE):
        return json_float(plain_text(field, values))
    if kind is ValueKind.VECTOR:
        return bare(plain_text(field, values))
    if kind is ValueKind.BINARY:
        return bare(base64_text(values), quote=True)
    if kind is ValueKind.BIT:
        return bare(base64_text(bit_bytes(field.spec, values)), quote=True)
    if kind is ValueKind.ENUM:
        return quoted(enum_labels(field.spec, values), JSON_ONE_LINE)
    if kind is ValueKind.SET:
        return quoted(set_labels(field.spec, values), JSON_ONE_LINE)
    return quoted(plain_text(field, values), JSON_ONE_LINE)


def _integer(values: pa.Array) -> Slot:
    if values.type.bit_width < 64:
        return bare(values)
    inside = pc.less_equal(values, pa.scalar(_EXACT_MAX, values.type))
    if pa.types.is_signed_integer(values.type):
        inside = pc.and_(inside, pc.greater_equal(values, pa.scalar(-_EXACT_MAX, values.type)))
    if pc.all(inside).as_py() is not False:
        return bare(values)
    texts = values.cast(pa.string())
    return bare(pc.if_else(inside, texts, pc.binary_join_element_wise('"', texts, '"', "")))
