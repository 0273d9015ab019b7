"""One record batch as one Arrow IPC stream: written in one allocation, validated when read.

    schema message | exactly one record batch message | end of stream

Vectorised code indexes buffers by the offsets in them, so `read_batch` checks foreign bytes first:

- there is one schema and one record batch, no dictionary, and nothing after the end of the stream;
- no buffer is compressed inside the stream: a few bytes could expand to gigabytes;
- every offset, length and null count agrees with its buffers (Arrow's full validation);
- a column declared without nulls has none.

It does not check the values.
"""

from __future__ import annotations

import struct

import pyarrow as pa

_END_OF_STREAM_BYTES = 8
_RECORD_BATCH = 3  # tag of the Message header union
_HEADER_TYPE, _HEADER = 1, 2  # fields of the flatbuffer table Message
_COMPRESSION = 3  # field of the flatbuffer table RecordBatch


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
        batch = _read(pa.BufferReader(pa.py_buffer(data)), schema)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, EOFError, struct.error) as e:
        raise ValueError(f"not a sound Arrow stream: {e}") from e
    _check_nulls(batch)
    return batch


def _read(source: pa.BufferReader, expected: pa.Schema | None) -> pa.RecordBatch:
    messages = pa.ipc.MessageReader.open_stream(source)
    schema = pa.ipc.read_schema(_next(messages, "schema"))
    if expected is not None and not schema.equals(expected):
        raise ValueError(f"unexpected columns: {_difference(schema, expected)}")
    body = _next(messages, "record batch")
    if _is_body_compressed(memoryview(body.metadata)):
        raise ValueError("a buffer is compressed inside the stream")
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


def _is_body_compressed(metadata: memoryview) -> bool:
    """Whether a record batch message declares body compression. Arrow would decompress before any size check."""
    message = _unpack("<I", metadata, 0)
    header_type = _field(metadata, message, _HEADER_TYPE)
    header = _field(metadata, message, _HEADER)
    if not header_type or not header or _unpack("<B", metadata, header_type) != _RECORD_BATCH:
        raise ValueError("not a record batch message")
    return _field(metadata, header + _unpack("<I", metadata, header), _COMPRESSION) != 0


def _field(data: memoryview, table: int, number: int) -> int:
    """Where a field of a flatbuffer table lies, 0 when it is absent."""
    vtable = table - _unpack("<i", data, table)
    slot = 4 + 2 * number
    offset = _unpack("<H", data, vtable + slot) if slot < _unpack("<H", data, vtable) else 0
    return table + offset if offset else 0


def _unpack(kind: str, data: memoryview, at: int) -> int:
    if at < 0:
        raise ValueError("an offset lies before the message")
    value: int = struct.unpack_from(kind, data, at)[0]
    return value


def _check_nulls(batch: pa.RecordBatch) -> None:
    if not any(column.null_count for column in batch.columns):
        return
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            raise ValueError(f"column {field.name} has nulls")


def _difference(found: pa.Schema, expected: pa.Schema) -> str:
    for i in range(max(len(found), len(expected))):
        a = str(found.field(i)) if i < len(found) else "nothing"
        b = str(expected.field(i)) if i < len(expected) else "nothing"
        if a != b:
            return f"column {i} is {a}, not {b}"
    return "the order of columns"
