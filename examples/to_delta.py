"""Keep a Delta table equal to a table: `python examples/to_delta.py DATABASE TABLE FOLDER`, as often as you like.

Needs the extra `lake`. Each commit of the Delta table holds one page and, as an application transaction,
the page's commit_ts: both or neither. Of two that run at once one fails with a conflict and has written nothing.
"""

from __future__ import annotations

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from lake_source import TableSource, arguments

from tistream.client import connect
from tistream.client.upserts import Upserts

GONE = "_tistream_gone"


def sync(source: TableSource, folder: str, as_of: str = "latest") -> int:
    """Bring the Delta table to what is served now; how many pages that took."""
    key = source.primary_key()
    if not DeltaTable.is_deltatable(folder):
        ts, rows = source.snapshot(as_of)
        write_deltalake(folder, rows, mode="error", commit_properties=at(source, ts))
    table = DeltaTable(folder)
    stands_at = table.transaction_version(source.name)
    if stands_at is None:
        raise SystemExit(f"{folder} was not made from {source.name}.")
    pages = 0
    for ts, found in source.changes(stands_at, key):
        merge(table, found, key, at(source, ts))
        pages += 1
    return pages


def at(source: TableSource, ts: int) -> CommitProperties:
    """What makes a commit the one that ends at ts."""
    return CommitProperties(app_transactions=[Transaction(source.name, ts)], max_commit_retries=0)


def merge(table: DeltaTable, found: Upserts, key: list[str], properties: CommitProperties) -> None:
    """One MERGE by primary key: rows in force are written, keys that are gone are removed."""
    rows = found.rows.append_column(GONE, pa.repeat(False, found.rows.num_rows))
    gone = found.gone.append_column(GONE, pa.repeat(True, found.gone.num_rows))
    columns = {name: f"s.`{name}`" for name in found.rows.schema.names}
    (
        table.merge(
            pa.concat_tables([rows, gone], promote_options="default"),
            predicate=" AND ".join(f"t.`{name}` = s.`{name}`" for name in key),
            source_alias="s",
            target_alias="t",
            merge_schema=True,  # columns that are new
            commit_properties=properties,
        )
        .when_matched_delete(f"s.{GONE}")
        .when_matched_update(columns, predicate=f"NOT s.{GONE}")
        .when_not_matched_insert(columns, predicate=f"NOT s.{GONE}")
        .execute()
    )


if __name__ == "__main__":
    asked = arguments(__doc__ or "")
    with connect(asked.url) as client:
        done = sync(TableSource(client.tenant(1, 1), asked.database, asked.table), asked.folder, asked.as_of)
        print(f"{done} pages merged")
