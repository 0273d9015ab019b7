"""Processes that read one consumer over a recorded stream: one is stopped beyond its lease, one is killed, one is
started twice. Each change is acknowledged once, in order, and none is skipped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from apiserver.app import create_app
from reading.served.consumer_cursor import parse_consumer_cursor
from tests.kit.api_world import api_world
from tests.kit.log_builder import TENANT
from tests.kit.reader_programs import MEMBER
from tests.kit.recording import committed_rows
from tests.kit.stream_world import served
from tests.kit.waiting import eventually
from tistream.catalog.tenancy import consumers
from tistream.catalog.tenancy.consumers import CONSUMERS, add_consumer
from tistream.catalog.tenancy.log_readers import ReaderState

ROWS = 3000  # of the recording


class Member:
    """One process."""

    def __init__(self, url: str, name: str, path: Path) -> None:
        options = json.dumps({"member": name, "lease_s": 1, "limit": 300})
        command = [sys.executable, "-c", MEMBER, url, str(path), "feed", options]
        self.path = path
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)

    def has_batch(self) -> bool:
        """Whether it has written one."""
        return self.path.exists() and self.path.stat().st_size > 0

    def let_run(self) -> None:
        """It waits no longer before it acknowledges."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None

    def ends(self) -> tuple[int, bytes]:
        """Its exit status, and what it said."""
        said = self.process.communicate()[1]
        return self.process.returncode, said


@contextmanager
def member(url: str, name: str, path: Path) -> Iterator[Member]:
    """A process that has got its first batch."""
    made = Member(url, name, path)
    try:
        eventually(made.has_batch)
        yield made
    finally:
        with made.process:
            made.process.kill()


def accepted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """(partition, epoch, ts) of the acknowledgements that the service accepts from now on."""
    heard: list[tuple[int, int, int]] = []
    real = consumers.acknowledge

    def acknowledge(*given: Any, epoch: int, ts: int, **position: Any) -> Any:
        done = real(*given, epoch=epoch, ts=ts, **position)
        heard.append((done.number, epoch, ts))
        return done

    monkeypatch.setattr(consumers, "acknowledge", acknowledge)
    return heard


def acknowledged(heard: list[tuple[int, int, int]], paths: list[Path], start_ts: int) -> list[bytes]:
    """The changes of the batches that were acknowledged; each continues where the one before in its partition ended."""
    batches: dict[tuple[int, int, int], dict[str, Any]] = {}
    for said in (orjson.loads(line) for path in paths for line in path.read_bytes().splitlines()):
        cursor = parse_consumer_cursor(said["cursor"], TENANT, "feed")
        batches.setdefault((cursor.partition, cursor.epoch, cursor.ts), said)  # later ones are empty
    at: dict[int, int] = {}
    found: list[bytes] = []
    for partition, epoch, ts in heard:
        said = batches[partition, epoch, ts]
        if ts == at.get(partition):
            continue  # an empty page at the watermark
        assert said["after"] == at.get(partition, start_ts), "nothing is skipped or acknowledged again"
        at[partition] = ts
        found += said["rows"].splitlines()
    return [line for line in found if orjson.loads(line).get("type") != "resolved"]


def test_each_change_is_acknowledged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = accepted(monkeypatch)
    with (
        api_world(tmp_path, rows=committed_rows().slice(0, ROWS)) as world,
        served(create_app(world.services)) as server,
        ExitStack() as stack,
    ):
        half, end = world.log.cuts(2)
        world.log.build(4, upto=half)
        add_consumer(world.catalog, TENANT, "feed", None, partitions=3, target_ts=end)
        paths = [tmp_path / name for name in ("stopped", "killed", "first", "second")]

        def start(name: str, path: Path) -> Member:
            return stack.enter_context(member(server.url, name, path))

        stopped = start("a", paths[0])
        stopped.process.send_signal(signal.SIGSTOP)
        start("b", paths[1]).process.kill()  # it got its batch when the lease of a had ended
        first = start("c", paths[2])
        second = start("c", paths[3])
        first.let_run()
        assert b"started again elsewhere" in first.ends()[1]
        stopped.process.send_signal(signal.SIGCONT)
        stopped.let_run()
        second.let_run()
        world.log.flush(end)
        code, said = stopped.ends()
        assert code == 0
        assert b"fenced" in said, "its batch had come again elsewhere"
        assert second.ends()[0] == 0
        assert CONSUMERS.get(world.catalog, TENANT, "feed").state is ReaderState.FINISHED
        whole = [orjson.dumps(event) for event in world.events(end_ts=end) if event.get("type") != "resolved"]
    rows = acknowledged(heard, paths, world.log.start_ts)
    assert sorted(orjson.dumps(orjson.loads(line)) for line in rows) == sorted(whole)
