"""What `tistream pull` writes: rows for people on a terminal, text page by page, Arrow as one stream with one schema.

Pages of text follow each other as they come. An Arrow page is a stream of its own, and readers of a file with several
end at the first. So the pages of a finite pull are kept in a temporary file until the last has come; then their joined
schema is known, and all rows are written in it. A pull that follows has no last page: it writes rows as they come, in
the schema of the first page, and refuses the first rows that have another.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from tistream import ts as tso
from tistream.cli.readable import readable, table_of, time_of
from tistream.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

    from tistream.client.core.requests import Page

ARROW = ("arrow", "raw-arrow")


class Output(Protocol):
    """Takes the pages of a pull."""

    def write(self, page: Page) -> int:
        """Take a page; the number of its rows."""

    def close(self) -> None:
        """Complete what is written."""


def output_of(format: str | None, out: BinaryIO, *, follow: bool) -> Output:
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
                "rows before are complete: go on at the last cursor, into another file."
            )
        if rows.num_rows:
            self._made.write_table(rows)
        self._out.flush()
        return int(rows.num_rows)

    def close(self) -> None:
        if self._made is not None:
            self._made.close()
            self._out.flush()
