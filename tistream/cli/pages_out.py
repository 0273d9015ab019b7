"""What `tistream pull` writes: rows for people on a terminal, text page by page, Arrow as one stream with one schema.

Pages of text follow each other as they come. An Arrow page is a stream of its own, and readers of a file with several
end at the first. So the pages of a finite pull are kept in a temporary file until the last has come; then their joined
schema is known, and all rows are written in it. A pull that follows has no last page: it writes rows as they come, in
the schema of the first page, and refuses the first rows that have another.

A change as a line for people:

    14:05:31.123  shop.orders  update  id=17  state: paid -> shipped
    14:05:31.123  put     user:1 = Ada  expires 2026-11-22T06:00:00Z

A line of NDJSON has a row's key as stored, not the names of its columns. They are found by value: the stored key's
integers and texts in the row's columns. Where one is not found (a table without a clustered key, text that does not
sort by its bytes), all columns are shown. Control characters of values never reach the terminal.
"""

from __future__ import annotations

import base64
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import orjson

from tistream import ts as tso
from tistream.cli.terminal import clean
from tistream.codec.memcomparable import decode_bytes, decode_int, decode_uint
from tistream.errors import DecodeError, InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

    from tistream.client.core.requests import Page

ARROW = ("arrow", "raw-arrow")


class PageOutput(Protocol):
    """Takes the pages of a pull."""

    def write(self, page: Page) -> int:
        """Take a page; the number of its rows."""

    def close(self) -> None:
        """Complete what is written."""


def output_of(format: str | None, out: BinaryIO, *, follow: bool) -> PageOutput:
    """The output for a format. None: NDJSON, made readable if `out` is a terminal."""
    if format is None and out.isatty():
        return _Readable(out, says_end=not follow)
    if format not in ARROW:
        return _Text(out)
    return _Growing(out) if follow else _Joined(out)


def drop_output() -> None:
    """The reader of standard output is gone: nothing more is written there, not even what is buffered, at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Text:
    """Pages one after the other."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def write(self, page: Page) -> int:
        self._out.write(page.content)
        self._out.flush()
        return page.content.count(b"\n")

    def close(self) -> None:
        """Nothing is left to write."""


class _Readable:
    """A line for each change, and one for each new day. `says_end`: at last how far the changes go."""

    def __init__(self, out: BinaryIO, *, says_end: bool) -> None:
        self._out = out
        self._says_end = says_end
        self._end_ts = 0
        self._day = ""
        self._table_width = 0

    def write(self, page: Page) -> int:
        changes = page.changes()
        self._table_width = max([self._table_width, *(len(table_of(change)) for change in changes)])
        self._put(text for change in changes for text in self._texts(change, get_terminal_size().columns))
        self._end_ts = 0 if page.has_more else min(page.resolved_ts, page.end_ts or page.resolved_ts)
        return len(changes)

    def _texts(self, change: dict[str, Any], width: int) -> Iterator[str]:
        day = time_of(change)[:10]
        if day != self._day:
            self._day = day
            yield f"{day} (UTC)"
        yield readable(change, width=width, table_width=self._table_width)

    def _put(self, lines: Iterable[str]) -> None:
        self._out.write("".join(f"{line}\n" for line in lines).encode())
        self._out.flush()

    def close(self) -> None:
        if self._says_end and self._end_ts:
            self._put([f"complete up to {tso.to_text(self._end_ts)}"])


class _Joined:
    """Arrow pages with one schema, written when the last page has come."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._kept = tempfile.TemporaryFile(prefix="tistream-pull-")  # noqa: SIM115 (`close` closes it)
        self._sizes: list[int] = []
        self._schemas: list[pa.Schema] = []

    def write(self, page: Page) -> int:
        rows = page.arrow()
        self._schemas.append(rows.schema)
        self._sizes.append(self._kept.write(page.content))
        return int(rows.num_rows)

    def close(self) -> None:
        import pyarrow as pa

        from tistream.client.frames import Union, bare

        with self._kept:
            if not self._sizes:
                return
            union = Union(self._schemas)
            with pa.ipc.new_stream(self._out, bare(union.schema.empty_table()).schema) as made:
                for table in self._tables():
                    made.write_table(bare(union.conform(table)))
            self._out.flush()

    def _tables(self) -> Iterator[pa.Table]:
        import pyarrow as pa

        self._kept.seek(0)
        for size in self._sizes:
            yield pa.ipc.open_stream(self._kept.read(size)).read_all()


class _Growing:
    """Arrow rows as they come."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._made: pa.ipc.RecordBatchStreamWriter | None = None
        self._schema: pa.Schema | None = None

    def write(self, page: Page) -> int:
        import pyarrow as pa

        from tistream.client.frames import bare

        rows = bare(page.arrow())
        if self._made is None:
            self._schema = rows.schema
            self._made = pa.ipc.new_stream(self._out, rows.schema)
        elif rows.num_rows and not rows.schema.equals(self._schema):
            raise InvalidInput(
                f"The columns have changed at or below {page.resolved_ts}, and an Arrow stream has one schema. The "
                "rows before are complete: continue at the last cursor, into another file."
            )
        if rows.num_rows:
            self._made.write_table(rows)
        self._out.flush()
        return int(rows.num_rows)

    def close(self) -> None:
        if self._made is not None:
            self._made.close()
            self._out.flush()


_VALUE_MAX = 48  # characters of a value when several share the line
_TABLE_MAX = 32
_JSON_MAX = 100_000
_PLAIN = re.compile(r"[^\s\"]+( [^\s\"]+)*")
_HANDLE_AT = 11  # after 't', the table's id and '_r'
_BYTES, _INT, _UINT = 1, 3, 4  # kinds of datums in keys

Columns = dict[str, Any]


def readable(change: Columns, *, width: int, table_width: int = 0) -> str:
    """The text of a change of an NDJSON answer, at most `width` cells; names of tables are filled to `table_width`."""
    if "op" in change:
        return shortened(_entry(change), width)
    kind = change["type"]
    said = "  ".join(_row(change)) if kind != "ddl" else clean(change["query"])
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
    names = (clean(change[part]) for part in ("database", "table") if change.get(part))
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
        yield f"{clean(name)}={_value(row[name])}"
    for name, value in row.items():
        if new is not None and old is not None and old.get(name) != value:
            yield f"{clean(name)}: {_value(old.get(name))} -> {_value(value)}"
        elif name not in key and (not key or old is None):
            yield f"{clean(name)}={_value(value)}"


def _key_columns(key: bytes, row: Columns) -> list[str]:
    """The columns that the stored key is made of; none if one of its values is in no column."""
    key_columns: list[str] = []
    for texts in _key_values(key[_HANDLE_AT:]):
        names = [
            name
            for name, value in row.items()
            if name not in key_columns and value is not None and _text(value) in texts
        ]
        if not names:
            return []
        key_columns.append(names[0])
    return key_columns


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
    if isinstance(value, str) and not plain and not _is_json(text):
        text = orjson.dumps(value).decode()
    return shortened(clean(text), _VALUE_MAX)


def _is_json(text: str) -> bool:
    """Whether it is an object or a list of JSON, as which it can be read without quotes."""
    if not (text.startswith(("{", "[")) and text.isprintable() and len(text) <= _JSON_MAX):
        return False
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True
