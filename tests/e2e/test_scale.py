"""Sorters and dispatchers come and go under load, in processes of their own on MariaDB: what they push is pulled as
that TiDB answered, and only what must move moves."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from simulator.chaos.servers.mariadb import MariaDBServer, mariadb
from simulator.chaos.servers.processes import pull_all, register
from tests.kit.service_cluster import ServiceCluster, moved, owners
from tests.kit.ticdc import CANAL, compare_canal

pytestmark = pytest.mark.timeout(600)  # a dozen processes, each of which takes long to start on a busy machine

SETTINGS = {"TISTREAM_META_DATA_TASKS": "6"}
MORE_SORTERS = ("sorter-3", "sorter-4")
MORE_DISPATCHERS = ("dispatcher-2", "dispatcher-3")


def settled(cluster: ServiceCluster, seconds: float = 4.0) -> None:
    """Wait until nothing has moved for a while."""
    seen, since = (cluster.tasks(), cluster.stores()), time.monotonic()

    def rests() -> bool:
        nonlocal seen, since
        now = (cluster.tasks(), cluster.stores())
        if now != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() - since > seconds

    cluster.wait_for("the cluster rests", rests)


def wait_until_it_flows(cluster: ServiceCluster) -> None:
    """Wait until one dispatcher has the three stores, two sorters have the tasks, and these move."""
    cluster.wait_for("there are three stores", lambda: len(cluster.stores()) == 3)
    cluster.wait_for("one has the stores", lambda: owners(cluster.stores()) == {"dispatcher-1"})
    cluster.wait_for("two have the tasks", lambda: owners(cluster.tasks()) == {"sorter-1", "sorter-2"})
    began = cluster.reached()
    cluster.wait_for("something flows", lambda: cluster.reached() > began > 0)


def test_sorters_and_dispatchers_are_added_drained_and_killed(
    tmp_path: Path, recording: Path, expected: Path, last_resolved_ts: int
) -> None:
    with mariadb() as database, ServiceCluster(tmp_path, database, SETTINGS) as cluster:
        cluster.start("meta-1", "api-1", "dispatcher-1", "sorter-1", "sorter-2")
        register(cluster.url)
        pusher = cluster.push("--capture", str(recording), "--speed", "1.5")
        wait_until_it_flows(cluster)

        tasks, stores = cluster.tasks(), cluster.stores()
        cluster.start(*MORE_SORTERS, *MORE_DISPATCHERS)
        cluster.wait_for("all have tasks", lambda: {*MORE_SORTERS} <= owners(cluster.tasks()))
        cluster.wait_for("all have stores", lambda: {*MORE_DISPATCHERS} <= owners(cluster.stores()))
        settled(cluster)
        more_tasks, more_stores = cluster.tasks(), cluster.stores()
        for was, now, new in ((tasks, more_tasks, MORE_SORTERS), (stores, more_stores, MORE_DISPATCHERS)):
            went = moved(was, now)
            assert went.keys() >= {key for key, (owner, _) in now.items() if owner in new}
            assert sum(went.values()) <= len(now) / 2 + 2, "most of them stay"

        leaving = [cluster.processes[name] for name in (*MORE_SORTERS, *MORE_DISPATCHERS)]
        for process in leaving:
            process.terminate()
        assert [process.wait(90) for process in leaving] == [0, 0, 0, 0]
        fewer_tasks, fewer_stores = cluster.tasks(), cluster.stores()
        assert owners(fewer_tasks) == {"sorter-1", "sorter-2"}
        assert owners(fewer_stores) == {"dispatcher-1"}
        for was, now, old in (
            (more_tasks, fewer_tasks, MORE_SORTERS),
            (more_stores, fewer_stores, MORE_DISPATCHERS),
        ):
            went = moved(was, now)
            assert went.keys() >= {key for key, (owner, _) in was.items() if owner in old}
            assert sum(went.values()) <= len(now) / 2 + 2, "most of them stay"
        assert "drain incomplete" not in "".join(process.output() for process in leaving)

        cluster.processes["sorter-2"].kill()
        took_s = cluster.wait_for("another takes over", lambda: owners(cluster.tasks()) == {"sorter-1"})
        print(f"taken over {took_s:.1f} s after SIGKILL")  # shown by pytest -s
        assert pusher.wait(240) == 0, pusher.output()
        canal = pull_all(cluster.url, last_resolved_ts, format="canal-json", **CANAL)
        assert compare_canal(expected, canal.splitlines()) > 12_000


def test_while_the_catalog_is_away_nothing_is_lost_and_after_it_nothing_is_taken_over(
    tmp_path: Path, recording: Path, expected: Path, last_resolved_ts: int
) -> None:
    (tmp_path / "mariadb").mkdir()
    database = MariaDBServer(tmp_path / "mariadb")
    with ExitStack() as ends:
        ends.callback(database.stop)
        database.start()
        cluster = ends.enter_context(ServiceCluster(tmp_path, database.url(), SETTINGS))
        cluster.start("meta-1", "api-1", "dispatcher-1", "sorter-1", "sorter-2")
        register(cluster.url)
        pusher = cluster.push("--capture", str(recording), "--speed", "1.5")
        wait_until_it_flows(cluster)
        settled(cluster, 1.0)
        tasks, stores, before = cluster.tasks(), cluster.stores(), cluster.reached()
        database.stop()
        time.sleep(12)  # longer than a lease
        database.start()
        cluster.wait_for("it goes on", lambda: cluster.reached() > before + 5)
        assert moved(stores, cluster.stores()) == {}
        assert sum(moved(tasks, cluster.tasks()).values()) <= 2, "what the load asks for, and no takeover"
        assert pusher.wait(240) == 0, pusher.output()
        canal = pull_all(cluster.url, last_resolved_ts, format="canal-json", **CANAL)
        assert compare_canal(expected, canal.splitlines()) > 12_000
