"""A change as a line for people: what `tistream pull` writes on a terminal.

    14:05:31.123  shop.orders  update  id=17  state: paid -> shipped
    14:05:31.123  put     user:1 = Ada  expires 2026-11-22T06:00:00Z

A line of NDJSON has a row's key as stored, not the names of its columns. They are found by value: the stored key's
integers and texts in the row's columns. Where one is not found (a table without a clustered key, text that does not
sort by its bytes), all columns are shown. Control characters of values never reach the terminal.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import orjson

from tistream import ts as tso
from tistream.codec.memcomparable import decode_bytes, decode_int, decode_uint
from tistream.errors import DecodeError

_VALUE_MAX = 48  # characters of a value when several share the line
_TABLE_MAX = 32
_PLAIN = re.compile(r"[^\s\"]+( [^\s\"]+)*")
_HANDLE_AT = 11  # after 't', the table's id and '_r'
_BYTES, _INT, _UINT = 1, 3, 4  # kinds of datums in keys

Columns = dict[str, Any]


def readable(change: Columns, *, width: int, table_width: int = 0) -> str:
    """The text of a change of an NDJSON answer, at most `width` cells; names of tables are filled to `table_width`."""
    if "op" in change:
        return shortened(_entry(change), width)
    kind = change["type"]
    said = "  ".join(_row(change)) if kind != "ddl" else _clean(change["query"])
    text = f"{change['commit_time'][11:23]}  {table_of(change):<{table_width}}  {kind:<6}  {said}"
    return shortened(text.rstrip(), width)


def time_of(change: Columns) -> str:
    """When the change was committed, or the key was written: RFC 3339 in UTC."""
    return str(change["commit_time"]) if "commit_time" in change else tso.to_text(int(change["ts"]))


def _entry(change: Columns) -> str:
    """A write of a key."""
    value = "" if change["value"] is None else f" = {_value(change['value'])}"
    text = f"{time_of(change)[11:23]}  {change['op']:<6}  {_value(change['key'])}{value}"
    if change["expire_ts"] is not None:
        text += f"  expires {_seconds_text(change['expire_ts'])}"
    return text if "scanned_from_ts" not in change else f"{text}  (from a scan)"


def _seconds_text(unix_s: int) -> str:
    try:
        return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"at {unix_s}"


def table_of(change: Columns) -> str:
    """The table that a change is of."""
    names = (_clean(change[part]) for part in ("database", "table") if change.get(part))
    return shortened(".".join(names), _TABLE_MAX)


def shortened(text: str, width: int) -> str:
    """The text, cut to `width` cells of a terminal; an ellipsis marks the cut."""
    if 2 * len(text) <= width:
        return text
    from rich.cells import cell_len, set_cell_size

    begin = text[: 4 * width]  # enough, and far less work than all of a long text
    if begin == text and cell_len(text) <= width:
        return text
    return set_cell_size(begin, max(0, width - 1)).rstrip() + "…"


def _row(change: Columns) -> Iterator[str]:
    new: Columns | None = change["columns"]
    old: Columns | None = change["old"]
    row = new if new is not None else old or {}
    key = _key_columns(bytes.fromhex(change["key"]), row)
    for name in key:
        yield f"{_clean(name)}={_value(row[name])}"
    for name, value in row.items():
        if new is not None and old is not None and old.get(name) != value:
            yield f"{_clean(name)}: {_value(old.get(name))} -> {_value(value)}"
        elif name not in key and (not key or old is None):
            yield f"{_clean(name)}={_value(value)}"


def _key_columns(key: bytes, row: Columns) -> list[str]:
    """The columns that the stored key is made of; none if one of its values is in no column."""
    found: list[str] = []
    for texts in _key_values(key[_HANDLE_AT:]):
        names = [
            name for name, value in row.items() if name not in found and value is not None and _text(value) in texts
        ]
        if not names:
            return []
        found.append(names[0])
    return found


def _key_values(handle: bytes) -> list[tuple[str, ...]]:
    """For each value of the key the texts that it may be in a column; nothing fits a kind that is not read here."""
    try:
        if len(handle) == 8:
            return [(str(decode_int(handle)[0]), str(decode_int(handle)[0] % (1 << 64)))]
        values: list[tuple[str, ...]] = []
        at = 0
        while at < len(handle):
            if handle[at] == _BYTES:
                data, at = decode_bytes(handle, at + 1)
                values.append((data.decode("utf-8", "replace"), base64.b64encode(data).decode()))
            elif handle[at] in (_INT, _UINT):
                value, at = (decode_int if handle[at] == _INT else decode_uint)(handle, at + 1)
                values.append((str(value),))
            else:
                return [()]
    except DecodeError:
        return [()]
    return values


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _value(value: Any) -> str:
    """A value, in quotes where it could be read as something else."""
    if value is None:
        return "NULL"
    text = _text(value)
    plain = text.isprintable() and _PLAIN.fullmatch(text) and text != "NULL" and " -> " not in text
    if isinstance(value, str) and not plain:
        text = orjson.dumps(value).decode()
    return shortened(_clean(text), _VALUE_MAX)


def _clean(text: str) -> str:
    """The text without characters that steer a terminal: they are written as escapes."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
