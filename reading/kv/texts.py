"""Columns of keys and values in a key format, written by the kernels of the text formats."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from reading.formats.lines import as_array
from reading.formats.pieces import HEX, JSON_ONE_LINE, LARGE, Slot, bare, base64_text, byte_map, quoted, slot
from tistream.codec.key_format import ESCAPES, KeyFormat, NotInFormat

_SHOWN = 64  # bytes of a key that a message repeats
_IN_JSON = {0x22: b'\\"', 0x5C: b"\\\\"}
_ESCAPED = byte_map(ESCAPES)
_ESCAPED_JSON = byte_map(
    {0x22: _IN_JSON[0x22]} | {b: b"".join(_IN_JSON.get(c, bytes([c])) for c in text) for b, text in ESCAPES.items()}
)


def json_strings(values: pa.Array, form: KeyFormat) -> Slot:
    """Binary values as JSON strings, or null. Check UTF-8 first, see `check_utf8`."""
    match form:
        case KeyFormat.HEX:
            return quoted(values, HEX)
        case KeyFormat.BASE64:
            return bare(base64_text(values), quote=True)
        case KeyFormat.UTF8:
            return quoted(values, JSON_ONE_LINE)
    return quoted(values, _ESCAPED_JSON)


def plain_texts(values: pa.Array, form: KeyFormat) -> pa.Array:
    """Binary values as text; nulls stay. Check UTF-8 first, see `check_utf8`."""
    match form:
        case KeyFormat.HEX | KeyFormat.ESCAPED:
            text = as_array(slot(values, HEX if form is KeyFormat.HEX else _ESCAPED)).cast(pa.large_string())
            return pc.if_else(values.is_null(), pa.scalar(None, pa.large_string()), text)
        case KeyFormat.BASE64:
            return base64_text(values)
    return values.cast(LARGE).cast(pa.large_string())


def check_utf8(keys: pa.Array, values: pa.Array) -> None:
    """NotInFormat, with the key in hex, when a key or its value is not UTF-8."""
    for what, column in (("The key", keys), ("The value of key", values)):
        at = _first_not_utf8(column)
        if at is not None:
            key = keys[at].as_py()
            shown = f"0x{key[:_SHOWN].hex()}{'...' if len(key) > _SHOWN else ''}"
            raise NotInFormat(f"{what} {shown} is not UTF-8: key_format=utf8 cannot write it.", key=key.hex())


def _first_not_utf8(values: pa.Array) -> int | None:
    """The row of the first value that is not UTF-8."""
    large = values.cast(LARGE)
    if _is_utf8(large):
        return None
    low, high = 0, len(large)  # it lies in [low, high)
    while high - low > 1:
        middle = (low + high) // 2
        if _is_utf8(large.slice(low, middle - low)):
            low = middle
        else:
            high = middle
    return low


def _is_utf8(values: pa.LargeBinaryArray) -> bool:
    try:
        values.cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True
