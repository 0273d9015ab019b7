"""The whole dispatcher as sorters of other processes see it: catalog, object store, Flight, takeover by another one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.awaited import next_batches
from tests.kit.batch_files import batch_bytes
from tests.kit.feed_port import DispatchedStore
from tistream.catalog.work.stores import issue_incarnation
from tistream.errors import CorruptObject
from tistream.objectstore.local import LocalStore
from tistream.objectstore.memory import MemoryStore


@pytest.fixture(params=["memory", "folder"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DispatchedStore]:
    store = DispatchedStore(tmp_path, MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "bucket"))
    yield store
    store.close()


def test_a_sorter_is_served_across_a_takeover_and_a_new_incarnation(world: DispatchedStore) -> None:
    first = world.dispatcher()
    stream = world.subscribe()
    for seq in (1, 2, 3):
        world.put(seq)
    batches = next_batches(stream, 3)
    assert [batch.rows["key"].to_pylist() for batch in batches] == [[b"b1"], [b"b2"], [b"b3"]]
    first.stop()
    world.put(4)
    second = world.dispatcher("d2", 1)
    assert second.address != first.address
    issue_incarnation(world.catalog, world.tenant, 7)
    world.put(1, incarnation=2)
    shown = [(batch.incarnation, batch.seq, batch.closes) for batch in next_batches(stream, 3)]
    assert shown == [(1, 4, False), (1, 4, True), (2, 1, False)]


def test_damage_is_named_over_the_wire_and_among_the_problems(world: DispatchedStore) -> None:
    dispatcher = world.dispatcher()
    key = world.key(1)
    data = batch_bytes(key, [(b"a", b"c", [b"b"])])
    world.store.put(str(key), data[: len(data) // 2])
    stream = world.subscribe()
    with pytest.raises(CorruptObject) as raised:
        next_batches(stream, 1)
    assert raised.value.facts["object"] == str(key)
    assert [problem.facts["object"] for problem in dispatcher.problems()] == [str(key)]
