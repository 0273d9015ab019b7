"""The sample shop: its rows hang together, orders only go forward, and a restart repeats what may have been pushed."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from simulator.core.cluster import Cluster
from simulator.rows import DATETIME, ENUM, NEWDECIMAL, row_v2
from simulator.sample import kept as files
from simulator.sample.core.shop import CUSTOMERS_MAX, ORDERS_MAX, Shop
from simulator.sample.core.tables import CUSTOMERS, ORDER_LINES, ORDERS, PAYMENTS, TABLES, Schema
from simulator.sample.core.upstream import Session, Upstream, first_state
from simulator.sample.kept import Kept
from tistream.errors import CorruptObject
from tistream.keyrange import KeyRange

OPENED_MS = 1_790_000_000_000
FOLLOWING = {
    "cart": {"cart", "new"},
    "new": {"paid", "cancelled"},
    "paid": {"shipped", "cancelled"},
    "shipped": {"delivered"},
}
Tables = dict[int, dict[int, dict[str, Any]]]


def hangs_together(tables: Tables) -> None:
    """What must hold behind each transaction."""
    orders = tables[ORDERS]
    assert {row["customer_id"] for row in orders.values()} <= tables[CUSTOMERS].keys()
    sums = dict.fromkeys(orders, Decimal(0))
    for line in tables[ORDER_LINES].values():
        sums[line["order_id"]] += line["quantity"] * line["price"]
    assert sums == {order_id: row["total"] for order_id, row in orders.items()}
    paid = {row["order_id"]: row["amount"] for row in tables[PAYMENTS].values()}
    assert paid == {i: orders[i]["total"] for i in paid}
    with_payment = {i for i, row in orders.items() if row["state"] in ("paid", "shipped", "delivered")}
    assert with_payment <= paid.keys()
    assert {i for i, row in orders.items() if row["placed_at"] is None} == {
        i for i, row in orders.items() if row["state"] == "cart"
    }


def test_two_hours_of_the_shop_hang_together_and_orders_only_go_forward() -> None:
    schema = Schema()
    shop, now, seen = Shop(5, schema), datetime(2026, 5, 4, 9, 0, tzinfo=UTC), Counter[str]()
    tables: Tables = {table_id: {} for table_id in TABLES}
    for n in range(8000):
        now += timedelta(seconds=1)
        if (ddl := schema.ddl_of(n)) is not None:
            seen["ddl"] += 1
            ddl.apply()
            continue
        for write in shop.step(n, now):
            rows = tables[write.table_id]
            assert rows.get(write.row_id) == write.old
            if write.new is None:
                row = rows.pop(write.row_id)
                assert row.get("state") in (None, "cart", "delivered", "cancelled")
                seen["delete"] += 1
            else:
                rows[write.row_id] = write.new
                seen["insert" if write.old is None else "update"] += 1
            if write.table_id == ORDERS and write.old is not None and write.new is not None:
                assert write.new["state"] in FOLLOWING[write.old["state"]]
                assert write.new["changed_at"] > write.old["changed_at"]
                seen[write.new["state"]] += 1
        if n % 50 == 0:
            hangs_together(tables)
    assert tables == shop.rows
    assert len(tables[CUSTOMERS]) <= CUSTOMERS_MAX
    assert len(tables[ORDERS]) <= ORDERS_MAX + 1
    for what in ("insert", "update", "delete", "ddl", "new", "paid", "shipped", "delivered", "cancelled"):
        assert seen[what] >= 8, what


def versions(cluster: Cluster, above_ts: int) -> dict[bytes, list[Any]]:
    """All that a pusher may be sent above a timestamp."""
    keys = [key for region in cluster.regions() for key in keys_of(cluster, region.range)]
    by_key = {key: [v for v in cluster.versions(key) if v.commit_ts > above_ts] for key in keys}
    return {key: each for key, each in by_key.items() if each}


def keys_of(cluster: Cluster, within: KeyRange) -> list[bytes]:
    subscription = cluster.register(cluster.region_of(within.start).region_id, 1, cluster.floor_ts)
    return sorted(set(subscription.rows.key))


def opened(seed: int = 3) -> Upstream:
    return Upstream(seed, first_state(OPENED_MS), [Session(0, OPENED_MS)])


def test_the_same_seed_does_the_same_and_another_one_does_not() -> None:
    same, again, other = opened(), opened(), opened(seed=4)
    for upstream in (same, again, other):
        upstream.advance(OPENED_MS + 60_000)
    assert versions(same.cluster, 0) == versions(again.cluster, 0)
    assert versions(same.cluster, 0) != versions(other.cluster, 0)


@pytest.mark.parametrize("forgets", [False, True])
def test_a_restart_repeats_what_has_happened_since_the_kept_state_byte_for_byte(tmp_path: Path, forgets: bool) -> None:
    """Kept between the DDL that add and drop columns; a break lies before the state, another one behind it."""
    before = opened()
    before.advance(at := OPENED_MS + 200_000)
    before.open_session(at := at + 3_600_000)
    before.advance(at := at + 20_000)
    before.cluster.tick(at << 18)
    state = before.state()
    assert state.ts == at << 18
    if forgets:
        before.forget(state)
    before.advance(at + 30_000)
    before.open_session(at := at + 90_000)
    before.advance(at := at + 500_000)
    sample = Kept(seed=3, start_ts=1, state=state, sessions=before.sessions, until_ms=at, key="secret")
    files.write(tmp_path / "sample.json", sample)
    assert (tmp_path / "sample.json").stat().st_mode & 0o077 == 0
    read = files.read(tmp_path / "sample.json")
    assert read is not None
    assert (read.key, read.until_ms, read.sessions) == ("secret", at, before.sessions)
    after = Upstream(read.seed, read.state, read.sessions)
    after.advance(at)
    assert after.step == before.step
    assert after.shop.rows == before.shop.rows
    assert versions(after.cluster, state.ts) == versions(before.cluster, state.ts)
    assert len(versions(after.cluster, state.ts)) > 300


def test_a_shop_without_a_file_is_new_and_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sample.json"
    assert files.read(path) is None
    path.write_text('{"version": 1}')
    with pytest.raises(CorruptObject, match=r"damaged.*sample\.json"):
        files.read(path)


def test_what_is_forgotten_is_what_no_reader_at_the_floor_sees() -> None:
    upstream, twin = opened(), opened()
    for each in (upstream, twin):
        each.advance(OPENED_MS + 400_000)
        each.cluster.tick((OPENED_MS + 400_000) << 18)
    floor_ts = (OPENED_MS + 200_000) << 18
    upstream.cluster.forget(floor_ts)
    for ts in (floor_ts, floor_ts + (100_000 << 18)):
        assert list(upstream.cluster.snapshot(KeyRange(), ts)) == list(twin.cluster.snapshot(KeyRange(), ts))
    left, right = versions(upstream.cluster, floor_ts), versions(twin.cluster, floor_ts)
    assert left == right
    pruned, all_of_it = (sum(map(len, versions(each.cluster, 0).values())) for each in (upstream, twin))
    assert pruned < 0.6 * all_of_it


@pytest.mark.parametrize(
    ("value", "digits", "fraction", "expected"),
    [
        ("1234567890.1234", 14, 4, "0e04810dfb38d204d2"),
        ("1", 1, 0, "010081"),
        ("0", 1, 0, "010080"),
        ("-1", 1, 0, "01007e"),
        ("-10.55", 4, 2, "040275c8"),
        ("0.1", 1, 1, "010181"),
        ("-0.001", 4, 3, "04037ffffe"),
        ("11.9900", 6, 4, "06048b26ac"),
        ("99999999.99", 10, 2, "0a0285f5e0ff63"),
        ("0.0123456789012345678912345", 30, 25, "1e1980000000bc614e35b7bf870087fdd9"),
    ],
)
def test_decimals_are_as_tidb_writes_them(value: str, digits: int, fraction: int, expected: str) -> None:
    """The bytes are from TiDB's own tests."""
    column = {"id": 2, "type": {"Tp": NEWDECIMAL, "Flen": digits, "Decimal": fraction}}
    assert row_v2([(column, Decimal(value))])[9:].hex() == expected


def test_times_and_labels_are_numbers_in_a_row() -> None:
    """The bytes of the times are from TiDB's own tests."""
    at, state = {"id": 2, "type": {"Tp": DATETIME}}, {"id": 2, "type": {"Tp": ENUM, "Elems": ["cart", "new"]}}
    for value, expected in (
        (datetime(2018, 1, 19, 3, 14, 7, tzinfo=UTC), "0000008733e69e19"),
        (datetime(2011, 11, 10, 11, 11, 11, 999999, tzinfo=UTC), "3f420fcbb2948a19"),
    ):
        assert row_v2([(at, value)])[9:].hex() == expected
    assert row_v2([(state, "new")])[9:].hex() == "02"
