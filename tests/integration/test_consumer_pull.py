"""`tistream pull --consumer` and the client's `Consumer`, with real processes: one is killed with SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from apiserver.app import create_app
from tests.kit.api_world import api_world
from tests.kit.log_builder import TENANT
from tests.kit.stream_world import served
from tests.kit.waiting import eventually
from tistream.catalog.database import tables
from tistream.catalog.tenancy.consumers import CONSUMERS, add_consumer, parts_of
from tistream.client import connect
from tistream.errors import Fenced

COMMAND = [str(Path(sys.executable).with_name("tistream")), "pull", "--consumer", "feed"]


def test_members_take_over_from_one_that_is_killed(tmp_path: Path) -> None:
    with api_world(tmp_path) as world, served(create_app(world.services)) as server, connect(server.url) as client:
        world.log.build(4, upto=world.log.cuts(2)[0])
        add_consumer(world.catalog, TENANT, "feed", None, partitions=3)
        first, second = tmp_path / "first", tmp_path / "second"
        with first.open("wb") as out:
            words = ["--member", "a", "--lease", "1", "--follow", "--url", server.url]
            killed = subprocess.Popen([*COMMAND, *words], stdout=out)
        eventually(lambda: first.stat().st_size > 0)
        late = client.tenant(1, 1).consumer("feed", member="c", lease_s=60, limit=500)
        eventually(lambda: late.pull(wait_s=1) is not None)
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        world.log.flush(world.log.cuts(2)[1])
        assert {p.member for p in parts_of(world.catalog, TENANT)["feed"].partitions} == {"a", "c"}
        with world.catalog.transaction() as conn:
            conn.execute(tables.consumer_members.update().values(expires_ms=1))  # long after
        held = late.pull()
        assert held is not None
        with second.open("wb") as out:
            subprocess.run([*COMMAND, "--member", "c", "--url", server.url], stdout=out, check=True)
        with pytest.raises(Fenced):
            late.acknowledge(held)  # the command was a second start of its member
        resolved = world.services.served(TENANT).resolved
        assert CONSUMERS.get(world.catalog, TENANT, "feed").checkpoint_ts == resolved
        assert parts_of(world.catalog, TENANT)["feed"].members == (), "the last one left in order"
        whole = {orjson.dumps(event) for event in world.events() if event.get("type") != "resolved"}
        written = [orjson.loads(line) for path in (first, second) for line in path.read_bytes().splitlines()]
        lines = {orjson.dumps(line) for line in written if line.get("type") != "resolved"}
        assert lines == whole, "nothing is skipped"
