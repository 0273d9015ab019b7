"""`tistream seed`: adds the rows that a table had at a timestamp, decoded or as the upstream stores them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tistream.cli.options import DEFAULT_URL, Cluster, Tenant, Url
from tistream.cli.pull import parse_names
from tistream.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

    from schemas.shape import Shape
    from tistream.cli.progress import Progress

_ROWS_AT_ONCE = 50_000


def seed(
    what: Annotated[str, typer.Argument(help="'database.table'.")],
    file: Annotated[Path, typer.Option(help="Parquet or NDJSON.", exists=True)],
    ts: Annotated[int, typer.Option(help="The TSO of the rows.", min=1)],
    url: Url = DEFAULT_URL,
    cluster: Cluster = 1,
    tenant: Tenant = 1,
) -> None:
    """Add the rows that a table had at a timestamp, for reads as of it and later.

    The file has the table's columns, as written by `tistream snapshot`, in any order; and _tidb_rowid or _tistream_key
    (record keys) when the columns do not determine the key. Or it has only the columns key and value: record keys and
    row values of a snapshot read of TiKV, of all partitions, bytes in hexadecimal in NDJSON; and commit_ts, if it is
    known. Index entries are left out. Adding the same rows again changes nothing.
    """
    from pusher.control import HttpControl
    from pusher.seed_push import push_seed
    from pusher.tenant_store import opening
    from schemas.shape import of_json
    from tistream.cli.progress import Progress
    from tistream.client import connect
    from tistream.ids import Tenant as TenantId
    from tistream.ids import name_in_path

    database, table = parse_names(what)
    if database is None or table is None:
        raise InvalidInput(f"'{what}' names no table: write database.table.")
    with connect(url) as client:
        tables = f"/v1/clusters/{cluster}/tenants/{tenant}/databases/{name_in_path(database)}/tables"
        table_id, physical_ids = _ids(client.get(tables, start_ts=str(ts)), table, ts)
        made = client.tenant(cluster, tenant).table(what).definition(as_of=ts)
    rows = read_rows(file, ts) if is_raw(file) else read_decoded(file, ts, of_json(made["shape"]))
    check_tables(rows, physical_ids, what)
    control = HttpControl(url, TenantId(cluster, tenant))
    try:
        store = opening(control)(control.push_bundle().object_store)
        with Progress("seeded", sys.stderr) as progress:
            push_seed(control, store, ts, _pieces(rows, progress), table_id=table_id)
    finally:
        control.close()
    print(f"seeded {rows.num_rows:,} rows of {what} as of {ts}", file=sys.stderr)


def is_raw(path: Path) -> bool:
    """Whether the file holds TiKV's rows: columns key and value, and at most their timestamps."""
    import orjson
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if path.suffix == ".parquet":
            names = set(pq.read_schema(path).names)
        else:
            with path.open("rb") as lines:
                first = orjson.loads(next((line for line in lines if line.strip()), b"{}"))
            names = set(first) if isinstance(first, dict) else set()
    except (pa.ArrowInvalid, ValueError) as e:
        raise InvalidInput(f"{path} cannot be read: {e}", file=str(path)) from e
    return {"key", "value"} <= names <= {"key", "value", "start_ts", "commit_ts"}


def read_decoded(path: Path, ts: int, shape: Shape) -> pa.Table:
    """The rows of a file that has the table's columns, by key, schema SEED. NDJSON lines are flat objects, or those of
    `tistream snapshot`. InvalidInput names file, row and column."""
    import orjson
    import pyarrow as pa
    import pyarrow.parquet as pq

    from pusher.core.seed_rows import encoded

    if path.suffix == ".parquet":
        try:
            rows = pq.read_table(path)
            columns = {name: _plain(rows[name]).to_pylist() for name in rows.column_names}
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
            raise InvalidInput(f"{path} cannot be read: {e}", file=str(path)) from e
        return encoded(shape, columns, ts, file=str(path), in_text=False)
    columns = {column.name: [] for column in shape.columns}
    with path.open("rb") as lines:
        for n, line in enumerate(lines):
            try:
                row = orjson.loads(line)
            except ValueError as e:
                raise InvalidInput(f"{path}, row {n + 1}: {e}.", file=str(path), row=n + 1) from e
            row = row["columns"] if isinstance(row, dict) and isinstance(row.get("columns"), dict) else row
            if not isinstance(row, dict) or (n and set(row) != set(columns)):
                raise InvalidInput(f"{path}, row {n + 1} has other columns than row 1.", file=str(path), row=n + 1)
            if n == 0:
                columns = {name: [] for name in row}
            for name, value in row.items():
                columns[name].append(value)
    return encoded(shape, columns, ts, file=str(path), in_text=True)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Timestamps of any unit in microseconds; what does not fit is refused."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", column.type.tz))
    return column.cast(pa.duration("us")) if pa.types.is_duration(column.type) else column


def read_rows(path: Path, ts: int) -> pa.Table:
    """The records of a file, by key, schema SEED. InvalidInput when the file is not of this form."""
    import polars as pl
    import pyarrow as pa
    import pyarrow.compute as pc

    from tistream.codec.seed_file import SEED
    from tistream.codec.table_key import is_record

    in_parquet = path.suffix == ".parquet"
    try:
        frame = pl.read_parquet(path) if in_parquet else pl.read_ndjson(path, infer_schema_length=None)
        named = [pl.col(n) if in_parquet else pl.col(n).str.decode("hex") for n in ("key", "value")]
        times = [
            (pl.col(n) if n in frame.columns else pl.lit(ts)).cast(pl.UInt64).alias(n)
            for n in ("start_ts", "commit_ts")
        ]
        rows = frame.select(named[0], *times, named[1]).to_arrow().cast(SEED)
    except (pl.exceptions.PolarsError, pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as e:
        raise InvalidInput(f"{path} does not hold columns key and value: {e}", file=str(path)) from e
    rows = rows.filter(pa.array(is_record(rows["key"])))
    return rows.take(pc.sort_indices(rows, sort_keys=[("key", "ascending")])).combine_chunks()


def check_tables(rows: pa.Table, physical_ids: set[int], what: str) -> None:
    """InvalidInput unless all rows belong to the table."""
    import numpy as np

    from tistream.codec.table_key import table_ids

    foreign = set(np.unique(table_ids(rows["key"])).tolist()) - physical_ids
    if foreign:
        raise InvalidInput(
            f"The file holds rows of other tables than {what}.",
            found=sorted(foreign)[:5],
            wanted=sorted(physical_ids)[:5],
        )


def _ids(listed: dict[str, object], table: str, ts: int) -> tuple[int, set[int]]:
    """(id, physical ids) of the table at `ts`."""
    if int(str(listed["at_ts"])) != ts:
        raise InvalidInput(
            f"The service has not reached {ts} yet: its watermark is {listed['at_ts']}.", resolved_ts=listed["at_ts"]
        )
    items = listed["items"]
    assert isinstance(items, list)
    table_ids = next((item for item in items if item["table"].lower() == table.lower()), None)
    if table_ids is None or table_ids["kind"] != "table":
        raise InvalidInput(f"There was no table {table} at {ts}.", ts=ts)
    return table_ids["table_id"], set(table_ids["partition_ids"] or [table_ids["table_id"]])


def _pieces(rows: pa.Table, progress: Progress) -> Iterator[pa.Table]:
    for at in range(0, rows.num_rows, _ROWS_AT_ONCE):
        yield rows.slice(at, _ROWS_AT_ONCE)
        progress.update(min(at + _ROWS_AT_ONCE, rows.num_rows), rows.num_rows, "rows")
