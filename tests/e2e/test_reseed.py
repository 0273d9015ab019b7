"""A tenant whose cluster has collected the history that it needs continues as another one, by one command that is
repeated; its readers learn where to begin, and find there what TiDB has."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulator.chaos.servers.processes import TiStreamProcess, Up, client, register
from tests.kit.replica import moments, same_rows
from tests.kit.served_recording import ServedRecording
from tests.kit.waiting import eventually
from tistream.client import Client
from tistream.errors import TenantDeleted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SPEED = 3  #: of the recording of 37 s
RESEED = ("tenant", "reseed", "-c", "1", "-t", "1", "--as", "2", "--yes")


@pytest.fixture
def cluster(recording: Path) -> Iterator[ServedRecording]:
    with ServedRecording(recording) as served:
        yield served


def push(cluster: ServedRecording, up: Up, tenant: int, folder: Path, *more: str) -> TiStreamProcess:
    args = ("push", "--pd", cluster.pd_address, "--url", up.url, "-c", "1", "-t", str(tenant))
    return TiStreamProcess(*args, *more, log=folder / f"push-{tenant}.log")


def run(up: Up, folder: Path, *args: str) -> tuple[int, str]:
    """A command's exit status and what it said."""
    log = folder / "command.log"
    log.unlink(missing_ok=True)
    with TiStreamProcess(*args, "--url", up.url, log=log) as command:
        return command.wait(180), command.output()


def resolved_ts(c: Client) -> int:
    return int(c.get("/v1/clusters/1/tenants/1")["resolved_ts"])


def fall_behind(cluster: ServedRecording, up: Up, folder: Path) -> str:
    """The first part of the recording is served; the rest is gone before a pusher could send it. A reader's cursor."""
    with push(cluster, up, 1, folder, "--start-ts", str(cluster.start_ts)) as pusher:
        eventually(lambda: "pushing: stores 1, 2, 3" in pusher.output(), pusher.output)
        playing = threading.Thread(target=lambda: cluster.play(speed=SPEED))
        playing.start()
        with client(up.url) as c:
            eventually(lambda: resolved_ts(c) > cluster.start_ts, pusher.output)
        assert playing.is_alive(), "the recording is over before the pusher is killed"
        pusher.kill()
        playing.join()
        with cluster.served.changing() as model:
            cluster.served.pd.holds.clear()
            cluster.served.pd.collect_garbage(model.now_ts)
        pusher.start()
        eventually(lambda: "tistream tenant reseed" in pusher.output(), pusher.output)
    with client(up.url) as c:
        return c.tenant(1, 1).page(start="latest").next_cursor


def test_a_tenant_that_fell_behind_for_good_continues_as_another(
    cluster: ServedRecording, expected: Path, tmp_path: Path
) -> None:
    (end,) = (moment for moment in moments(expected) if moment.label == "end")
    with Up(tmp_path) as up, client(up.url) as c:
        register(up.url)
        before, after = c.tenant(1, 1), c.tenant(1, 2)
        cursor = fall_behind(cluster, up, tmp_path)
        c.send("PATCH", "/v1/clusters/1/tenants/1", {"retention_s": 7200})
        c.post("/v1/clusters/1/tenants/1/consumers", {"consumer_id": "warehouse"})

        status, said = run(up, tmp_path, *RESEED, "--timeout", "0")
        assert (status, "[TS-1084]" in said) == (4, True), said
        assert before.page(start="earliest").lines(), "it is served until another one has its place"
        with push(cluster, up, 2, tmp_path, "--seed-rows"):
            status, said = run(up, tmp_path, *RESEED)
            assert (status, "tenant 1/2 has its place" in said) == (0, True), said
            assert "create consumer warehouse for tenant 1/2" in said
        status, said = run(up, tmp_path, *RESEED)
        assert (status, "replaced by 1/2 already" in said) == (0, True), said

        with pytest.raises(TenantDeleted) as refused:
            before.page(cursor=cursor)
        assert "as of" in refused.value.hint
        assert refused.value.facts["successor"] == "1/2"
        start_ts, served_ts = (int(str(refused.value.facts[n])) for n in ("successor_start_ts", "served_upto_ts"))
        assert served_ts < end.ts <= start_ts
        assert c.get("/v1/clusters/1/tenants/2")["retention_s"] == 7200
        for table in (table for table in end.tables if table["kind"] == "table"):
            rows = after.table(f"{table['db']}.{table['table']}").rows(as_of=start_ts)
            same_rows(end, table, list(rows))
        assert after.page(start=start_ts).resolved_ts >= start_ts
