"""The planned fail-over of docs/howto/replicate-a-keyspace.md by the commands that it shows, against real processes: of
a keyspace to another cluster, and of tables to a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from simulator.raw_workload import RawProfile, raw_cluster
from simulator.serve.served import ServedCluster
from tests.kit.dead_letters import CANAL, is_of_acct, messages_in, without_build_time
from tests.kit.doc_blocks import Block, PagePlayer, blocks_of
from tests.kit.entry_log import Entry, EntryLog, entry_rows
from tests.kit.log_builder import LogBuilder, recording_end
from tests.kit.recording import expected
from tests.kit.service_cluster import ServiceCluster
from tests.kit.ticdc import message_text
from tests.kit.waiting import eventually
from tistream import ts as tso
from tistream.clock import SystemClock
from tistream.ids import Tenant
from tistream.objectstore.factory import open_store
from tistream.objectstore.protocol import ObjectStore
from tistream.tikv.core.api_versions import Api
from tistream.tikv.core.raw_messages import RawSpace
from tistream.tikv.pd import PdClient
from tistream.tikv.raw_client import RawClient

HOWTO = Path(__file__).parents[2] / "docs" / "howto" / "replicate-a-keyspace.md"
#: words of the page: a destination, a tenant and a timestamp
SINK, WHOSE, TARGET = "tikv://pd-1.recovery:2379,pd-2.recovery:2379", "-c 7 -t 2", "470735733173780480"
TARGETS = ("above the checkpoint", "at the checkpoint", "below the checkpoint")
WRITES, BEGIN_S = 300, 1_700_000_000
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceCluster]:
    folder = tmp_path_factory.mktemp("fail-over")
    with ServiceCluster(folder, f"sqlite:///{folder}/catalog.db") as new_cluster:
        new_cluster.start("meta-1", "api-1", "replicate-1")
        yield new_cluster


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A source with its log, and where it is replicated."""

    log: LogBuilder
    sink_uri: str
    cuts: tuple[int, int, int]  #: where the log ends first, the target, and where it ends at last
    there: Callable[[], object]  #: what is at the destination
    wanted: Callable[[int], object]  #: what is there when everything up to a timestamp is
    kept_ts: Callable[[], int | None]  #: what the destination says of its checkpoint; None when it keeps none


def keyspace_pair(cluster: ServiceCluster, tenant: Tenant, stack: ExitStack) -> Pair:
    """A keyspace and a recovery cluster."""
    entries = [
        Entry(tso.compose((BEGIN_S + n) * 1000), b"k%03d" % (n % 70), b"%d" % n if n % 9 else None)
        for n in range(WRITES)
    ]
    model = raw_cluster(RawProfile(keyspaces=(1,)), floor_ts=tso.compose(SystemClock().unix_ms()), regions=4)
    served = stack.enter_context(ServedCluster(model, api=Api.V2, keyspaces={"app": 1}))

    def there() -> dict[bytes, bytes]:
        with (
            closing(PdClient([served.pd_address])) as pd,
            closing(RawClient(pd, RawSpace(Api.V2, 1), clock=SystemClock())) as client,
        ):
            pages = list(client.scan())
        return {k: v for page in pages for k, v in zip(page.keys.to_pylist(), page.values.to_pylist(), strict=True)}

    def pairs_at(upto: int) -> dict[bytes, bytes]:
        newest = {entry.key: entry.value for entry in entries if entry.ts <= upto}
        return {key: value for key, value in newest.items() if value is not None}

    log = EntryLog(cluster.catalog, bucket(cluster), tenant=tenant, rows=entry_rows(entries)).register()
    return Pair(
        log=log, sink_uri=f"tikv://{served.pd_address}", cuts=(entries[99].ts, entries[199].ts, entries[-1].ts),
        there=there, wanted=pairs_at, kept_ts=lambda: None,
    )  # fmt: skip


def folder_pair(cluster: ServiceCluster, tenant: Tenant, folder: Path) -> Pair:
    """The recording's tables and a folder; shop.acct is looked at."""
    entries = [entry for entry in expected("ticdc-canal-json-tidb") if is_of_acct(entry)]
    at = [int(entry["commit_ts"]) for entry in entries]
    first, target = at[len(at) // 3], at[2 * len(at) // 3]
    log = LogBuilder(cluster.catalog, bucket(cluster), tenant=tenant).activate()

    def messages_at(upto: int) -> list[dict[str, Any]]:
        return without_build_time(message_text(e["msg"]) for e in entries if int(e["commit_ts"]) <= upto)

    def kept_ts() -> int:
        return int(json.loads((folder / "metadata").read_bytes())["checkpoint-ts"])

    return Pair(
        log=log, sink_uri=f"file://{folder}?{CANAL}", cuts=(first, target, recording_end()),
        there=lambda: messages_in(folder), wanted=messages_at, kept_ts=kept_ts,
    )  # fmt: skip


def bucket(cluster: ServiceCluster) -> ObjectStore:
    return open_store(f"file://{cluster.folder}/bucket")


@dataclass(frozen=True, kw_only=True)
class HowTo:
    """The page's commands about the changefeed `dr`, for a tenant, a destination and a timestamp of this test."""

    cluster: ServiceCluster
    tenant: Tenant
    player: PagePlayer

    @classmethod
    def of(cls, cluster: ServiceCluster, tenant: Tenant, sink_uri: str, target: int, folder: Path) -> HowTo:
        clean = {name: text for name, text in os.environ.items() if not name.startswith(("TISTREAM_", "AWS_"))}
        words = {SINK: sink_uri, WHOSE: f"-c {tenant.cluster_id} -t {tenant.tenant_id}", TARGET: str(target)}
        player = PagePlayer(folder, {**clean, "TISTREAM_URL": cluster.url}, words)
        return cls(cluster=cluster, tenant=tenant, player=player)

    def create(self) -> None:
        self._play(self._blocks()[0])

    def look(self) -> None:
        """What the page does between the creation and the fail-over."""
        blocks = self._blocks()[1:-1]
        assert any("changefeed verify dr" in block.text for block in blocks)
        for block in blocks:
            self._play(block)

    def drain(self) -> None:
        self._play(self._blocks()[-1])

    def say(self, command: str) -> str:
        """Play a command that is in a sentence of the page."""
        text = f"tistream {command} {WHOSE}"
        assert f"`{text}`" in HOWTO.read_text("utf-8")
        return self._play(Block(line=0, info="sh", text=text))

    def answer(self) -> httpx2.Response:
        path = f"/v1/clusters/{self.tenant.cluster_id}/tenants/{self.tenant.tenant_id}/changefeeds/dr"
        return httpx2.get(self.cluster.url + path, timeout=60)

    def wait_for(self, **facts: object) -> None:
        """Until the changefeed is so."""

        def shown() -> dict[str, Any]:
            answer = self.answer().json()
            return {name: answer.get(name) for name in facts}

        eventually(lambda: shown() == facts, lambda: f"{shown()}, wanted {facts}: {self.answer().text}")

    def _blocks(self) -> list[Block]:
        """From the creation to the end of the planned fail-over."""
        blocks = [
            block for block in blocks_of(HOWTO) if f" dr {WHOSE}" in block.text or f" {WHOSE} --start" in block.text
        ]
        (last,) = [n for n, block in enumerate(blocks) if f"--target-ts {TARGET}" in block.text]
        assert "changefeed create dr" in blocks[0].text
        return blocks[: last + 1]

    def _play(self, block: Block) -> str:
        return self.player.play(replace(block, info="sh"))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["keyspace", "folder"])
def test_a_changefeed_ends_at_its_target_by_the_commands_of_the_how_to(
    cluster: ServiceCluster, kind: str, target: str, tmp_path: Path
) -> None:
    tenant = Tenant({"keyspace": 7, "folder": 1}[kind], TARGETS.index(target) + 1)  # of its own
    with ExitStack() as stack:
        pair = (
            keyspace_pair(cluster, tenant, stack)
            if kind == "keyspace"
            else folder_pair(cluster, tenant, tmp_path / "lake")
        )
        begins, above, ends = pair.cuts
        target_ts = {"above": above, "at": begins, "below": begins - 1}[target.partition(" ")[0]]
        howto = HowTo.of(cluster, tenant, pair.sink_uri, target_ts, tmp_path)
        stack.callback(howto.player.close)
        pair.log.flush(begins)
        howto.create()
        howto.wait_for(checkpoint_ts=str(begins), state="normal")
        if target_ts > begins:
            howto.look()
            (said,) = json.loads(howto.say("lag --json"))
            assert said["resolved_ts"] == str(begins), "the watermark, from where a target is taken"
        howto.drain()
        reached = max(begins, target_ts)
        if target_ts > begins:
            howto.wait_for(checkpoint_ts=str(begins), target_ts=str(target_ts), state="normal")
            pair.log.flush(ends)
        howto.wait_for(checkpoint_ts=str(reached), target_ts=str(target_ts), state="finished")
        pair.log.flush(ends)
        assert pair.there() == pair.wanted(reached), "all of it, and nothing above"
        assert pair.wanted(reached) not in (pair.wanted(0), pair.wanted(ends))
        assert pair.kept_ts() in (None, reached)
        howto.say("changefeed remove dr")
        assert howto.answer().status_code == 404
        assert pair.there() == pair.wanted(reached)
