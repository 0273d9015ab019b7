"""`tistream snapshot` and `tistream restore`: tables as of a timestamp, as rows or as files that a server can load; the
keys of a raw or txn tenant as rows.

A file gets its name when it is complete; until then the name ends in `.part`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO
from urllib.parse import quote

import typer

from tistream.cli.filter_options import KeyOptions, Where, chosen_keys
from tistream.cli.options import DEFAULT_URL, Cluster, Tenant, Url
from tistream.cli.pages_out import drop_output
from tistream.cli.pull import parse_names
from tistream.errors import InvalidInput

if TYPE_CHECKING:
    from tistream.client import Tenant as Source

SNAPSHOT_FORMATS = ("ndjson", "csv", "parquet", "arrow", "sql")
KEY_FORMATS = ("ndjson", "arrow")
RESTORE_FORMATS = ("sql", "csv")
_SESSION = "SET NAMES utf8mb4;\nSET time_zone = '+00:00';\n"

AsOf = Annotated[str, typer.Option(help="TSO, RFC 3339 time, latest (default) or a span such as -15m.")]
Timeout = Annotated[float, typer.Option(help="Seconds to wait until the watermark has passed the moment.")]


def snapshot(
    *,
    what: Annotated[str | None, typer.Argument(help="'database.table'; nothing with --keys.")] = None,
    as_of: AsOf = "latest",
    format: Annotated[str, typer.Option(help="ndjson, csv, parquet, arrow, sql; of keys ndjson, arrow.")] = "ndjson",
    columns: Annotated[str | None, typer.Option(help="Names separated by commas instead of all columns.")] = None,
    where: Where = None,
    of_keys: KeyOptions,
    history: Annotated[str | None, typer.Option(help="All versions of this key up to --as-of instead.")] = None,
    allow_state: Annotated[
        bool, typer.Option("--allow-state", help="Show the newest known versions where the log may lack some.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file instead of standard output.")] = None,
    url: Url = DEFAULT_URL,
    cluster: Cluster = 1,
    tenant: Tenant = 1,
    timeout: Timeout = 0,
) -> None:
    """Read a table, or the keys of a raw or txn tenant, as of a timestamp, from the log alone."""
    from tistream.client import connect

    others = {"table": what, "columns": columns, "where": where}
    chosen = chosen_keys(of_keys, others=others, keys=allow_state, history=history)
    _check_format(format, SNAPSHOT_FORMATS if chosen is None else KEY_FORMATS)
    with connect(url) as client:
        source = client.tenant(cluster, tenant)
        if chosen is not None:
            rows = _entries(source, chosen, as_of, format, allow_state=allow_state, wait_s=timeout)
        elif what is None:
            raise InvalidInput("Say what to read: 'database.table', or --keys.")
        else:
            table = source.table(what)
            rows = table.rows(as_of=as_of, columns=columns, where=where, wait_s=timeout).pieces(format)
        if output is not None:
            _write(output, rows)
            return
        try:
            for part in rows:
                sys.stdout.buffer.write(part)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            drop_output()


def _entries(
    source: Source, chosen: Mapping[str, str], as_of: str, format: str, *, allow_state: bool, wait_s: float
) -> Iterator[bytes]:
    """Keys and values in pieces."""
    from tistream.codec.key_format import KeyFormat, parse

    _check_format(chosen["key_format"], [*KeyFormat])
    form = KeyFormat(chosen["key_format"])
    start, end, prefix, key = (
        parse(chosen[name], form, parameter=name) if name in chosen else None
        for name in ("start_key", "end_key", "prefix", "history")
    )
    keys = source.keys(start=start, end=end, prefix=prefix)
    if key is None:
        entries = keys.rows(as_of=as_of, allow_state=allow_state, wait_s=wait_s)
    else:
        entries = keys.history(key, end=as_of)
    if format == "arrow":
        import pyarrow as pa

        table, sink = entries.to_arrow(), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        yield sink.getvalue().to_pybytes()
        return
    yield from entries.pieces(format, {"key_format": form})


def restore(
    what: Annotated[str, typer.Argument(help="'database' or 'database.table'.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the files; created if it is missing.")],
    as_of: AsOf = "latest",
    format: Annotated[str, typer.Option(help="Of the rows: sql (INSERT statements) or csv.")] = "sql",
    dialect: Annotated[str, typer.Option(help="The server to load into: mysql, mariadb or tidb.")] = "mysql",
    url: Url = DEFAULT_URL,
    cluster: Cluster = 1,
    tenant: Tenant = 1,
) -> None:
    """Write the files from which a MySQL-compatible server loads tables as of a timestamp.

    The files are named as dumpling names them: DB-schema-create.sql, DB.TABLE-schema.sql, DB.TABLE.000000000.sql. Load
    them in this order. All tables are of one timestamp. With CSV, DB.TABLE.000000000.sql is the LOAD DATA statement
    for the .csv beside it, for a client that runs in the folder.
    """
    from tistream.cli.progress import Progress
    from tistream.client import connect

    database, table = parse_names(what)
    if database is None:
        raise InvalidInput("Say what to restore: 'database' or 'database.table'.")
    _check_format(format, RESTORE_FORMATS)
    output.mkdir(parents=True, exist_ok=True)
    notes: list[str] = []
    with connect(url) as client, Progress("restored", sys.stderr) as progress:
        source = client.tenant(cluster, tenant)
        ts, names = _tables(source, database, table, as_of)
        for n, name in enumerate(names):
            progress.update(n, len(names), f"tables; now {name}")
            read = source.table(name, database=database)
            made = read.definition(as_of=ts, dialect=dialect)
            stem = f"{file_name(made['database'])}.{file_name(made['table'])}"
            create = [made["create_database"] + ";\n"]
            _write(output / f"{file_name(made['database'])}-schema-create.sql", (text.encode() for text in create))
            _write(output / f"{stem}-schema.sql", [_schema_text(made).encode()])
            _write(output / f"{stem}.000000000.{format}", read.rows(as_of=ts).pieces(format))
            if format == "csv":
                _write(
                    output / f"{stem}.000000000.sql", [load_text(f"{stem}.000000000.csv", made["load_csv"]).encode()]
                )
            notes += [f"{made['database']}.{made['table']}: not restored as it was: {note}" for note in made["notes"]]
        progress.update(len(names), len(names), "tables")
    print(*notes, sep="\n", end="\n" if notes else "", file=sys.stderr)
    print(f"restored {len(names)} tables as of {ts} into {output}", file=sys.stderr)


def file_name(name: str) -> str:
    """A name as a part of a file's name: letters of any script stay; dots and separators of paths are escaped."""
    safe = "".join(c if c.isalnum() or c in "_- $" else quote(c, safe="") for c in name)
    return safe.replace(".", "%2E")


def load_text(name: str, statement: str) -> str:
    """The statements that load the CSV file of this name; LOCAL makes the client send it."""
    settings = (
        _SESSION
        + "SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES';\n"  # an ENUM may hold its error value
        + "SET foreign_key_checks = 0;\n"
    )
    return f"{settings}LOAD DATA LOCAL INFILE '{name}' {statement};\nSHOW WARNINGS;\n"


def _schema_text(made: dict[str, object]) -> str:
    notes = made["notes"]
    assert isinstance(notes, list)
    said = "".join("-- not as it was: " + str(note).replace("\n", " ") + "\n" for note in notes)
    settings = _SESSION + "SET sql_mode = 'STRICT_ALL_TABLES,ALLOW_INVALID_DATES';\n"
    return f"{said}{settings}{made['create_table']};\n"


def _tables(source: Source, database: str, table: str | None, as_of: str) -> tuple[str, list[str]]:
    """(the timestamp, names of the tables), so that all tables are read as of the same timestamp."""

    def listed(at: str) -> list[str]:
        return [item["table"] for item in source.tables(database, as_of=at) if item["kind"] == "table"]

    names = [table] if table is not None else listed(as_of)
    if not names:
        return as_of, []
    ts = str(source.table(names[0], database=database).definition(as_of=as_of)["as_of"])
    return ts, names if table is not None else listed(ts)


def _check_format(word: str, known: Iterable[str]) -> None:
    if word not in known:
        raise InvalidInput(f"There is no format '{word}' here: give {', '.join(known)}.")


def _write(path: Path, parts: Iterable[bytes]) -> None:
    with _whole(path) as file:
        for part in parts:
            file.write(part)


@contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    """A file that gets its name when the block succeeds."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        yield file
    part.replace(path)
