"""One row and one column at a time, in plain Python, written from the format and not from the codec.

`decode_row` is what the vectorised decoder is compared with: the same values in storage form (JSON as text), and
`BrokenRow` for exactly the rows that a decoder must refuse.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import struct
import zlib
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from itertools import pairwise, product
from types import MappingProxyType
from typing import Any

from tistream.codec.row.encode import EXACT, INTEGER_TYPES, STRING_TYPES, TIME_TYPES, pack_time
from tistream.codec.row.layout import ColumnSpec, RowLayout


class BrokenRow(Exception):
    """The row cannot be decoded."""


def need(condition: bool, cause: str) -> None:
    """Raise BrokenRow unless the condition holds."""
    if not condition:
        raise BrokenRow(cause)


def decode_row(layout: RowLayout, key: bytes, value: bytes | None) -> list[Any]:
    """One row, a value for each of the layout's columns. Raises BrokenRow."""
    if value is None:
        return [None] * len(layout.columns)
    need(len(value) > 0, "empty")
    specs = {column.id: column for column in layout.columns}
    cells, sums = _read_v2(value, key) if value[0] == 0x80 else (_read_v1(value, specs), set())
    wanted_handles = [id_ for id_ in layout.common_handle if id_ in specs and cells.get(id_) is None]
    handles = _read_key(layout, key, specs) if wanted_handles else {}
    row, all_cells = [], dict(cells)
    for column in layout.columns:
        if cells.get(column.id) is not None:
            row.append(read_cell(column, cells[column.id]))
        elif column.id == layout.int_handle:
            need(len(key) == 19 and key[:1] == b"t" and key[9:11] == b"_r", "not an integer handle")
            (unsigned,) = struct.unpack(">Q", key[11:])
            all_cells[column.id] = (unsigned ^ 2**63).to_bytes(8, "little")
            row.append(read_cell(column, all_cells[column.id]))
        elif column.id in layout.common_handle:
            need(column.id in handles, "key too short")
            all_cells[column.id] = handles[column.id]
            row.append(read_cell(column, handles[column.id]))
        else:
            row.append(None if column.id in cells else default_of(column))
    covered = {id_ for id_, raw in all_cells.items() if raw is not None} | {*layout.common_handle}
    if layout.int_handle is not None:
        covered.add(layout.int_handle)
    if sums and covered <= specs.keys():
        need(_fits(layout.columns, all_cells, sums), "column checksum")
    return row


def _read_v2(row: bytes, key: bytes) -> tuple[dict[int, bytes | None], set[int]]:
    """(cells, checksums of version 0)."""
    need(len(row) >= 6, "short")
    _, flags, filled, empty = struct.unpack_from("<BBHH", row)
    need(flags < 4, "flags")
    id_size, end_size = (4, 4) if flags & 1 else (1, 2)
    body = 6 + (filled + empty) * id_size + filled * end_size
    need(body <= len(row), "short")
    ids = [int.from_bytes(row[6 + id_size * j :][:id_size], "little") for j in range(filled + empty)]
    ends_at = 6 + (filled + empty) * id_size
    ends = [int.from_bytes(row[ends_at + end_size * j :][:end_size], "little") for j in range(filled)]
    for part in (ids[:filled], ids[filled:]):
        need(all(left < right for left, right in pairwise(part)), "order")
    cells: dict[int, bytes | None] = dict.fromkeys(ids[filled:])
    last = 0
    for id_, end in zip(ids, ends, strict=False):
        need(last <= end <= len(row) - body, "end")
        cells[id_] = row[body + last : body + end]
        last = end
    trailer = row[body + last :]
    if not flags & 2:
        need(trailer == b"", "trailing")
        return cells, set()
    need(len(trailer) > 0 and len(trailer) == (9 if trailer[0] & 8 else 5), "trailer size")
    version, crc = trailer[0] & 7, int.from_bytes(trailer[1:5], "little")
    need(version <= 2, "checksum version")
    if version == 0:
        return cells, {int.from_bytes(trailer[at : at + 4], "little") for at in range(1, len(trailer), 4)}
    covered = row[: body + last + 1]
    sums = {1: {zlib.crc32(covered + key), zlib.crc32(covered + key[11:])}, 2: {zlib.crc32(covered + key[11:])}}
    need(crc in sums[version], "checksum")
    return cells, set()


def column_sum(
    columns: Iterable[ColumnSpec], cells: Mapping[int, bytes | None], minutes: Mapping[int, int] = MappingProxyType({})
) -> int:
    """The checksum of version 0 over cells in the form of v2 rows, NULL and missing ones left out. `minutes` from UTC
    are those in which TIMESTAMPs were shown, by column id."""
    by_id = {column.id: column for column in columns}
    pieces = [_summed(by_id[id_], raw, minutes.get(id_, 0)) for id_, raw in sorted(cells.items()) if raw is not None]
    return zlib.crc32(b"".join(pieces))


def _fits(columns: Iterable[ColumnSpec], cells: Mapping[int, bytes | None], sums: set[int]) -> bool:
    """In UTC, or at another offset with or without summer time."""
    if column_sum(columns, cells) in sums:
        return True
    zoned = sorted(column.id for column in columns if column.tp == 7 and cells.get(column.id) is not None)
    for base in range(-14 * 60, 14 * 60 + 1, 15) if zoned else ():
        for others in product((0, -60, 60), repeat=len(zoned) - 1):
            minutes = dict(zip(zoned, (base, *(base + each for each in others)), strict=True))
            if column_sum(columns, cells, minutes) in sums:
                return True
    return False


def _summed(column: ColumnSpec, raw: bytes, minutes: int) -> bytes:
    tp = column.tp
    if tp in STRING_TYPES:
        return struct.pack("<I", len(raw)) + raw
    if tp == 225:
        return raw
    value = read_cell(column, raw)
    if tp in (4, 5):
        return struct.pack("<d", value if math.isfinite(value) else 0.0)
    if tp == 11 or tp in TIME_TYPES or tp in (245, 246):
        shown = value if tp == 245 else _decimal_text(column, value) if tp == 246 else _clock_text(column, value)
        if minutes:
            with contextlib.suppress(ValueError, OverflowError):  # zero and impossible dates stay
                moved = datetime.fromisoformat(shown[:19]) + timedelta(minutes=minutes)
                shown = moved.isoformat(sep=" ") + shown[19:]
        return struct.pack("<I", len(shown.encode())) + shown.encode()
    return struct.pack("<Q", value % 2**64)


def _decimal_text(column: ColumnSpec, value: Decimal) -> str:
    return f"{value if value else abs(value):.{max(column.decimal, 0)}f}"


def _clock_text(column: ColumnSpec, value: int) -> str:
    if column.tp == 11:
        seconds, micros = divmod(abs(value) // 1000, 10**6)
        date = "-" if value < 0 else ""
    else:
        days, clock = divmod(value >> 24, 2**17)
        micros, seconds = value % 2**24, (clock >> 12) * 3600 + (clock >> 6 & 63) * 60 + (clock & 63)
        year, month = divmod(days >> 5, 13)
        date = f"{year:04d}-{month:02d}-{days & 31:02d}"
        if column.tp == 10:
            return date
        date += " "
    digits = max(column.decimal, 0)
    fraction = "." + f"{micros:06d}"[:digits] if digits else ""
    return f"{date}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}"


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        need(at < len(raw), "varint")
        value |= (raw[at] & 0x7F) << shift
        at += 1
        if raw[at - 1] < 0x80:
            need(value < 2**64, "varint")
            return value, at
    raise BrokenRow("varint")


def _signed(value: int) -> int:
    return value // 2 if value % 2 == 0 else -(value + 1) // 2


def _decimal_bytes(raw: bytes, at: int) -> int:
    need(at + 2 <= len(raw), "decimal")
    digits, fraction = raw[at], raw[at + 1]
    need(1 <= digits <= 65 and fraction <= 30 and fraction <= digits, "decimal")
    sizes = [0, 1, 1, 2, 2, 3, 3, 4, 4, 4]
    whole = digits - fraction
    return 2 + whole // 9 * 4 + sizes[whole % 9] + fraction // 9 * 4 + sizes[fraction % 9]


def _accepts(column: ColumnSpec) -> set[int]:
    tp = column.tp
    if tp in STRING_TYPES:
        return {1, 2}
    special = {4: {5}, 5: {5}, 246: {6}, 245: {10}, 225: {20}, 11: {3, 7, 8}}
    return special.get(tp, {3, 4, 8, 9})


def _read_v1(row: bytes, specs: Mapping[int, ColumnSpec]) -> dict[int, bytes | None]:
    cells: dict[int, bytes | None] = {}
    at = 0 if row != b"\0" else 1
    while at < len(row):
        need(row[at] == 8, "column id")
        id_, at = _varint(row, at + 1)
        need(at < len(row), "short")
        flag, at, raw = row[at], at + 1, None
        if flag in (8, 9):
            value, at = _varint(row, at)
            raw = ((_signed(value) if flag == 8 else value) % 2**64).to_bytes(8, "little")
        elif flag == 2:
            value, at = _varint(row, at)
            size = _signed(value)
            need(0 <= size <= len(row) - at, "short")
            raw, at = row[at : at + size], at + size
        elif flag != 0:
            size = _datum_bytes(row, flag, at)
            need(0 <= size <= len(row) - at, "short")
            raw, at = row[at : at + size], at + size
            if flag in (3, 4, 7):
                number = int.from_bytes(raw, "big") ^ (0 if flag == 4 else 2**63)
                raw = number.to_bytes(8, "little")
        column = specs.get(_signed(id_))
        if column is not None:
            need(flag == 0 or flag in _accepts(column), "datum of another type")
            cells[column.id] = raw
    return cells


def _datum_bytes(row: bytes, flag: int, at: int) -> int:
    if flag in (3, 4, 5, 7):
        return 8
    if flag == 6:
        return _decimal_bytes(row, at)
    if flag == 20:
        need(at + 4 <= len(row), "short")
        return 4 + 4 * int.from_bytes(row[at : at + 4], "little")
    need(flag == 10 and at < len(row), "flag")
    kind = row[at]
    if kind in (1, 3):
        need(at + 9 <= len(row), "short")
        return 1 + int.from_bytes(row[at + 5 : at + 9], "little")
    if kind in (12, 13):
        size, after = _varint(row, at + (1 if kind == 12 else 2))
        return after + size - at
    fixed = {4: 1, 9: 8, 10: 8, 11: 8, 14: 8, 15: 8, 16: 8, 17: 12}
    need(kind in fixed, "json")
    return 1 + fixed[kind]


def _read_key(layout: RowLayout, key: bytes, specs: Mapping[int, ColumnSpec]) -> dict[int, bytes]:
    need(len(key) > 11 and len(key) != 19 and key[:1] == b"t" and key[9:11] == b"_r", "not a clustered key")
    at, cells = 11, {}
    for id_ in layout.common_handle:
        if at >= len(key) or key[at] == 0:
            break
        flag, at = key[at], at + 1
        need(flag in (1, 3, 4, 5, 6, 7), "flag")
        if flag == 1:
            raw = b""
            while True:
                group, at = key[at : at + 9], at + 9
                need(len(group) == 9 and 0xFF - group[8] <= 8, "group")
                pad = 0xFF - group[8]
                need(group[8 - pad : 8] == bytes(pad), "padding")
                raw += group[: 8 - pad]
                if pad:
                    break
        else:
            size = _decimal_bytes(key, at) if flag == 6 else 8
            raw, at = key[at : at + size], at + size
            need(len(raw) == size, "short")
            if flag in (3, 4, 7):
                raw = (int.from_bytes(raw, "big") ^ (0 if flag == 4 else 2**63)).to_bytes(8, "little")
        cells[id_] = raw
        if id_ in specs:
            need(flag in _accepts(specs[id_]), "datum of another type")
    return cells


def default_of(column: ColumnSpec) -> Any:
    """A column's value in rows without it."""
    value = column.origin_default
    if column.tp == 16 and column.origin_default_bit is not None:
        return int.from_bytes(column.origin_default_bit, "big")
    if value is None:
        if not column.not_null:
            return None
        zero: dict[int, Any] = {4: 0.0, 5: 0.0, 246: Decimal(0), 245: "null", 225: [], 247: 1}
        if column.tp in STRING_TYPES:
            return bytes(column.flen if column.tp == 254 else 0) if column.binary else ""
        return zero.get(column.tp, 0)
    shown = str(value)
    if column.tp in STRING_TYPES:
        pads = column.flen if column.tp == 254 else 0
        return shown.encode().ljust(pads, b"\0") if column.binary else shown
    if column.tp == 246:
        return Decimal(shown)
    if column.tp == 247:
        return column.elems.index(shown) + 1
    if column.tp == 248:
        return sum(1 << column.elems.index(label) for label in shown.split(",") if label)
    if column.tp in TIME_TYPES or column.tp == 11:
        return _clock_default(column, shown)
    return float(shown) if column.tp in (4, 5) else int(shown)


def _clock_default(column: ColumnSpec, shown: str) -> int:
    whole, _, fraction = shown.removeprefix("-").partition(".")
    micros = int(f"{fraction:0<6}")
    numbers = [int(number) for number in whole.replace("-", " ").replace(":", " ").split()]
    if column.tp != 11:
        year, month, day, hour, minute, second = [*numbers, 0, 0, 0][:6]
        return pack_time(year, month, day, hour, minute, second, micros)
    nanos = ((numbers[0] * 60 + numbers[1]) * 60 + numbers[2]) * 1_000_000_000 + micros * 1000
    return -nanos if shown[0] == "-" else nanos


def read_cell(column: ColumnSpec, raw: bytes | None) -> Any:
    """A non-null value in storage form. Raises BrokenRow."""
    assert raw is not None
    tp = column.tp
    if tp in STRING_TYPES:
        return raw if column.binary else replaced(raw)
    if tp == 246:
        return _read_decimal(column, raw)
    if tp in (4, 5):
        need(len(raw) == 8, "float")
        plain = bytes([raw[0] ^ 0x80]) + raw[1:] if raw[0] & 0x80 else bytes(byte ^ 0xFF for byte in raw)
        (value,) = struct.unpack(">d", plain)
        return value
    if tp == 225:
        need(len(raw) >= 4 and len(raw) % 4 == 0, "vector")
        count, *rest = struct.unpack(f"<I{len(raw) // 4 - 1}f", raw)
        need(count == len(rest) <= 16383, "vector")
        return rest
    if tp == 245:
        need(len(raw) >= 2, "json")
        shown, used = json_text(raw[0], raw, 1, len(raw), 0)
        need(used <= len(raw) - 1, "json shares its parts")
        return shown
    need(len(raw) in (1, 2, 4, 8), "width")
    signed = tp == 11 or (tp in INTEGER_TYPES and not column.unsigned)
    value = int.from_bytes(raw, "little", signed=signed)
    need(_in_range(column, value), "range")
    if tp == 10:
        return value >> 41 << 41
    digits = max(column.decimal, 0)
    if tp == 11:
        return int(math.copysign(abs(value) // 10 ** (9 - digits) * 10 ** (9 - digits), value))
    return value - value % 2**24 % 10 ** (6 - digits) if tp in TIME_TYPES else value


def _in_range(column: ColumnSpec, value: int) -> bool:
    tp = column.tp
    if tp in INTEGER_TYPES:
        bits = INTEGER_TYPES[tp]
        return 0 <= value < 1 << bits if column.unsigned else -(1 << (bits - 1)) <= value < 1 << (bits - 1)
    if tp in TIME_TYPES:
        clock = value >> 24 & 0x1FFFF
        proper = clock >> 12 < 24 and (clock >> 6 & 63) < 60 and clock & 63 < 60 and value & 0xFFFFFF < 1_000_000
        return bool(proper and (value >> 46) // 13 <= 9999)
    if tp == 11:
        return abs(value) < 839 * 3600 * 1_000_000_000
    limits: dict[int, int] = {13: 2155, 16: 2**column.flen - 1, 247: len(column.elems), 248: 2 ** len(column.elems) - 1}
    return bool(value <= limits[tp])


def _read_decimal(column: ColumnSpec, raw: bytes) -> Decimal:
    need(len(raw) >= 3 and _decimal_bytes(raw, 0) == len(raw), "decimal")
    digits, fraction, body = raw[0], raw[1], bytearray(raw[2:])
    negative = not body[0] & 0x80
    body[0] ^= 0x80
    if negative:
        body = bytearray(byte ^ 0xFF for byte in body)
    sizes, whole, shown, at = [0, 1, 1, 2, 2, 3, 3, 4, 4, 4], digits - fraction, "", 0
    for count in [whole % 9] + [9] * (whole // 9) + [9] * (fraction // 9) + [fraction % 9]:
        group = int.from_bytes(body[at : at + sizes[count]], "big")
        need(count == 0 or group < 10**count, "digits")
        shown += f"{group:0{count}d}" if count else ""
        at += sizes[count]
    number = Decimal(int(shown or "0")).scaleb(-fraction, EXACT)
    number = number.quantize(Decimal(1).scaleb(-column.decimal), ROUND_HALF_UP, EXACT)
    need(number.scaleb(column.decimal, EXACT) < 10**column.flen, "too many digits")
    return number.copy_negate() if negative and number else number  # a minus sign would round to 28 digits


def replaced(raw: bytes) -> str:
    """UTF-8, with U+FFFD for each byte that is not part of a character."""
    shown = raw.decode("utf-8", "surrogateescape")
    return "".join("\ufffd" if 0xDC80 <= ord(char) <= 0xDCFF else char for char in shown)


def quoted(raw: bytes) -> str:
    """A JSON string as TiDB prints it."""
    out = ""
    for char in raw.decode("utf-8", "surrogateescape"):
        if 0xDC80 <= ord(char) <= 0xDCFF:
            out += "\\ufffd"
        elif char in "\u2028\u2029":
            out += f"\\u{ord(char):04x}"
        elif char < " " or char in '"\\':
            out += json.dumps(char)[1:-1]
        else:
            out += char
    return f'"{out}"'


def float_text(value: float, exponents: bool) -> str:
    """Fewest digits; with an exponent below 1e-15 and from 1e15 on, if wanted."""
    digits = Decimal(repr(value))
    if exponents and value and not 1e-15 <= abs(value) < 1e15:
        sign, parts, exponent = digits.as_tuple()
        shown = "".join(map(str, parts)).rstrip("0")
        power = len(parts) + int(exponent) - 1
        return f"{'-' if sign else ''}{shown[0]}{'.' + shown[1:] if shown[1:] else ''}e{power}"
    plain = f"{digits:f}"
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def json_text(kind: int, raw: bytes, at: int, end: int, depth: int) -> tuple[str, int]:
    """(text, bytes used) of a JSON value of `kind` whose body begins at `at`."""
    if kind in (1, 3):
        need(depth < 1000 and end - at >= 8, "json container")
        count, size = struct.unpack_from("<II", raw, at)
        used = 8 + count * (11 if kind == 1 else 5)
        need(used <= size <= end - at, "json container")
        shown = []
        for index in range(count):
            prefix = ""
            if kind == 1:
                begin, length = struct.unpack_from("<IH", raw, at + 8 + 6 * index)
                need(begin + length <= size, "json key")
                prefix = quoted(raw[at + begin : at + begin + length]) + ": "
                used += length
            entry = at + 8 + (6 * count if kind == 1 else 0) + 5 * index
            if raw[entry] == 4:
                item, more = json_text(4, raw, entry + 1, entry + 2, depth), 0
                shown.append(prefix + item[0])
                continue
            begin = int.from_bytes(raw[entry + 1 : entry + 5], "little")
            need(begin <= size, "json value")
            text, more = json_text(raw[entry], raw, at + begin, at + size, depth + 1)
            shown.append(prefix + text)
            used += more
            need(used <= len(raw), "json shares its parts")
        return ("{%s}" if kind == 1 else "[%s]") % ", ".join(shown), used
    if kind == 4:
        need(at < end and raw[at] < 3, "json literal")
        return ("null", "true", "false")[raw[at]], 1
    if kind in (12, 13):
        need(kind == 12 or at < end, "json opaque")
        size, after = _varint(raw[:end], at + (kind == 13))
        need(size <= end - after, "json string")
        body = raw[after : after + size]
        opaque = f'"base64:type{raw[at]}:{base64.b64encode(body).decode()}"'
        return (quoted(body) if kind == 12 else opaque), after + size - at
    need(kind in (9, 10, 11, 14, 15, 16, 17) and end - at >= (12 if kind == 17 else 8), "json scalar")
    if kind == 11:
        (value,) = struct.unpack_from("<d", raw, at)
        need(math.isfinite(value), "json number")
        shown_float = float_text(value, exponents=True)
        return shown_float if "." in shown_float or "e" in shown_float else shown_float + ".0", 8
    (number,) = struct.unpack_from("<Q" if kind in (10, 14, 15, 16) else "<q", raw, at)
    if kind in (9, 10):
        return str(number), 8
    if kind == 17:
        micros = abs(number) // 1000
        seconds = micros // 10**6
        clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{micros % 10**6:06d}"
        return f'"{"-" if number < 0 else ""}{clock}"', 12
    date = f"{number >> 50:04d}-{number >> 46 & 15:02d}-{number >> 41 & 31:02d}"
    clock = f" {number >> 36 & 31:02d}:{number >> 30 & 63:02d}:{number >> 24 & 63:02d}.{number >> 4 & 0xFFFFF:06d}"
    return f'"{date}{clock if kind != 14 else ""}"', 8
