"""Upload spill: bounded, returned unchanged, deleted with its owner."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pusher.upload_spill import UploadSpill
from pusher.uploader import Uploader
from tistream.clock import SystemClock
from tistream.errors import ConfigError, TiStreamError
from tistream.objectstore.memory import MemoryStore


class GatedStore(MemoryStore):
    """Takes no object until the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.gate = threading.Event(), threading.Event()

    def put(self, key: str, data: bytes | memoryview) -> None:
        self.asked.set()
        self.gate.wait()
        super().put(key, data)


def uploader(store: MemoryStore, spill: UploadSpill | None) -> Uploader:
    return Uploader(store, name="x", clock=SystemClock(), in_flight_max=1, queue_bytes_max=100, spill=spill)


def spilling(folder: Path) -> tuple[GatedStore, Uploader]:
    """Six files are offered: one is under way, one in memory, the others on the disk."""
    store = GatedStore()
    one = uploader(store, UploadSpill(folder / "s", 300))
    assert all(one.offer(f"k{i}", bytes(60)) for i in range(6))
    return store, one


def files_in(folder: Path) -> int:
    return len(list(folder.iterdir()))


def test_a_spilled_file_is_returned_once(tmp_path: Path) -> None:
    spill = UploadSpill(tmp_path / "s", 10)
    first = spill.park(b"12345", 0)
    assert first is not None
    assert spill.park(b"123456", 5) is None
    second = spill.park(b"67890", 5)
    assert second is not None
    assert (first.take(), second.size) == (b"12345", 5)
    assert files_in(tmp_path / "s") == 1
    second.drop()
    assert files_in(tmp_path / "s") == 0
    with pytest.raises(TiStreamError, match="cannot be read"):
        first.take()


def test_bytes_that_changed_on_the_disk_are_not_given(tmp_path: Path) -> None:
    parked = UploadSpill(tmp_path / "s", 10).park(b"12345", 0)
    assert parked is not None
    parked.path.write_bytes(b"12344")
    with pytest.raises(TiStreamError, match="damaged"):
        parked.take()


def test_a_new_owner_clears_the_folder(tmp_path: Path) -> None:
    UploadSpill(tmp_path / "s", 10).park(b"1", 0)
    again = UploadSpill(tmp_path / "s", 10)
    assert files_in(tmp_path / "s") == 0
    again.close()
    assert not (tmp_path / "s").exists()


def test_a_failing_disk_counts_as_full(tmp_path: Path) -> None:
    spill = UploadSpill(tmp_path / "s", 10)
    (tmp_path / "s").rmdir()
    assert spill.park(b"1", 0) is None
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be created"):
        UploadSpill(tmp_path / "file" / "s", 10)


def test_the_queue_spills_and_keeps_its_order(tmp_path: Path) -> None:
    store = GatedStore()
    one = uploader(store, UploadSpill(tmp_path / "s", 300))
    contents = {f"k{i}": bytes([i]) * 60 for i in range(9)}
    results = [one.offer("k0", contents["k0"])]
    assert store.asked.wait(100)
    results += [one.offer(key, data) for key, data in contents.items() if key != "k0"]
    assert results == [True] * 7 + [False] * 2  # one under way, one in memory, five on the disk
    assert files_in(tmp_path / "s") == 5
    assert not one.wait_until_queued_at_most(300, 0.0)  # what waits on the disk counts as waiting
    store.gate.set()
    assert one.wait_until_idle(10)
    assert {info.key: store.get(info.key) for info in store.list("k")} == dict(list(contents.items())[:7])
    assert files_in(tmp_path / "s") == 0
    one.close()
    assert not (tmp_path / "s").exists()


def test_an_abandoned_queue_leaves_nothing_on_the_disk(tmp_path: Path) -> None:
    store, one = spilling(tmp_path)
    one.abandon()
    assert files_in(tmp_path / "s") == 0
    assert one.offer("k9", bytes(60))
    store.gate.set()
    assert one.wait_until_idle(10)
    one.close()


def test_a_file_that_is_lost_on_the_disk_stops_the_uploads(tmp_path: Path) -> None:
    store, one = spilling(tmp_path)
    next((tmp_path / "s").iterdir()).unlink()
    store.gate.set()
    assert one.wait_until_idle(10)
    with pytest.raises(TiStreamError, match="cannot be read"):
        one.check()
    one.close()
