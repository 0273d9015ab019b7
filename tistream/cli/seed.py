"""`tistream seed`: the rows that a table had at a timestamp, as the upstream stores them, where the log lacks them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from tistream.cli.options import DEFAULT_URL, Cluster, Tenant, Url
from tistream.cli.pull import parse_names
from tistream.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_AT_ONCE = 50_000


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("seed")(seed)


def seed(
    what: Annotated[str, typer.Argument(help="'database.table'.")],
    file: Annotated[Path, typer.Option(help="Parquet, or NDJSON with hexadecimal bytes.", exists=True)],
    ts: Annotated[int, typer.Option(help="The TSO that the rows are of.", min=1)],
    url: Url = DEFAULT_URL,
    cluster: Cluster = 1,
    tenant: Tenant = 1,
) -> None:
    """Add the rows that a table had at a timestamp, for reads as of it and later.

    The file has the columns key and value: record keys and row values as a snapshot read of TiKV gives them, of all
    partitions, in any order; and commit_ts, if it is known. Index entries are left out. Adding the same rows again
    changes nothing.
    """
    from tistream.client import connect
    from tistream.ids import Tenant as TenantId
    from tistream.objectstore.factory import open_store
    from tistream.pusher.control import HttpControl
    from tistream.pusher.seed_push import push_seed

    database, table = parse_names(what)
    if database is None or table is None:
        raise InvalidInput(f"'{what}' names no table: write database.table.")
    with connect(url) as client:
        table_id, physical_ids = _ids(
            client.get(
                f"/v1/clusters/{cluster}/tenants/{tenant}/databases/{quote(database, safe='')}/tables", at_ts=str(ts)
            ),
            table,
            ts,
        )
    rows = read_rows(file, ts)
    check_tables(rows, physical_ids, what)
    control = HttpControl(url, TenantId(cluster, tenant))
    try:
        store = open_store(control.push_bundle().object_store)
        push_seed(control, store, ts, _pieces(rows), table_id=table_id)
    finally:
        control.close()
    print(f"seeded {rows.num_rows:,} rows of {what} as of {ts}", file=sys.stderr)


def read_rows(path: Path, ts: int) -> pa.Table:
    """The records of a file, by key, schema SEED. InvalidInput when the file is not of this form."""
    import polars as pl
    import pyarrow as pa
    import pyarrow.compute as pc

    from tistream.codec.seed_file import SEED
    from tistream.codec.table_key import is_record

    in_parquet = path.suffix == ".parquet"
    try:
        found = pl.read_parquet(path) if in_parquet else pl.read_ndjson(path, infer_schema_length=None)
        named = [pl.col(n) if in_parquet else pl.col(n).str.decode("hex") for n in ("key", "value")]
        times = [
            (pl.col(n) if n in found.columns else pl.lit(ts)).cast(pl.UInt64).alias(n)
            for n in ("start_ts", "commit_ts")
        ]
        rows = found.select(named[0], *times, named[1]).to_arrow().cast(SEED)
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
            f"The service has not come to {ts} yet: its watermark stands at {listed['at_ts']}.",
            resolved_ts=listed["at_ts"],
        )
    items = listed["items"]
    assert isinstance(items, list)
    found = next((item for item in items if item["table"].lower() == table.lower()), None)
    if found is None or found["kind"] != "table":
        raise InvalidInput(f"There was no table {table} at {ts}.", ts=ts)
    return found["table_id"], set(found["partition_ids"] or [found["table_id"]])


def _pieces(rows: pa.Table) -> Iterator[pa.Table]:
    for at in range(0, rows.num_rows, _ROWS_AT_ONCE):
        yield rows.slice(at, _ROWS_AT_ONCE)
