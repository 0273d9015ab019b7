"""What the subscriptions of a task have promised, as a dict, and what is only a repeated row: for `plain_sorter`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sorter.core.conflicts import SUBSCRIPTION_ID
from sorter.core.promised import PROMISED
from tistream.model.change import FLAG_OLD_VALUE_UNKNOWN, Op, RowKind


def same_commit(row: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether a row repeats a commit that waits."""
    same = all(row[name] == other[name] for name in ("key", "commit_ts", "start_ts"))
    return same and (row["op"] == other["op"] or Op.NONE in (row["op"], other["op"]))


def same_row(row: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether a row repeats one that is ready or in the log."""
    if not same_commit(row, other):
        return False
    if row["kind"] == RowKind.COMMIT:
        return row["value"] is None or row["value"] == other["value"]
    unknown = (row["flags"] | other["flags"]) & FLAG_OLD_VALUE_UNKNOWN
    names = ("value", "expire_ts") if unknown else ("value", "old_value", "expire_ts")
    return all(row[name] == other[name] for name in names)


class PlainPromised:
    """The highest resolved_ts of each subscription, for ever."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, ...], int] = {}

    def before(self, regions: pa.RecordBatch, store_id: int, incarnation: int) -> None:
        """Nothing is prepared."""

    def of(self, row: dict[str, Any]) -> int:
        """What the subscription of a row has promised."""
        return self.rows.get(tuple(row[name] for name in SUBSCRIPTION_ID), 0)

    def note(self, regions: pa.RecordBatch, store_id: int, incarnation: int) -> None:
        for mark in regions.to_pylist():
            if mark["tenure_ready_ts"] and mark["resolved_ts"]:
                at = tuple({**mark, "store_id": store_id, "incarnation": incarnation}[name] for name in SUBSCRIPTION_ID)
                self.rows[at] = max(self.rows.get(at, 0), mark["resolved_ts"])

    def forget(self, store_id: int, incarnation: int) -> None:
        self.rows = {at: ts for at, ts in self.rows.items() if at[:2] != (store_id, incarnation)}

    def snapshot(self) -> pa.Table:
        named = [dict(zip(PROMISED.names, (*at, ts), strict=True)) for at, ts in sorted(self.rows.items())]
        return pa.Table.from_pylist(named, schema=PROMISED)

    def restore(self, promises: pa.Table) -> None:
        self.rows = {tuple(row[name] for name in SUBSCRIPTION_ID): row["resolved_ts"] for row in promises.to_pylist()}
