"""Table filters: followed tables, excluded ranges and their watermarks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib.resources import files
from itertools import count, pairwise

import numpy as np
import orjson
import pytest

from pusher.core.excluded_ranges import ExcludedRangesSource
from pusher.core.source import (
    CheckpointOf,
    Resolved,
    SourceEvent,
    SubscriptionClosed,
    SubscriptionOpened,
    SubscriptionReady,
    Tick,
)
from pusher.core.table_filter import TableFilter, check_table_filter, filter_snapshot, queued_ids, read_table_filter
from schemas.history import History
from schemas.snapshot import parse_pushed
from tistream.codec.table_key import DDL_JOB_TABLE_ID, index_key, record_key, table_prefix
from tistream.errors import CorruptObject, InvalidInput, StoreUnavailable
from tistream.keyrange import KeyRange

RECORDED = (files("simulator") / "recording" / "schema_snapshot.json").read_bytes()
SYSTEM = [t["info"]["id"] for t in orjson.loads(RECORDED)["tables"] if t["db_id"] == 1]


def schema(*tables: tuple[str, str, int, Sequence[int]]) -> bytes:
    """The recorded cluster's own tables, and (database, name, id, partitions)."""
    doc = orjson.loads(RECORDED)
    names = sorted({db for db, *_ in tables})
    dbs = [db for db in doc["dbs"] if db["id"] == 1]
    dbs += [{"id": 1000 + i, "db_name": {"O": n.upper(), "L": n}, "state": 5} for i, n in enumerate(names)]
    own = [t for t in doc["tables"] if t["db_id"] == 1]
    for db, name, table_id, parts in tables:
        info = {"id": table_id, "name": {"O": name.upper(), "L": name}, "cols": [], "index_info": None, "state": 5}
        if parts:
            info["partition"] = {"definitions": [{"id": p, "name": {"O": "p", "L": "p"}} for p in parts]}
        own.append({"db_id": 1000 + names.index(db), "info": info})
    return orjson.dumps({**doc, "dbs": dbs, "tables": own})


SHOP = schema(
    ("shop", "orders", 5000, ()),
    ("shop", "parts", 5010, (5011, 5013)),
    ("shop", "old", 200, ()),
    ("hr", "staff", 5020, ()),
)


def followed(table_filter: TableFilter, key: bytes) -> bool:
    return any(key in part for part in table_filter.wanted)


def test_everything_is_the_snapshot_as_it_is() -> None:
    assert filter_snapshot(SHOP, (), True) is SHOP
    table_filter = read_table_filter(SHOP)
    assert table_filter.wanted == (KeyRange(b"m", b"n"), KeyRange(b"t", b"u"))
    assert table_filter.excluded == ()


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["Shop.Orders"], {5000}),
        (["shop.parts"], {5010, 5011, 5013}),
        (["shop.old"], {200}),
        (["shop"], {5000, 5010, 5011, 5013, 200}),
        (["hr", "shop.orders"], {5020, 5000}),
    ],
)
def test_the_chosen_tables_and_whatever_is_created_later(names: list[str], chosen: set[int]) -> None:
    text = filter_snapshot(SHOP, names, True)
    table_filter = read_table_filter(text)
    table_ids = {5000, 5010, 5011, 5013, 200, 5020, *SYSTEM}
    for table_id in table_ids:
        expected = table_id in chosen or table_id == DDL_JOB_TABLE_ID
        assert followed(table_filter, record_key(table_id, 7)) == expected, table_id
        assert followed(table_filter, index_key(table_id, 1, b"x")) == expected, table_id
    for unknown in (4500, 5001, 5021, 9_000_000):  # being created at the beginning, or later
        assert followed(table_filter, record_key(unknown, 7)), unknown
    assert followed(table_filter, b"mDB")
    pushed = parse_pushed(orjson.loads(text))
    history = History(pushed.snapshot, pushed.job_table)
    shown = history.snapshot(history.start_ts).tables
    assert {i for t in shown.values() for i in (t.id, *t.partition_ids)} == chosen
    assert {5000, 5010, 200, 5020} == set(pushed.snapshot.tables), "the others are kept: DDL may name them"
    assert list(table_filter.wanted) == sorted(table_filter.wanted)
    tiles = sorted([*table_filter.wanted[1:], *table_filter.excluded])
    assert (tiles[0].start, tiles[-1].end) == (b"t", b"u")
    assert all(a.end == b.start for a, b in pairwise(tiles))


def test_without_index_entries() -> None:
    table_filter = read_table_filter(filter_snapshot(SHOP, (), False))
    for table_id in (5000, 5013, 200):
        assert followed(table_filter, record_key(table_id, 7))
        assert not followed(table_filter, index_key(table_id, 1, b"x"))
    assert followed(table_filter, index_key(6000, 1, b"x"))
    table_filter = read_table_filter(filter_snapshot(SHOP, ["shop.orders"], False))
    assert [followed(table_filter, table_prefix(5000) + kind) for kind in (b"_i", b"_r")] == [False, True]


def test_unknown_names_and_changed_filters_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"shop\.order "):
        filter_snapshot(SHOP, ["shop.order"], True)
    table_filter = read_table_filter(filter_snapshot(SHOP, ["shop.orders"], True))
    check_table_filter(table_filter, ["SHOP.orders"], True)
    check_table_filter(table_filter, [], True)
    for names, index_keys in ((["shop"], True), (["shop.orders"], False)):
        with pytest.raises(InvalidInput, match="Create another tenant"):
            check_table_filter(table_filter, names, index_keys)
    with pytest.raises(InvalidInput, match="followed=everything"):
        check_table_filter(TableFilter(), ["shop"], True)
    with pytest.raises(CorruptObject):
        read_table_filter(b'{"followed": {"names": []}}')


class Store:
    """A source that ticks, one timestamp per poll."""

    store_id = 7

    def __init__(self) -> None:
        self.resubscribed: list[int] = []
        self.now = 100
        self.away = False

    def poll(self, timeout_s: float, checkpoint_of: CheckpointOf) -> Sequence[SourceEvent]:
        if self.away:
            raise StoreUnavailable("the store does not answer")
        self.now += 10
        return [Tick(cut_ts=self.now)]

    def resubscribe(self, subscriptions: Collection[int]) -> None:
        self.resubscribed += subscriptions

    def drop(self) -> None: ...
    def resume(self) -> None: ...
    def close(self) -> None: ...


LEFT_OUT = (KeyRange(b"t1", b"t2"), KeyRange(b"t5", b"t6"))


def opened_in(events: Sequence[SourceEvent]) -> list[SubscriptionOpened]:
    return [e for e in events if isinstance(e, SubscriptionOpened)]


def resolved_in(events: Sequence[SourceEvent]) -> list[int]:
    """The subscriptions that are resolved up to the tick behind them."""
    timestamps: list[int] = []
    for event, later in pairwise(events):
        if isinstance(event, Resolved):
            assert isinstance(later, Tick)
            assert (event.resolved_ts == np.uint64(later.cut_ts)).all()
            timestamps += event.subscriptions.tolist()
    return timestamps


def ready_in(events: Sequence[SourceEvent]) -> list[int]:
    return [e.subscription for e in events if isinstance(e, SubscriptionReady)]


def test_excluded_ranges_have_watermarks_at_each_tick() -> None:
    source = ExcludedRangesSource(Store(), LEFT_OUT, count(1))
    assert [type(e) for e in source.poll(0, lambda _: None)] == [Tick]
    (first,) = opened_in(source.poll(0, lambda part: 55 if part == LEFT_OUT[0] else None))
    assert (first.range, first.checkpoint_ts, first.open_ts) == (LEFT_OUT[0], 55, 120)
    events = source.poll(0, lambda _: 60)
    (second,) = opened_in(events)
    assert second.range == LEFT_OUT[1]
    assert ready_in(events) == resolved_in(events) == [first.subscription]
    events = source.poll(0, lambda _: 60)
    assert ready_in(events) == [second.subscription]
    assert resolved_in(events) == [first.subscription, second.subscription]
    assert not opened_in(events)
    assert first.region_id != second.region_id


def test_new_subscriptions_are_numbered_upwards_with_the_stores_own() -> None:
    inner, numbers = Store(), count(1)
    source = ExcludedRangesSource(inner, LEFT_OUT, numbers)
    first, second = opened_in(source.poll(0, lambda _: 60))
    inner_one = next(numbers)
    source.resubscribe([inner_one, first.subscription])
    assert inner.resubscribed == [inner_one]
    inner.away = True
    with pytest.raises(StoreUnavailable):
        source.poll(0, lambda _: 65)
    inner.away = False
    events = source.poll(0, lambda _: 65)
    assert events[0] == SubscriptionClosed(subscription=first.subscription)
    assert ready_in(events) == [second.subscription]
    (again,) = opened_in(events)
    assert (again.range, again.checkpoint_ts) == (LEFT_OUT[0], 65)
    assert again.subscription > inner_one > second.subscription
    source.drop()
    source.resume()
    events = source.poll(0, lambda _: 70)
    assert [o.range for o in opened_in(events)] == list(LEFT_OUT)
    assert not resolved_in(events)


#: as TiDB writes them: TRUNCATE with arguments in both forms, and a job of several; 3000 and the like are new ids
JOBS = [
    b'\x80\x00{"id":3005,"type":11,"table_id":4100,"state":8,"raw_args":[3000,true,[3001,3002]],"start_ts":467996279683416060}',
    b'{"id":3006,"type":11,"table_id":4100,"version":2,"raw_args":{"fk_check":true,"new_table_id":3003,"new_partition_ids":[3004]}}',
    b'{"id":3007,"type":61,"multi_schema_info":{"sub_jobs":[{"type":65,"raw_args":{"new_partition_ids":[2000]}}]}}',
]


def test_ids_that_jobs_took_before_the_beginning_are_followed() -> None:
    """A TRUNCATE that waits has its new id, far below the newest table's: big tables were created behind it."""
    doc = orjson.loads(schema(("shop", "t", 4100, ()), ("shop", "p", 4110, (4111, 4112)), ("hr", "big", 9000, ())))
    of_p = next(t for t in doc["tables"] if t["info"]["id"] == 4110)["info"]["partition"]
    of_p |= {"adding_definitions": [{"id": 4500}], "dropping_definitions": [{"id": 4111}], "new_partition_ids": [4501]}
    table_filter = read_table_filter(
        filter_snapshot(orjson.dumps(doc), ["shop.t", "shop.p"], True, None, queued_ids(JOBS))
    )
    new = {3000, 3001, 3002, 3003, 3004, 2000, 4500, 4501}
    for table_id in {4100, 4110, 4111, 4112, *new, 9001}:
        assert followed(table_filter, record_key(table_id, 1)), table_id
    for table_id in (2001, 4499, 9000, *SYSTEM[:3]):
        assert not followed(table_filter, record_key(table_id, 1)), table_id


def test_a_job_about_another_table_does_not_bring_that_table() -> None:
    doc = schema(("shop", "t", 4100, ()), ("hr", "old", 4200, ()), ("hr", "big", 9000, ()))
    table_filter = read_table_filter(
        filter_snapshot(doc, ["shop.t"], True, None, queued_ids([b'{"table_id":4200,"raw_args":[4300]}']))
    )
    assert not followed(table_filter, record_key(4200, 1))
    assert followed(table_filter, record_key(4300, 1))  # whose it will be is not known
