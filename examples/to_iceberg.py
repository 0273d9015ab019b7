"""Keep an Iceberg table equal to a table: `python examples/to_iceberg.py DATABASE TABLE FOLDER`, as often as you like.

Needs the extra `lake`. The catalog is a SQLite file in the folder, which is the warehouse as well. Each
commit of the Iceberg table holds one page and, as a table property, the page's commit_ts: both or neither. Of two that
run at once one fails with a conflict and has written nothing.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from lake_source import TableSource, arguments
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Transaction
from pyiceberg.table.upsert_util import create_match_filter

from tistream.client import connect
from tistream.client.upserts import Upserts

STANDS_AT = "tistream.commit-ts"


def open_catalog(folder: str) -> SqlCatalog:
    """A catalog and a warehouse in one folder."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    where = Path(folder).absolute()
    return SqlCatalog("lake", uri=f"sqlite:///{where}/catalog.db", warehouse=f"file://{where}")


def sync(source: TableSource, catalog: SqlCatalog, as_of: str = "latest") -> int:
    """Bring the Iceberg table to what is served now; how many pages that took."""
    key = source.primary_key()
    name = (source.database, source.table)
    catalog.create_namespace_if_not_exists(source.database)
    if not catalog.table_exists(name):
        ts, rows = source.snapshot(as_of)
        with catalog.create_table_transaction(name, schema=rows.schema) as txn:
            txn.append(rows)
            txn.set_properties({STANDS_AT: str(ts)})
    table = catalog.load_table(name)
    pages = 0
    for ts, found in source.changes(int(table.properties[STANDS_AT]), key):
        with table.transaction() as txn:
            write(txn, found, key)
            txn.set_properties({STANDS_AT: str(ts)})
        pages += 1
    return pages


def write(txn: Transaction, found: Upserts, key: list[str]) -> None:
    """All keys of the page go, the rows in force come, with the columns that are new."""
    touched = pa.concat_tables([found.rows.select(key), found.gone])
    txn.delete(create_match_filter(touched, key))
    if found.rows.num_rows:
        with txn.update_schema() as schema:
            schema.union_by_name(found.rows.schema)
        txn.append(found.rows)


if __name__ == "__main__":
    asked = arguments(__doc__ or "")
    with connect(asked.url) as client:
        source = TableSource(client.tenant(1, 1), asked.database, asked.table)
        done = sync(source, open_catalog(asked.folder), asked.as_of)
        print(f"{done} pages written")
