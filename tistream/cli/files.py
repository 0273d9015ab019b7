"""`tistream inspect file` and `tistream audit`: what is in a file of a bucket, and what differs from its catalog."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote, urlsplit, urlunsplit

import typer

from tistream.admin.core.units import bytes_text
from tistream.cli.options import DeploymentOptions
from tistream.cli.output import Column, OutputForm, OutputOption, console, show_data, show_facts, show_rows
from tistream.errors import CorruptObject, InvalidInput, NotFound, ObjectNotFound

if TYPE_CHECKING:
    from tistream.codec.segment_file import SegmentFile, SegmentInfo

commands = typer.Typer(help="Look inside the files of a bucket.", no_args_is_help=True)
_ROWS_SHOWN = 5


@commands.command("file")
def inspect_file(
    path: Annotated[str, typer.Argument(help="A segment file, or an object as file:// or s3:// URL.")],
    rows: Annotated[int, typer.Option(help="Rows of each segment to show.")] = _ROWS_SHOWN,
    output: OutputOption = OutputForm.TABLE,
) -> None:
    """Show head, segments, timestamps and checksums of a batch file, committed file or snapshot."""
    from tistream.codec.segment_file import SegmentFile

    data = _read(path)
    file = SegmentFile.open(path, data)
    bad: dict[int, str] = {}
    for s in file.segments:
        try:
            file.read(s.number)
        except CorruptObject as e:
            bad[s.number] = e.message
    first = {
        s.number: [_plain(row) for row in file.read(s.number).slice(0, rows).to_pylist()]
        for s in file.segments
        if not bad and s.rows and rows
    }
    if output is OutputForm.TABLE:
        from rich.markup import escape

        out = console()
        out.print(f"[bold]{escape(path)}[/]  {len(data):,} bytes, {len(file.segments)} segments")
        show_facts(file.head, output)
        _show_segments(file, bad)
        for number, some in first.items():
            out.print(f"[bold]segment {number}[/], first {len(some)} rows")
            show_rows(some, output, list(some[0]))
    else:
        segments = [_segment_fact(s, bad.get(s.number), first.get(s.number, [])) for s in file.segments]
        show_data({"object": path, "bytes": len(data), "head": file.head, "segments": segments}, output)
    if bad:
        raise CorruptObject("The file is damaged.", object=path)


def _show_segments(file: SegmentFile, bad: Mapping[int, str]) -> None:
    from rich.text import Text

    from tistream import ts as tso

    columns: list[Column] = [
        ("#", lambda s: s.number),
        ("kind", lambda s: s.kind),
        ("task", lambda s: s.task_id),
        ("tables", lambda s: f"{s.table_lo}..{s.table_hi}" if s.table_hi else "-"),
        ("rows", lambda s: f"{s.rows:,}"),
        ("bytes", lambda s: f"{s.length:,}"),
        ("commit ts", lambda s: f"{tso.to_text(s.lo_ts)} .. {tso.to_text(s.hi_ts)}" if s.hi_ts else "-"),
        ("key range", lambda s: f"{s.start_key.hex()[:20]} .. {s.end_key.hex()[:20]}" if s.end_key else "-"),
        ("crc32c", lambda s: Text(bad[s.number], "red") if s.number in bad else Text(f"{s.crc:08x} ok", "green")),
    ]
    show_rows(list(file.segments), OutputForm.TABLE, columns)


def _segment_fact(s: SegmentInfo, fault: str | None, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A segment as data."""
    return {
        "number": s.number,
        "kind": s.kind,
        "task_id": s.task_id,
        "tables": [s.table_lo, s.table_hi] if s.table_hi else None,
        "rows": s.rows,
        "bytes": s.length,
        "lo_ts": str(s.lo_ts) if s.hi_ts else None,
        "hi_ts": str(s.hi_ts) if s.hi_ts else None,
        "start_key": s.start_key.hex(),
        "end_key": s.end_key.hex(),
        "crc32c": f"{s.crc:08x}",
        "fault": fault,
        "first_rows": rows,
    }


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row with bytes in hexadecimal, and timestamps as text."""
    return {
        name: value.hex() if isinstance(value, bytes) else str(value) if name.endswith("_ts") else value
        for name, value in row.items()
    }


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


def audit(
    where: DeploymentOptions,
    grace_s: Annotated[int, typer.Option(min=0, help="Younger objects without a row are no orphans.")] = 3600,
    output: OutputOption = OutputForm.TABLE,
) -> None:
    """Compare the objects in the bucket with those that the catalog names.

    Objects that are missing or have another size are faults: exit status 1. How many have no row is only counted: the
    collector removes those. The command reads only, and may run beside the service."""
    from metaserver.audit import audit as run
    from tistream.cli.assembly import opened

    audits = []
    with opened(where.settings(), None) as parts:
        for result in run(parts.catalog, parts.store, parts.clock, grace_ms=grace_s * 1000):
            wrong = [{"object": f.object_key, "bytes": f.bytes, "found_bytes": f.found_bytes} for f in result.faults]
            audits.append({**asdict(result), "tenant": str(result.tenant), "faults": wrong})
    columns: list[Column] = [
        *("tenant", "objects"),
        ("size", lambda a: bytes_text(a["bytes"])),
        "orphans",
        ("of orphans", lambda a: bytes_text(a["orphan_bytes"])),
        ("faults", lambda a: len(a["faults"])),
    ]
    show_rows(audits, output, columns, empty="no tenant is registered")
    faults = [fault for each in audits for fault in each["faults"]]
    if output is OutputForm.TABLE:
        for fault in faults:
            found_size = "is missing" if fault["found_bytes"] is None else f"has {fault['found_bytes']} bytes"
            print(f"{fault['object']}: {found_size}, not {fault['bytes']}")
    if faults:
        print(f"tistream: {len(faults)} objects differ from the catalog", file=sys.stderr)
        raise typer.Exit(1)
