"""What the lake examples have in common: a table's rows as of a timestamp, then its changes, page by page.

A page ends between two commits, so (table as of ts) + (what later pages leave) is the table at each page's end. The
example that writes a page stores its commit_ts in the same commit of the lake table; a restart asks the
table where it stands. That is all there is to exactly-once.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tistream.client import Table, Tenant
from tistream.client.frames import plain_decimals
from tistream.client.upserts import Upserts, upserts


@dataclass(frozen=True)
class TableSource:
    """A table with a primary key. `rows_per_page` bounds what one commit of the lake table takes in."""

    tenant: Tenant
    database: str
    table: str
    rows_per_page: int = 50_000

    @property
    def name(self) -> str:
        """Under which the lake table keeps how far it is."""
        return f"tistream/{self.tenant.cluster_id}/{self.tenant.tenant_id}/{self.database}/{self.table}"

    @property
    def source(self) -> Table:
        return self.tenant.table(self.table, database=self.database)

    def primary_key(self) -> list[str]:
        """The names of its columns."""
        (found,) = [t for t in self.tenant.tables(self.database) if t["table"] == self.table]
        if not found["primary_key"]:
            raise SystemExit(f"{self.database}.{self.table} has no primary key to merge by.")
        key: list[str] = found["primary_key"]
        return key

    def snapshot(self, as_of: str) -> tuple[int, pa.Table]:
        """(ts, the rows at ts)."""
        at = self.tenant.splits(start=as_of, end=as_of)["start_ts"]
        return int(at), plain(self.source.rows(as_of=at, continued=True).to_arrow())

    def changes(self, after_ts: int, key: list[str]) -> Iterator[tuple[int, Upserts]]:
        """(commit_ts, what the page that ends there leaves), from `after_ts` to what is served now."""
        for page in self.source.changes(start=after_ts, limit=self.rows_per_page).batches():
            if page.rows.num_rows:
                found = upserts(page.rows, key)
                yield pc.max(page.rows.column(1)).as_py(), Upserts(rows=plain(found.rows), gone=plain(found.gone))


def plain(table: pa.Table) -> pa.Table:
    """In types that lake formats have, with the same values. TIME becomes microseconds."""
    for n, field in enumerate(table.schema):
        if pa.types.is_decimal256(field.type):  # Arrow's own text of it has exponents
            chunks = [plain_decimals(chunk) for chunk in table.column(n).chunks]
            table = table.set_column(n, field.with_type(pa.string()), pa.chunked_array(chunks, pa.string()))
    return table.cast(pa.schema([field.with_type(_plain(field.type)) for field in table.schema]))


def _plain(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(type_):
        return pa.string()
    if pa.types.is_uint64(type_):
        return pa.decimal128(20, 0)
    if pa.types.is_integer(type_):
        return pa.int64() if type_ in (pa.uint32(), pa.int64()) else pa.int32()
    return pa.int64() if pa.types.is_duration(type_) else type_


def arguments(what: str) -> argparse.Namespace:
    """The command line of an example."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("database")
    parser.add_argument("table")
    parser.add_argument("folder")
    parser.add_argument("--url", default=os.environ.get("TISTREAM_URL", "http://127.0.0.1:8711"))
    parser.add_argument("--as-of", default="latest", help="what a new lake table begins with")
    return parser.parse_args()
