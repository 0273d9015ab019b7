"""The object store in a folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.objectstore_suite import ObjectStoreSuite
from tistream.errors import InvalidInput, ObjectNotFound, StoreUnavailable
from tistream.objectstore.factory import open_store
from tistream.objectstore.local import LocalStore
from tistream.objectstore.protocol import ObjectStore

#: Puts objects of 8 MB until it is killed; says so before the first.
WRITER = """
import sys
from pathlib import Path
from tistream.objectstore.local import LocalStore
store, data = LocalStore(Path(sys.argv[1])), b"0123456789abcdef" * 500_000
print("go", flush=True)
for n in range(10_000):
    store.put(f"folder/{n:06d}", data)
"""


class TestLocalStore(ObjectStoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return open_store(f"file://{tmp_path}/bucket")

    def test_a_killed_writer_leaves_no_part_of_an_object(self, tmp_path: Path) -> None:
        root = tmp_path / "bucket"
        with subprocess.Popen([sys.executable, "-c", WRITER, str(root)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"go\n"
            end = time.monotonic() + 60
            while not (root / "folder" / "000002").exists() and time.monotonic() < end:
                os.sched_yield()
            writer.send_signal(signal.SIGKILL)
        store = LocalStore(root)
        objects = list(store.list(""))
        assert len(objects) >= 3
        assert {info.size for info in objects} == {8_000_000}
        assert [info.key for info in objects] == [f"folder/{n:06d}" for n in range(len(objects))]

    def test_leftovers_are_not_listed_and_are_removed_when_old(self, tmp_path: Path) -> None:
        store = LocalStore(tmp_path)
        store.put("a", b"x")
        young, old = tmp_path / ".tmp" / "young", tmp_path / ".tmp" / "old"
        for leftover in (young, old):
            leftover.write_bytes(b"half")
        os.utime(old, (0, 0))
        assert [info.key for info in LocalStore(tmp_path).list("")] == ["a"]
        assert young.exists()
        assert not old.exists()

    def test_a_put_leaves_nothing_but_the_object(self, tmp_path: Path) -> None:
        store = LocalStore(tmp_path)
        store.put("a/b", b"x")
        store.put("a/b", b"x")
        files = [p for p in tmp_path.rglob("*") if p.is_file()]
        assert files == [tmp_path / "a" / "b"]

    def test_a_file_is_synced_before_it_has_its_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        steps: list[str] = []
        fsync, link = os.fsync, os.link

        def seen_fsync(handle: int) -> None:
            steps.append("sync " + os.path.relpath(os.readlink(f"/proc/self/fd/{handle}"), tmp_path).split("/")[0])
            fsync(handle)

        def seen_link(source: Path, target: Path) -> None:
            steps.append("link")
            link(source, target)

        store = LocalStore(tmp_path)
        monkeypatch.setattr(os, "fsync", seen_fsync)
        monkeypatch.setattr(os, "link", seen_link)
        store.put("a/b/c", b"x")
        store.put("a/b/d", b"x")
        assert steps == ["sync .tmp", "link", "sync a", "sync a", "sync .", "sync .tmp", "link", "sync a"]

    def test_a_folder_that_vanished_is_not_an_empty_store(self, tmp_path: Path) -> None:
        store = LocalStore(tmp_path / "mount")
        with pytest.raises(ObjectNotFound):
            store.get("a")
        shutil.rmtree(tmp_path / "mount")
        for ask in (lambda: store.get("a"), lambda: list(store.list("")), lambda: store.put("a", b"x")):
            with pytest.raises(StoreUnavailable) as caught:
                ask()
            assert caught.value.facts["determinate"] is True

    def test_a_full_disk_is_unavailable_and_nothing_happened(self, tmp_path: Path) -> None:
        import resource

        store = LocalStore(tmp_path)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        try:
            with pytest.raises(StoreUnavailable) as caught:
                store.put("a", b"x" * 2000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
        assert caught.value.facts == {"key": "a", "determinate": True}
        assert list(store.list("")) == []
        assert list((tmp_path / ".tmp").iterdir()) == []


def test_a_foreign_folder_is_only_read(tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "a").write_bytes(b"x")
    store = open_store(f"file://{tmp_path}", foreign=True)
    assert [info.key for info in store.list("v1/")] == ["v1/a"]
    assert store.get("v1/a") == b"x"
    changes: list[Callable[[], None]] = [lambda: store.put("v1/b", b""), lambda: store.delete("v1/a")]
    for change in changes:
        with pytest.raises(InvalidInput):
            change()
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a", "v1"]
    foreign = open_store(f"file://{tmp_path}/gone", foreign=True)
    with pytest.raises(StoreUnavailable):
        list(foreign.list("v1/"))
    assert not (tmp_path / "gone").exists()
