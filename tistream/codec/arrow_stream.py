"""One record batch as one Arrow IPC stream: written in one allocation, validated when read.

    schema message | exactly one record batch message | end of stream

Vectorised code indexes buffers by the offsets in them, so `read_batch` checks foreign bytes first:

- there is one schema and one record batch, no dictionary, and nothing after the end of the stream;
- the schema has few columns, none of them nested, and no texts but those of the schema's own metadata;
- no buffer is compressed inside the stream: a few bytes could expand to gigabytes;
- no byte belongs to two buffers: the batch is never larger than the stream;
- every offset, length and null count agrees with its buffers (Arrow's full validation);
- a column declared without nulls has none.

Messages are flatbuffers, in which many entries may point at one table or text. Arrow copies each of them, so that a
megabyte could become gigabytes. They are therefore walked before Arrow reads them.

It does not check the values.
"""

from __future__ import annotations

import struct
from functools import lru_cache

import pyarrow as pa

_END_OF_STREAM_BYTES = 8
_CONTINUES = 0xFFFFFFFF  # before the length of a message
_SCHEMA, _RECORD_BATCH = 1, 3  # tags of the Message header union
_HEADER_TYPE, _HEADER, _BODY_LENGTH, _MESSAGE_TEXTS = 1, 2, 3, 4  # fields of the flatbuffer table Message
_FIELDS, _SCHEMA_TEXTS = 1, 2  # of Schema
_DICTIONARY, _CHILDREN, _FIELD_TEXTS = 4, 5, 6  # of Field
_COMPRESSION = 3  # of RecordBatch
_COLUMNS_MAX = 64
_CACHED_BYTES_MAX = 8192
_U16, _I32, _U32, _MESSAGE = struct.Struct("<H"), struct.Struct("<i"), struct.Struct("<I"), struct.Struct("<II")

_Bytes = bytes | memoryview


def single_batch(data: pa.Table | pa.RecordBatch) -> pa.RecordBatch:
    """The data as one record batch, without schema metadata. ValueError when it does not fit or breaks its schema."""
    if isinstance(data, pa.Table):
        batches = data.combine_chunks().to_batches()
        if len(batches) > 1:
            raise ValueError("the data does not fit into one record batch")
        data = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=data.schema)
    _check_nulls(data)
    return data.replace_schema_metadata(None)


def write_batch(batch: pa.RecordBatch) -> pa.Buffer:
    """The batch as an Arrow IPC stream, uncompressed. The same batch gives the same bytes."""
    size = batch.schema.serialize().size + pa.ipc.get_record_batch_size(batch) + _END_OF_STREAM_BYTES
    out = pa.allocate_buffer(size)
    with pa.FixedSizeBufferWriter(out) as sink, pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return out


def read_batch(data: bytes | memoryview, schema: pa.Schema | None = None) -> pa.RecordBatch:
    """The batch of a stream, its buffers inside `data`. ValueError when the stream is not exactly one sound batch.

    With `schema` its columns (names, types, nullability) must be that schema; schema metadata is kept, not compared.
    """
    try:
        batch = _read(data, schema)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, EOFError, IndexError, struct.error) as e:
        raise ValueError(f"not a sound Arrow stream: {e}") from e
    if batch.nbytes > len(data):
        raise ValueError(f"buffers overlap: {batch.nbytes} bytes of rows in a stream of {len(data)}")
    _check_nulls(batch)
    return batch


def _read(data: bytes | memoryview, expected: pa.Schema | None) -> pa.RecordBatch:
    view = memoryview(data)
    end = _end_of_metadata(view, 0, "schema")
    head = bytes(view[:end])
    schema = _schema(head) if end <= _CACHED_BYTES_MAX else _checked_schema(head)
    if expected is not None and not schema.equals(expected):
        raise ValueError(f"unexpected columns: {_difference(schema, expected)}")
    _check_batch(view, end)
    source = pa.BufferReader(pa.py_buffer(view[end:]))
    messages = pa.ipc.MessageReader.open_stream(source)
    body = _next(messages, "record batch")
    try:
        messages.read_next_message()
    except StopIteration:
        if source.tell() != source.size():
            raise ValueError("bytes after the end of the stream") from None
        return pa.ipc.read_record_batch(body, schema)
    raise ValueError("more than one record batch")


def _next(messages: pa.ipc.MessageReader, kind: str) -> pa.Message:
    try:
        message = messages.read_next_message()
    except StopIteration:
        raise ValueError(f"the {kind} is missing") from None
    if message.type != kind:
        raise ValueError(f"{message.type} in place of the {kind}")
    return message


def _checked_schema(data: bytes) -> pa.Schema:
    """The schema in a message. ValueError unless its columns are few and plain."""
    message, header = _message(data, 0, _SCHEMA, "schema")
    fields = _field(data, header, _FIELDS)
    at, count = _vector(data, fields) if fields else (0, 0)
    if count > _COLUMNS_MAX:
        raise ValueError(f"unexpected columns: {count} of them")
    for n in range(count):
        _check_field(data, _target(data, at + 4 * n), n)
    texts = _field(data, header, _SCHEMA_TEXTS)
    if texts and _vector(data, texts)[1] > 1:
        raise ValueError("the schema has more than one text")
    if (body := _field(data, message, _BODY_LENGTH)) and any(data[body : body + 8]):
        raise ValueError("the schema has a body")
    return pa.ipc.read_schema(pa.py_buffer(data))


#: schemas of messages that were read before: most streams have one of a few
_schema = lru_cache(maxsize=64)(_checked_schema)


def _check_field(data: bytes, field: int, n: int) -> None:
    """ValueError unless a column is of a plain type, without texts."""
    vtable = field - _I32.unpack_from(data, field)[0]
    if vtable < 0:
        raise ValueError("an offset lies before the message")
    slots = _U16.unpack_from(data, vtable)[0] // 2
    for slot in range(_DICTIONARY + 2, min(slots, _FIELD_TEXTS + 3)):
        offset = _U16.unpack_from(data, vtable + 2 * slot)[0]
        if offset and (slot != _CHILDREN + 2 or _vector(data, field + offset)[1]):
            raise ValueError(f"column {n} is nested, or has a dictionary or texts of its own")


def _check_batch(data: memoryview, at: int) -> None:
    """ValueError unless a record batch without compressed buffers begins here."""
    _, header = _message(data, at, _RECORD_BATCH, "record batch")
    if _field(data, header, _COMPRESSION):
        raise ValueError("a buffer is compressed inside the stream")


def _message(data: _Bytes, at: int, kind: int, name: str) -> tuple[int, int]:
    """Where a message's table and header lie."""
    _end_of_metadata(data, at, name)
    message = _target(data, at + 8)
    header_type, header = _field(data, message, _HEADER_TYPE), _field(data, message, _HEADER)
    if not header_type or not header or data[header_type] != kind:
        raise ValueError(f"something else in place of the {name}")
    if _field(data, message, _MESSAGE_TEXTS):
        raise ValueError(f"the {name} has texts of its own")
    return message, _target(data, header)


def _end_of_metadata(data: _Bytes, at: int, name: str) -> int:
    """Where the metadata of the message ends that begins here."""
    continues, length = _MESSAGE.unpack_from(data, at)
    if continues != _CONTINUES or length == 0:
        raise ValueError(f"the {name} is missing")
    return int(at + 8 + length)


def _target(data: _Bytes, at: int) -> int:
    """Where the offset at this place points."""
    return int(at + _U32.unpack_from(data, at)[0])


def _vector(data: _Bytes, at: int) -> tuple[int, int]:
    """Where the entries of a vector begin, and their number."""
    entries = _target(data, at)
    return entries + 4, _U32.unpack_from(data, entries)[0]


def _field(data: _Bytes, table: int, number: int) -> int:
    """Where a field of a flatbuffer table lies, 0 when it is absent."""
    vtable = table - _I32.unpack_from(data, table)[0]
    if vtable < 0:
        raise ValueError("an offset lies before the message")
    slot = 4 + 2 * number
    offset = _U16.unpack_from(data, vtable + slot)[0] if slot < _U16.unpack_from(data, vtable)[0] else 0
    return table + offset if offset else 0


def _check_nulls(batch: pa.RecordBatch) -> None:
    if not any(column.null_count for column in batch.columns):
        return
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            raise ValueError(f"column {field.name} has nulls")


def _difference(actual: pa.Schema, expected: pa.Schema) -> str:
    for i in range(max(len(actual), len(expected))):
        a = str(actual.field(i)) if i < len(actual) else "nothing"
        b = str(expected.field(i)) if i < len(expected) else "nothing"
        if a != b:
            return f"column {i} is {a}, not {b}"
    return "the order of columns"
