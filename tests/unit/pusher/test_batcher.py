from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pusher.core.batcher import Batcher, UnwrittenFile
from pusher.core.source import (
    Resolved,
    Rows,
    SourceEvent,
    SubscriptionClosed,
    SubscriptionOpened,
    SubscriptionReady,
    Tick,
)
from tistream.codec.batch_file import encode_batch_file
from tistream.errors import TiStreamError
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.model.change import REGIONS, ROWS, Op, RowKind
from tistream.objectstore.layout import BatchKey

KEY_BYTES = 3
FIXED_BYTES = 43


def opened(subscription: int, start: bytes = b"", end: bytes = b"", *, region_id: int = 1) -> SubscriptionOpened:
    return SubscriptionOpened(
        subscription=subscription,
        region_id=region_id,
        version=5,
        range=KeyRange(start, end),
        checkpoint_ts=10,
        open_ts=20,
    )


def rows(subscription: int, numbers: Sequence[int], size: int = 0) -> Rows:
    """Prewrites whose start_ts are `numbers`, each with a value of `size` bytes."""
    n = len(numbers)
    columns: dict[str, list[object]] = {
        "kind": [RowKind.PREWRITE] * n,
        "op": [Op.PUT] * n,
        "key": [b"k" * KEY_BYTES] * n,
        "start_ts": list(numbers),
        "value": [b"v" * size] * n,
        "old_value": [None] * n,
    }
    data = [pa.array(columns.get(f.name, [0] * n), f.type) for f in ROWS]
    return Rows(subscription=subscription, rows=pa.record_batch(data, schema=ROWS))


def resolved(**by_subscription: int) -> Resolved:
    """`t3=7`: subscription 3 at 7."""
    ids = [int(name[1:]) for name in by_subscription]
    return Resolved(
        subscriptions=np.array(ids, np.int64), resolved_ts=np.array(list(by_subscription.values()), np.uint64)
    )


def run(batcher: Batcher, *events: SourceEvent) -> list[UnwrittenFile]:
    return [file for event in events for file in batcher.handle(event)]


def slices(file: UnwrittenFile) -> dict[int, list[int]]:
    """region_id -> start_ts of its rows."""
    start_ts = file.rows.column("start_ts").to_pylist()
    return {
        r["region_id"]: start_ts[r["row_offset"] : r["row_offset"] + r["row_count"]] for r in file.regions.to_pylist()
    }


def test_rows_are_clustered_by_subscription_in_start_key_order_and_keep_their_order() -> None:
    (file,) = run(
        Batcher(),
        opened(1, b"m", region_id=101),
        opened(2, b"", b"m", region_id=102),
        rows(1, [1, 2]),
        rows(2, [3]),
        rows(1, [4]),
        Tick(cut_ts=50),
    )
    assert file.rows.column("start_ts").to_pylist() == [3, 1, 2, 4]
    assert slices(file) == {102: [3], 101: [1, 2, 4]}
    assert file.regions.column("region_id").to_pylist() == [102, 101]
    assert (file.rows.schema, file.regions.schema) == (ROWS, REGIONS)


def test_a_file_is_written_each_tick_even_when_empty() -> None:
    files = run(Batcher(), Tick(cut_ts=50), opened(1), Tick(cut_ts=60), Tick(cut_ts=60))
    assert [(f.seq, f.cut_ts, f.rows.num_rows, f.regions.num_rows) for f in files] == [
        (1, 50, 0, 0),
        (2, 60, 0, 1),
        (3, 60, 0, 1),
    ]


def test_an_ended_subscription_has_one_closing_row_with_its_largest_resolved_ts() -> None:
    batcher = Batcher()
    first, second, third = run(
        batcher,
        opened(1, region_id=101),
        SubscriptionReady(subscription=1, ready_ts=25),
        resolved(t1=40),
        Tick(cut_ts=50),
        resolved(t1=30),
        rows(1, [7]),
        SubscriptionClosed(subscription=1),
        opened(2, region_id=101),
        Tick(cut_ts=60),
        Tick(cut_ts=70),
    )
    assert first.regions.column("resolved_ts").to_pylist() == [40]
    assert second.regions.select(["subscription_ready_ts", "resolved_ts", "row_count"]).to_pylist() == [
        {"subscription_ready_ts": 25, "resolved_ts": 40, "row_count": 1},
        {"subscription_ready_ts": 0, "resolved_ts": 0, "row_count": 0},
    ]
    assert third.regions.column("resolved_ts").to_pylist() == [0]
    assert list(batcher.subscriptions) == [2]


def test_ready_ts_is_zero_until_the_opening_scan_is_complete() -> None:
    first, second = run(
        Batcher(),
        opened(1),
        rows(1, [1]),
        Tick(cut_ts=50),
        SubscriptionReady(subscription=1, ready_ts=55),
        Tick(cut_ts=60),
    )
    assert first.regions.column("subscription_ready_ts").to_pylist() == [0]
    assert second.regions.column("subscription_ready_ts").to_pylist() == [55]


def test_only_the_last_file_of_a_tick_has_new_watermarks() -> None:
    batcher = Batcher(bytes_target=3 * (FIXED_BYTES + KEY_BYTES))
    run(batcher, opened(1, b"", b"m", region_id=101), SubscriptionReady(subscription=1, ready_ts=25), resolved(t1=40))
    run(batcher, Tick(cut_ts=50))
    files = run(
        batcher,
        opened(2, b"m", region_id=102),
        rows(1, [1, 2, 3, 4]),
        rows(2, [5, 6, 7]),
        SubscriptionReady(subscription=2, ready_ts=55),
        resolved(t1=58, t2=59),
        Tick(cut_ts=60),
    )
    assert [(f.seq, f.cut_ts) for f in files] == [(2, 60), (3, 60), (4, 60)]
    assert [slices(f) for f in files] == [{101: [1, 2, 3], 102: []}, {101: [4], 102: [5, 6]}, {101: [], 102: [7]}]
    assert [f.regions.column("resolved_ts").to_pylist() for f in files] == [[40, 0], [40, 0], [58, 59]]
    assert [f.regions.column("subscription_ready_ts").to_pylist() for f in files] == [[25, 0], [25, 0], [25, 55]]


def test_a_row_larger_than_the_target_gets_a_file() -> None:
    files = run(Batcher(bytes_target=100), opened(1), rows(1, [1]), rows(1, [2], 500), rows(1, [3]), Tick(cut_ts=5))
    assert [f.rows.column("start_ts").to_pylist() for f in files] == [[1], [2], [3]]


@pytest.mark.parametrize(
    "events",
    [
        [rows(1, [1])],
        [resolved(t1=5)],
        [opened(2), resolved(t1=5)],
        [SubscriptionReady(subscription=1, ready_ts=5)],
        [SubscriptionClosed(subscription=1)],
        [opened(1), SubscriptionClosed(subscription=1), SubscriptionClosed(subscription=1)],
        [opened(1), SubscriptionClosed(subscription=1), rows(1, [1])],
        [opened(1), SubscriptionClosed(subscription=1), Tick(cut_ts=5), resolved(t1=5)],
        [opened(2), opened(1)],
        [opened(1), opened(1)],
        [Tick(cut_ts=6), Tick(cut_ts=5)],
    ],
)
def test_events_that_violate_the_source_contract_are_refused(events: list[SourceEvent]) -> None:
    with pytest.raises(TiStreamError, match="invariant"):
        run(Batcher(), *events)


# -- random event sequences against a plain account of them ------------------------------------------------------------

ACTIONS = st.lists(
    st.tuples(st.sampled_from(["open", "close", "rows", "ready", "resolved", "tick"]), st.integers(0, 30)), max_size=60
)


@settings(deadline=None)
@given(ACTIONS, st.integers(1, 400))
def test_every_relation_holds_for_any_sequence(actions: list[tuple[str, int]], bytes_target: int) -> None:
    batcher = Batcher(bytes_target=bytes_target)
    alive: list[int] = []
    account: dict[int, dict[str, int]] = {}  # of subscriptions open since the last tick
    starts: dict[int, bytes] = {}
    sent: dict[int, list[int]] = {}
    said: dict[int, tuple[int, int]] = {}
    received: dict[int, list[int]] = {}
    cut_ts, seq, number = 50, 0, 0  # above every other timestamp
    for name, n in actions:
        subscription = alive[n % len(alive)] if alive else 0
        if name == "open":
            number += 1
            starts[number] = bytes([n + 1])
            alive.append(number)
            account[number] = {"ready": 0, "resolved": 0}
            run(batcher, opened(number, starts[number], region_id=number))
        elif name == "tick":
            cut_ts += n
            files = batcher.handle(Tick(cut_ts=cut_ts))
            assert files
            for file in files:
                seq += 1
                assert (file.seq, file.cut_ts) == (seq, cut_ts)
                check_file(file, starts, account, said, last=file is files[-1])
                for region_id, numbers in slices(file).items():
                    received.setdefault(region_id, []).extend(numbers)
            said = {t: (a["ready"], a["resolved"]) for t, a in account.items() if t in alive}
            account = {t: a for t, a in account.items() if t in alive}
            assert {t: g for t, g in received.items() if g} == {t: s for t, s in sent.items() if s}
        elif not alive:
            continue
        elif name == "close":
            alive.remove(subscription)
            run(batcher, SubscriptionClosed(subscription=subscription))
        elif name == "rows":
            sent_here = sent.setdefault(subscription, [])
            new = list(range(len(sent_here), len(sent_here) + n % 7))
            sent_here += new
            run(batcher, rows(subscription, new, n))
        elif name == "ready":
            account[subscription]["ready"] = 20 + n
            run(batcher, SubscriptionReady(subscription=subscription, ready_ts=20 + n))
        else:
            account[subscription]["resolved"] = max(n, account[subscription]["resolved"])
            run(batcher, resolved(**{f"t{subscription}": n}))


def check_file(
    file: UnwrittenFile,
    starts: dict[int, bytes],
    account: dict[int, dict[str, int]],
    said: dict[int, tuple[int, int]],
    *,
    last: bool,
) -> None:
    regions = file.regions.to_pylist()
    assert sorted(r["region_id"] for r in regions) == sorted(account)
    keys = [(r["start_key"], r["region_id"]) for r in regions]
    assert keys == sorted(keys)
    for r in regions:
        marks = account[r["region_id"]]
        expected = (marks["ready"], marks["resolved"]) if last else said.get(r["region_id"], (0, 0))
        assert (r["subscription_ready_ts"], r["resolved_ts"]) == expected
    key = BatchKey(tenant=Tenant(1, 1), store_id=1, incarnation=1, seq=file.seq)
    encode_batch_file(key, cut_ts=file.cut_ts, rows=file.rows, regions=file.regions, write_id="w")  # checks the tiling


def prewrite(value: bytes | None, start_ts: int = 7, *, op: Op = Op.PUT, scan: bool = False, key: bytes = b"k") -> Rows:
    """One prewrite of subscription 1."""
    columns: dict[str, object] = {
        "kind": RowKind.PREWRITE,
        "op": op,
        "key": key,
        "start_ts": start_ts,
        "value": value,
        "old_value": None,
    }
    data = [pa.array([columns.get(f.name, 0)], f.type) for f in ROWS]
    return Rows(subscription=1, rows=pa.record_batch(data, schema=ROWS), scan=scan)


def prewrites(files: Sequence[UnwrittenFile]) -> list[tuple[object, object]]:
    """(start_ts, value) of each row."""
    return [(r["start_ts"], r["value"]) for file in files for r in file.rows.to_pylist()]


def test_a_scanned_prewrite_behind_a_live_one_of_the_same_lock_is_dropped() -> None:
    files = run(
        Batcher(),
        opened(1),
        prewrite(b"new"),
        prewrite(None, 8, op=Op.DELETE),
        Tick(cut_ts=50),
        prewrite(b"old", scan=True),
        prewrite(b"old", 8, scan=True),
        prewrite(b"of another transaction", 9, scan=True),
        prewrite(b"of another key", key=b"l", scan=True),
        Tick(cut_ts=60),
    )
    assert prewrites(files) == [(7, b"new"), (8, None), (9, b"of another transaction"), (7, b"of another key")]


def test_a_scanned_prewrite_before_the_live_one_stays() -> None:
    files = run(Batcher(), opened(1), prewrite(b"old", scan=True), prewrite(b"new"), Tick(cut_ts=50))
    assert prewrites(files) == [(7, b"old"), (7, b"new")]


def test_a_scanned_prewrite_stays_behind_a_live_one_without_its_value() -> None:
    files = run(Batcher(), opened(1), prewrite(b""), prewrite(b"whole", scan=True), Tick(cut_ts=50))
    assert prewrites(files) == [(7, b""), (7, b"whole")]


def test_live_prewrites_of_one_lock_are_all_kept() -> None:
    files = run(Batcher(), opened(1), prewrite(b"one"), prewrite(b"two"), Tick(cut_ts=50))
    assert prewrites(files) == [(7, b"one"), (7, b"two")]


def test_live_rows_of_an_earlier_subscription_drop_nothing() -> None:
    batcher = Batcher()
    run(batcher, opened(1), prewrite(b"new"), SubscriptionClosed(subscription=1), opened(2), Tick(cut_ts=50))
    again = Rows(subscription=2, rows=prewrite(b"new").rows, scan=True)
    assert prewrites(run(batcher, again, Tick(cut_ts=60))) == [(7, b"new")]


def test_scan_rows_after_the_end_of_the_scan_are_refused() -> None:
    batcher = Batcher()
    run(batcher, opened(1), SubscriptionReady(subscription=1, ready_ts=25))
    with pytest.raises(TiStreamError, match="after the end of the opening scan"):
        batcher.handle(prewrite(b"x", scan=True))
