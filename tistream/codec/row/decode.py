"""Record keys and values to Arrow columns in storage form.

For each batch: locate the bytes of every wanted cell in one pass, fill what the value lacks, then convert column by
column. A cell is, in this order: the value's bytes; the handle; the clustered primary key's datum; NULL if the value
says so; the default from the time the column was added.

A bad row never raises and never disturbs another: it becomes NULL in every column and is reported with its first cause.
The same holds for a bad definition: an origin default that cannot be used fails the rows that lack the column, an
unknown type the rows that hold a value of it. Only wrong calls raise: keys and values of different lengths, or over 2
GiB of bytes.

Handles, v1 integers and defaults are placed behind the values in one buffer (the values are copied once for that), so
the converters know a single kind of cell: position and length in that buffer, in the form of v2 rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tistream.codec.compiled import view
from tistream.codec.row import columns as convert
from tistream.codec.row.checksum import claims_of, verify, verify_columns
from tistream.codec.row.columns import BUFFER_BYTES_MAX, Cells, refuse
from tistream.codec.row.defaults import stored_default
from tistream.codec.row.handle import common_handles, int_handles
from tistream.codec.row.kernel import ABSENT, CAUSES, MISSING, NULL, SAME_ID, UNUSABLE_DEFAULT
from tistream.codec.row.layout import ColumnSpec, RowLayout, kind_of, storage_schema
from tistream.codec.row.locate import ACCEPTS, SMALL_IDS, locate, locate_old
from tistream.errors import InvalidInput
from tistream.model.arrays import I32, I64, U8

#: an image (row format 2) without a single column: columns outside the key are missing
EMPTY_ROW = bytes([0x80, 0, 0, 0, 0, 0])

_UNUSABLE = bytes(bytearray(b"unusable"))  # compared by identity


@dataclass(frozen=True, slots=True, kw_only=True)
class RowError:
    index: int  #: of the row in the batch
    column: str  #: name, "" if the row as a whole is broken
    offset: int  #: byte in the value; -1 if the trouble is in the key or in a rewritten datum
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    batch: pa.RecordBatch  #: a column for each of the layout's, in storage form
    errors: tuple[RowError, ...]  #: by ascending index; these rows are NULL throughout
    lacking: npt.NDArray[np.bool_]  #: (columns, rows), which cells neither value nor key hold; (0, 0) unless asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Data derived from a layout once."""

    schema: pa.Schema
    small: I32  #: id below SMALL_IDS -> column index or ABSENT
    ids: I64  #: ascending ids of all columns
    order: I32  #: their column indexes
    accepts: I64  #: datum flags that a column may have
    defaults: tuple[bytes | None, ...]
    unusable: frozenset[int]  #: column indexes whose origin default cannot be used
    same_id: bool  #: two columns have one id: no row can be read
    int_handle: int  #: column index or ABSENT
    common_handle: I32  #: column indexes or ABSENT
    handles: tuple[int, ...]  #: column indexes or ABSENT of all columns that the row key has


@lru_cache(maxsize=512)
def _plan(layout: RowLayout) -> _Plan:
    ids = [column.id for column in layout.columns]
    small = np.full(SMALL_IDS, ABSENT, np.int32)
    for index, id_ in enumerate(ids):
        if 0 <= id_ < SMALL_IDS:
            small[id_] = index
    order = np.argsort(np.array(ids, np.int64), kind="stable").astype(np.int32)
    index_of = {id_: index for index, id_ in enumerate(ids)}
    int_handle = ABSENT if layout.int_handle is None else index_of.get(layout.int_handle, ABSENT)
    common_handle = [index_of.get(id_, ABSENT) for id_ in layout.common_handle]
    defaults = tuple(_default(column) for column in layout.columns)
    return _Plan(
        schema=storage_schema(layout),
        small=small,
        ids=np.array(ids, np.int64)[order],
        order=order,
        accepts=ACCEPTS[np.array([kind_of(column) for column in layout.columns], np.int64)],
        defaults=tuple(None if default is _UNUSABLE else default for default in defaults),
        unusable=frozenset(c for c, default in enumerate(defaults) if default is _UNUSABLE),
        same_id=len(index_of) != len(ids),
        int_handle=int_handle,
        common_handle=np.array(common_handle, np.int32),
        handles=tuple(common_handle if layout.int_handle is None else [int_handle, *common_handle]),
    )


def _default(column: ColumnSpec) -> bytes | None:
    try:
        return stored_default(column)
    except InvalidInput:
        return _UNUSABLE


def decode(layout: RowLayout, keys: pa.BinaryArray, values: pa.BinaryArray, *, with_lacking: bool = False) -> Decoded:
    """Decode the rows of one table version.

    `keys` are plain record keys, `values` their images; a NULL value (no image) is NULL in every column.
    `with_lacking` also returns which cells come from the column's default and not from the row.
    Raises InvalidInput when the two differ in length, are not `binary` arrays, or hold more than 2 GiB together.
    """
    if len(keys) != len(values):
        raise InvalidInput("as many keys as values are needed", table=layout.name, keys=len(keys), values=len(values))
    plan = _plan(layout)
    rows = len(values)
    key_bytes, key_offsets = _binary(layout, keys)
    data, offsets = _binary(layout, values)
    present = pc.is_valid(values).to_numpy(zero_copy_only=False).astype(np.uint8)
    length = np.full((len(layout.columns), rows), MISSING, np.int32)
    position = np.zeros_like(length)
    trailer, fault = np.empty(rows, np.int32), np.zeros((3, rows), np.int32)
    old, summed = locate(data, offsets, present, plan.small, plan.ids, plan.order, position, length, trailer, fault)
    lacking = np.zeros(length.shape if with_lacking else (0, 0), np.bool_)
    claims = None
    if summed:
        verify(data, offsets, key_bytes, key_offsets, trailer, length, fault)
        claims = claims_of(data, offsets, trailer, length, plan.handles)
    if old or (length == MISSING).any() or plan.int_handle >= 0 or (plan.common_handle >= 0).any():
        data = _complete(
            layout, plan, old, data, offsets, present, key_bytes, key_offsets, position, length, fault, lacking
        )
    if plan.same_id:
        refuse(fault, length, np.flatnonzero(present), SAME_ID, -1)
    cells = Cells(data=data, position=position, length=length, fault=fault)
    arrays = [convert.column_of(column, cells, c) for c, column in enumerate(layout.columns)]
    if claims is not None and len(claims.rows):
        verify_columns(layout.columns, arrays, cells, claims, trailer)
    errors = _errors(layout, offsets, fault)
    if errors:
        good = pa.array(fault[0] == 0)
        arrays = [pc.if_else(good, array, pa.scalar(None, array.type)) for array in arrays]
    batch = pa.RecordBatch.from_arrays(arrays, schema=plan.schema) if arrays else _no_columns(rows)
    return Decoded(batch=batch, errors=errors, lacking=lacking)


def _no_columns(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))


def _binary(layout: RowLayout, values: pa.BinaryArray) -> tuple[U8, I32]:
    """(bytes, offsets from 0) of a binary array, both read-only."""
    if values.type != pa.binary():
        raise InvalidInput("keys and values must be binary arrays", table=layout.name, type=str(values.type))
    if len(values) == 0:
        offsets, data = np.zeros(1, np.int32), view(None, np.uint8)
    else:
        offsets = view(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
        data = view(values.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
        if offsets[0]:
            offsets = offsets - offsets[0]
    offsets.flags.writeable = False
    return data, offsets


def _complete(
    layout: RowLayout,
    plan: _Plan,
    old: int,
    values: U8,
    offsets: I32,
    present: U8,
    keys: U8,
    key_offsets: I32,
    position: I32,
    length: I32,
    fault: I32,
    lacking: npt.NDArray[np.bool_],
) -> U8:
    """Fill the cells that the values alone do not give. Returns the buffer that the positions now refer to."""
    blob = b"".join(default or b"" for default in plan.defaults)
    handle_at = len(values)
    old_at = handle_at + len(keys)
    default_at = old_at + 8 * old * len(layout.columns)
    total = default_at + len(blob)
    if total > BUFFER_BYTES_MAX:
        raise InvalidInput("too many bytes in one batch of rows", table=layout.name, bytes=total)
    data = np.empty(total, np.uint8)
    data[:handle_at] = values
    data[default_at:] = np.frombuffer(blob, np.uint8)
    if old:
        tables = (plan.small, plan.ids, plan.order, plan.accepts)
        locate_old(data, offsets, present, tables, old_at, position, length, fault)
    if plan.int_handle >= 0:
        int_handles(keys, key_offsets, present, plan.int_handle, data, handle_at, position, length, fault)
    if (plan.common_handle >= 0).any():
        columns, accepts = plan.common_handle, plan.accepts
        common_handles(keys, key_offsets, present, columns, accepts, data, handle_at, position, length, fault)
    for c, default in enumerate(plan.defaults):
        missing = length[c] == MISSING
        if len(lacking):
            lacking[c] = missing
        if c in plan.unusable:
            refuse(fault, length, np.flatnonzero(missing), UNUSABLE_DEFAULT, c)
        elif missing.any():
            position[c, missing] = default_at
            length[c, missing] = NULL if default is None else len(default)
        default_at += len(default or b"")
    data.flags.writeable = False
    return data


def _errors(layout: RowLayout, offsets: I32, fault: I32) -> tuple[RowError, ...]:
    errors = []
    for row in np.flatnonzero(fault[0]).tolist():
        cause, column, at = (int(part) for part in fault[:, row])
        inside = at >= 0 and offsets[row] <= at <= offsets[row + 1]
        errors.append(
            RowError(
                index=row,
                column=layout.columns[column].name if column >= 0 else "",
                offset=at - int(offsets[row]) if inside else -1,
                cause=CAUSES[cause],
            )
        )
    return tuple(errors)
