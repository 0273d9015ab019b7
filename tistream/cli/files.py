"""`tistream inspect file`: what is inside a segment file, without a service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit, urlunsplit

import typer

from tistream.errors import CorruptObject, InvalidInput, NotFound, ObjectNotFound

commands = typer.Typer(help="Look inside files.", no_args_is_help=True)
_ROWS_SHOWN = 5


@commands.command("file")
def inspect_file(
    path: Annotated[str, typer.Argument(help="A segment file, or an object as file:// or s3:// URL.")],
    rows: Annotated[int, typer.Option(help="Rows of each segment to show.")] = _ROWS_SHOWN,
) -> None:
    """Head, segments, timestamps and checksums of a batch file, committed file or snapshot."""
    from rich.console import Console
    from rich.table import Table

    from tistream import ts as tso
    from tistream.codec.segment_file import SegmentFile

    data = _read(path)
    file = SegmentFile.open(path, data)
    console = Console()
    console.print(f"[bold]{path}[/]  {len(data):,} bytes, {len(file.segments)} segments")
    console.print_json(json.dumps(file.head))
    table = Table()
    for column in ("#", "kind", "task", "tables", "rows", "bytes", "commit ts", "key range", "crc32c"):
        table.add_column(column)
    bad = False
    for s in file.segments:
        try:
            file.read(s.number)
            verdict = f"[green]{s.crc:08x} ok[/]"
        except CorruptObject as e:
            verdict, bad = f"[red]{e.message}[/]", True
        span = f"{tso.to_text(s.lo_ts)} .. {tso.to_text(s.hi_ts)}" if s.hi_ts else "-"
        keys = f"{s.start_key.hex()[:20]} .. {s.end_key.hex()[:20]}" if s.end_key else "-"
        tables = "-" if not s.table_hi else f"{s.table_lo}..{s.table_hi}"
        table.add_row(
            str(s.number), s.kind, str(s.task_id), tables, f"{s.rows:,}", f"{s.length:,}", span, keys, verdict
        )
    console.print(table)
    for s in file.segments:
        if not bad and s.rows and rows:
            console.print(f"[bold]segment {s.number}[/], first {min(rows, s.rows)} rows")
            for row in file.read(s.number).slice(0, rows).to_pylist():
                console.print({k: v.hex() if isinstance(v, bytes) else v for k, v in row.items()}, highlight=False)
    if bad:
        raise CorruptObject("The file is damaged.", object=path)


def _read(path: str) -> bytes:
    if "://" not in path:
        try:
            return Path(path).read_bytes()
        except FileNotFoundError as e:
            raise NotFound(f"There is no file {path}.") from e
        except OSError as e:
            raise InvalidInput(f"Cannot read {path}: {e.strerror}.") from e
    from tistream.objectstore.factory import open_store

    folder, name = split_url(path)
    try:
        return open_store(folder).get(name)
    except ObjectNotFound as e:
        raise NotFound(f"There is no object {path}.") from e


def split_url(url: str) -> tuple[str, str]:
    """(address of the folder, name in it) of an object's URL; the query belongs to the address."""
    parts = urlsplit(url)
    folder, _, name = parts.path.rpartition("/")
    if not name or (parts.scheme == "s3" and not parts.netloc):
        raise InvalidInput(f"{url} names no object.")
    return urlunsplit(parts._replace(path=folder)), unquote(name)
