"""The object store in memory."""

from __future__ import annotations

import pytest

from tests.kit.objectstore_suite import ObjectStoreSuite
from tistream.objectstore.factory import open_store
from tistream.objectstore.memory import MemoryStore
from tistream.objectstore.protocol import ObjectStore


class TestMemoryStore(ObjectStoreSuite):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return open_store("memory://")

    def test_what_was_put_is_a_copy(self) -> None:
        store, data = MemoryStore(), bytearray(b"abc")
        store.put("a", memoryview(data))
        data[0] = 0
        assert store.get("a") == b"abc"
