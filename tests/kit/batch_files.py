"""Small batch files by hand, and a pool that does its work at once, for tests of those who read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import pyarrow as pa

from tests.kit.made_rows import batch_of
from tistream.codec.batch_file import encode_batch_file
from tistream.keyrange import KeyRange
from tistream.model import change
from tistream.objectstore.layout import BatchKey

#: a subscription: its region's range and the keys of its rows in the order of their arrival
Subscription = tuple[bytes, bytes, Sequence[bytes]]


def rows_of(keys: Sequence[bytes], first_ts: int = 1) -> pa.RecordBatch:
    """One prewrite per key, told apart by rising start_ts; the value repeats the key."""
    stamps, values = range(first_ts, first_ts + len(keys)), [b"value of " + key for key in keys]
    prewrite = {"kind": change.RowKind.PREWRITE, "op": change.Op.PUT}
    return batch_of(change.ROWS, **prewrite, key=list(keys), start_ts=stamps, value=values)


def subscriptions_of(
    subscriptions: Sequence[Subscription], order: Sequence[int] | None = None
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Rows and regions of a file. `order` is the order in which the regions rows stand; the rows keep theirs."""
    keys: list[bytes] = []
    regions: list[dict[str, Any]] = []
    for number, (start, end, keys_of) in enumerate(subscriptions, 1):
        times = {
            "subscription_open_ts": 10,
            "subscription_ready_ts": 11,
            "checkpoint_ts": 5,
            "resolved_ts": 20 + number,
        }
        where = {"region_id": number, "version": 1, "start_key": start, "end_key": end}
        regions.append({**where, **times, "row_offset": len(keys), "row_count": len(keys_of)})
        keys += keys_of
    if order is not None:
        regions = [regions[i] for i in order]
    return rows_of(keys), pa.RecordBatch.from_pylist(regions, schema=change.REGIONS)


def batch_bytes(key: BatchKey, subscriptions: Sequence[Subscription] = (), cut_ts: int = 0) -> bytes:
    """An encoded file. Without subscriptions it is a tick in which the store led nothing."""
    rows, regions = subscriptions_of(subscriptions)
    return encode_batch_file(key, cut_ts=cut_ts or 1000 + key.seq, rows=rows, regions=regions, write_id=f"w{key.seq}")


def keys_in(rows: pa.RecordBatch, key_range: KeyRange) -> list[bytes]:
    """The keys of the rows in the range, one by one."""
    return [key for key in rows.column("key").to_pylist() if key in key_range]


class InlineExecutor(Executor):
    """Runs what is submitted before `submit` returns."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done
