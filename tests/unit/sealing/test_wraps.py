"""Wrapped roots in a bucket: the newest wrap of each, and nothing that was changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from tistream.errors import CorruptObject, ObjectConflict, TooLarge
from tistream.ids import Tenant
from tistream.objectstore.layout import WrapKey
from tistream.objectstore.memory import MemoryStore
from tistream.sealing.kms.protocol import context_of
from tistream.sealing.wraps import Wrap, decode_wrap, newest_wraps, put_wrap

MINE, OTHER = Tenant(1, 2), Tenant(1, 20)


def wrap(root_no: int, n: int = 0, tenant: Tenant = MINE) -> Wrap:
    key = WrapKey(tenant=tenant, root_no=root_no, n=n)
    return Wrap(
        key=key,
        kms=f"alias/{n}",
        wrapped=f"{root_no} {n}".encode() * 30,
        context=context_of("prod", tenant),
        created_ms=1_790_000_000_000,
    )


def test_the_newest_wrap_of_each_root_is_found() -> None:
    store = MemoryStore()
    for root_no, n in ((1, 0), (1, 1), (1, 2), (1, 10), (2, 0), (1_000_000, 0)):
        put_wrap(store, wrap(root_no, n))
    put_wrap(store, wrap(3, tenant=OTHER))
    assert newest_wraps(store, MINE) == {1: wrap(1, 10), 2: wrap(2), 1_000_000: wrap(1_000_000)}
    assert newest_wraps(store, Tenant(9, 9)) == {}


def test_a_wrap_is_written_once() -> None:
    store = MemoryStore()
    put_wrap(store, wrap(1))
    put_wrap(store, wrap(1))
    with pytest.raises(ObjectConflict):
        put_wrap(store, Wrap(key=wrap(1).key, kms="alias/x", wrapped=b"w", context={}, created_ms=1))


CHANGES: list[Callable[[dict[str, Any]], Any]] = [
    lambda f: f.pop("wrapped"),
    lambda f: f.update(wrapped="not base64"),
    lambda f: f.update(wrapped=""),
    lambda f: f.update(wrapped=7),
    lambda f: f.update(root=2),
    lambda f: f.update(format=2),
    lambda f: f.update(kms=None),
    lambda f: f.update(context=["prod"]),
    lambda f: f.update(context={"tenant": 2}),
    lambda f: f.update(context={}),
    lambda f: f.update(context=context_of("prod", OTHER)),
    lambda f: f.update(context=context_of("prod", Tenant(2, 2))),
    lambda f: f["context"].update(more="x"),
    lambda f: f["context"].pop("deployment"),
    lambda f: f.update(created_ms="then"),
    lambda f: f.update(created_ms="1790000000000"),
    lambda f: f.update(created_ms=1.5),
    lambda f: f.update(created_ms=True),
]


@pytest.mark.parametrize("change", CHANGES, ids=range(len(CHANGES)))
def test_a_changed_wrap_is_refused_by_name(change: Callable[[dict[str, Any]], Any]) -> None:
    fields = orjson.loads(wrap(1).encode())
    assert decode_wrap(wrap(1).key, orjson.dumps(fields)) == wrap(1)
    change(fields)
    store = MemoryStore()
    store.put(str(wrap(1).key), orjson.dumps(fields))
    with pytest.raises(CorruptObject) as error:
        newest_wraps(store, MINE)
    assert error.value.facts["object"] == "keys/cluster-1/tenant-2/000001.json"


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"\xff", b'{"context": null}'])
def test_something_else_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptObject):
        decode_wrap(wrap(1).key, data)


def test_a_large_object_is_refused_unread() -> None:
    store = MemoryStore()
    store.put(str(wrap(1).key), bytes(1 << 17))
    with pytest.raises(CorruptObject) as error:
        newest_wraps(store, MINE)
    assert isinstance(error.value.__cause__, TooLarge)
