"""Values of debezium messages."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reading.formats.pieces import JSON, Slot, bare, base64_text, large_binary, quoted, slot
from reading.formats.rows import Field, as_float, json_float, plain_text
from tistream.codec.row import layout
from tistream.codec.row.layout import Kind
from tistream.codec.row.text import enum_labels, float_plain, set_labels

_MILLIS_FSP_MAX = 3  # DATETIME with more fraction digits is in microseconds, else in milliseconds
_EPOCH_TEXT = "1970-01-01T00:00:00"
_TIMESTAMP_MIN = ((1970 * 13 + 1) << 5 | 1) << 17 | 1  # 1970-01-01 00:00:01, without microseconds


def value_json(field: Field, values: pa.Array) -> Slot:
    """JSON values of one storage column; null for nulls."""
    kind = field.kind
    if kind is Kind.TIME:
        return _date_or_time(field, values)
    if kind is Kind.DURATION:
        return bare(pc.divide(values, 1000))
    if kind is Kind.UNSIGNED and values.type.bit_width == 64:
        return bare(values.view(pa.int64()))
    if kind in (Kind.SIGNED, Kind.UNSIGNED, Kind.YEAR):
        return bare(values)
    if kind is Kind.DECIMAL:
        return json_float(float_plain(as_float(plain_text(field, values)), single=False))
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        return json_float(plain_text(field, values))
    if kind is Kind.BIT:
        return _bits(field, values)
    if kind is Kind.BINARY:
        return bare(base64_text(values), quote=True)
    if kind is Kind.ENUM:
        return quoted(enum_labels(field.spec, values), JSON)
    if kind is Kind.SET:
        return quoted(set_labels(field.spec, values), JSON)
    return quoted(plain_text(field, values), JSON)


def little_endian(values: pa.Array, bits: int) -> pa.Array:
    """uint64 values as the bytes that hold `bits` bits, least significant first; nulls stay."""
    width = (bits + 7) // 8
    numbers = np.ascontiguousarray(values.fill_null(0).to_numpy(zero_copy_only=False).astype("<u8"))
    data = np.ascontiguousarray(numbers.view(np.uint8).reshape(-1, 8)[:, :width])
    offsets = np.arange(len(values) + 1, dtype=np.int64) * width
    return large_binary(offsets, data.reshape(-1), np.asarray(values.is_valid().to_numpy(zero_copy_only=False)))


def _bits(field: Field, values: pa.Array) -> Slot:
    if field.column.flen == 1:
        return bare(pc.if_else(pc.not_equal(values, pa.scalar(0, pa.uint64())), "true", "false"))
    return bare(base64_text(little_endian(values, field.column.flen)), quote=True)


def _date_or_time(field: Field, values: pa.Array) -> Slot:
    if field.column.tp == layout.TIMESTAMP:
        return _zoned(field, values)
    packed = values.fill_null(0).to_numpy(zero_copy_only=False).astype(np.uint64)
    days, exists = _days(packed >> np.uint64(41))
    if field.column.tp != layout.DATETIME:
        count = days
    else:
        micros = (packed & np.uint64(0xFFFFFF)).astype(np.int64)
        seconds = days * 86400 + _clock(packed >> np.uint64(24))
        fine = field.column.decimal > _MILLIS_FSP_MAX
        count = seconds * 1_000_000 + micros if fine else seconds * 1000 + micros // 1000
    invalid = pa.scalar(0 if field.column.not_null else None, pa.int64())
    numbers = pc.if_else(pa.array(exists), pa.array(count), invalid)
    return bare(pc.if_else(values.is_valid(), numbers, pa.scalar(None, pa.int64())))


def _zoned(field: Field, values: pa.Array) -> Slot:
    """`2020-01-01T00:00:00.12Z`; the epoch for zero and everything before the first timestamp."""
    texts = pc.utf8_replace_slice(plain_text(field, values), start=10, stop=11, replacement="T")
    early = pc.less(pc.shift_right(values, pa.scalar(24, pa.uint64())), pa.scalar(_TIMESTAMP_MIN, pa.uint64()))
    return slot(pc.if_else(early, _EPOCH_TEXT, texts), before=b'"', after=b'Z"')


def _days(ymd: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """(days since the epoch, whether the date exists) of packed year * 13 + month and day. Moves years below 100."""
    numbers = ymd.astype(np.int64)
    year, month, day = (numbers >> 5) // 13, (numbers >> 5) % 13, numbers & 31
    year = year + np.where(year < 70, 2000, np.where(year < 100, 1900, 0))
    exists = (month >= 1) & (day >= 1)
    months = ((year - 1970) * 12 + np.maximum(month, 1) - 1).astype("datetime64[M]")
    first = months.astype("datetime64[D]").astype(np.int64)
    length = (months + 1).astype("datetime64[D]").astype(np.int64) - first
    return first + day - 1, exists & (day <= length)


def _clock(ymdhms: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Seconds of the day of a packed time of day."""
    hms: npt.NDArray[np.int64] = (ymdhms & np.uint64(0x1FFFF)).astype(np.int64)
    seconds: npt.NDArray[np.int64] = (hms >> 12) * 3600 + ((hms >> 6) & 63) * 60 + (hms & 63)
    return seconds
