"""A tenant that is registered, pushed and pulled over a bucket that enforces who may do what; real programs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path

import pytest

from simulator.chaos.servers.processes import TiStreamProcess, Up, owner_key
from tests.kit.s3_doubles import BUCKET, FOLDER, GuardedS3, guarded_s3, settings
from tests.kit.served_recording import ServedRecording
from tests.kit.waiting import eventually
from tistream.client import connect

pytestmark = pytest.mark.slow

KEY = re.compile(r"tsk_[a-z2-7]{13}_[a-z2-7]{46}")
_PUTS = [f"arn:aws:s3:::{BUCKET}/{FOLDER}/{kind}/*" for kind in ("data_change_buffer", "seeds")]


class KeyedUp(Up):
    """A service that asks for keys and issues credentials for its bucket."""

    def __init__(self, folder: Path, server: GuardedS3) -> None:
        super().__init__(folder)
        role = server.make_role("pusher", [{"Effect": "Allow", "Action": "s3:PutObject", "Resource": _PUTS}])
        self.args = tuple("keys" if word == "none" else word for word in self.args)
        self._env |= settings(server, role)

    @cached_property
    def owner(self) -> str:
        return owner_key("--data", self.args[2])


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with guarded_s3(tmp_path_factory.mktemp("s3")) as server, KeyedUp(tmp_path_factory.mktemp("up"), server) as new_up:
        yield new_up


def test_a_recording_is_pushed_with_nothing_but_the_tenants_key(
    up: KeyedUp, recording: Path, tmp_path: Path, last_resolved_ts: int
) -> None:
    of = ("-c", "1", "-t", "1", "--url", up.url)
    owner = {"TISTREAM_KEY": up.owner}
    with TiStreamProcess("tenant", "register", *of, "--wait", log=tmp_path / "register.log", env=owner) as waiting:
        eventually(lambda: "start the pushers" in waiting.output(), waiting.output)
        (key,) = set(KEY.findall(waiting.output()))
        args = ("push", "--capture", str(recording), *of, "--speed", "max")
        with TiStreamProcess(*args, log=tmp_path / "push.log", env={"TISTREAM_KEY": key}) as pusher:
            assert pusher.wait(240) == 0, pusher.output()
        assert waiting.wait(240) == 0, waiting.output()
    assert "✓ session credentials are issued: 60 minutes" in waiting.output()
    bundle = json.loads(waiting.output()[: waiting.output().rindex("}\n") + 1])["push"]
    assert bundle["credentials"]["by"] == "service"
    with connect(up.url, key=up.owner) as client:
        cursor, rows, resolved_ts = None, 0, 0
        while resolved_ts < last_resolved_ts:
            page = client.tenant(1, 1).page(cursor=cursor, limit=50_000, wait_s=5)
            cursor, resolved_ts = page.next_cursor, page.resolved_ts
            rows += len(page.content.splitlines())
    assert rows > 12_000


def _pushes_or_ended(pusher: TiStreamProcess) -> bool:
    return "pushing: stores 1, 2, 3" in pusher.output() or not pusher.alive


def test_a_pusher_of_a_cluster_starts_again_without_reading_the_bucket(
    up: KeyedUp, recording: Path, tmp_path: Path
) -> None:
    with connect(up.url, key=up.owner) as client:
        key = client.tenant(1, 2).register()["push"]["key"]
    with ServedRecording(recording) as cluster:
        args = ("push", "--pd", cluster.pd_address, "--url", up.url, "-c", "1", "-t", "2")
        for n in (1, 2):
            log = tmp_path / f"push-{n}.log"
            more = ("--start-ts", str(cluster.start_ts))
            with TiStreamProcess(*args, *more, log=log, env={"TISTREAM_KEY": key}) as pusher:
                eventually(partial(_pushes_or_ended, pusher), pusher.output)
                assert pusher.alive, pusher.output()
