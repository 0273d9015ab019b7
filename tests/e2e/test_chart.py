"""The chart as it is written, from the image of the Dockerfile: registered, pushed, pulled, watched, stopped."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.kit.console_look import chromium
from tests.kit.pods.cluster import Pod
from tests.kit.pods.deployed import MAINTAIN, SERVICES, SPARK, Deployed, Reader, deployed
from tests.kit.waiting import eventually
from tistream import ts
from tistream.client import connect
from tistream.http.auth.core.keys import parse_key

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the image is built first
expect.set_options(timeout=30_000)  # a busy machine is slow, not wrong


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    with deployed(tmp_path_factory.mktemp("chart")) as new_world:
        yield new_world


@pytest.fixture(scope="module")
def pusher(world: Deployed) -> Pod:
    """Of a tenant that was registered in the console with the first key."""
    with chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(60_000)
        url = world.url
        page.goto(f"{url}/login?next=/tenants/register")
        page.get_by_label("API key").fill(world.owner)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{url}/tenants/register", wait_until="load")  # with the form's script
        page.get_by_label("Cluster id").fill("1")
        page.get_by_label("Tenant id").fill("1")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Tenant 1/1 is registered")).to_be_focused()
        key = page.get_by_role("region", name="The key", exact=True).inner_text()
    parse_key(key)  # raises unless it is one
    world.cluster.secret("tistream-push-orders", {"api-key": key})
    world.cluster.apply()
    (pod,) = world.cluster.of("pusher")
    return pod


@pytest.fixture(scope="module")
def reader(world: Deployed, pusher: Pod) -> Reader:
    return reader_of(world)


def reader_of(world: Deployed) -> Reader:
    """With a key that may only read this tenant."""
    with connect(world.url, key=world.owner) as client:
        key = client.post("/v1/keys", {"name": "reader", "role": "consumer", "cluster_id": 1, "tenant_id": 1})
    return Reader(world, key["key"])


def pulled_beyond(reader: Reader, ts_: int) -> bool:
    reader.pull()
    return reader.resolved_ts > ts_


def test_every_service_is_ready_and_compiles_nothing(world: Deployed) -> None:
    for role, pods in SERVICES.items():
        assert [pod.container.is_ready for pod in world.cluster.of(role)] == [True] * pods
    for pod in world.cluster.pods.values():
        assert '"level": "warning"' not in pod.container.output(), pod.container.output()


def test_a_pusher_is_ready_with_the_key_from_the_console(world: Deployed, pusher: Pod) -> None:
    world.ready(pusher)


def test_what_is_committed_is_pushed_with_session_credentials_and_pulled(world: Deployed, reader: Reader) -> None:
    (pusher,) = world.cluster.of("pusher")
    assert not [name for name in pusher.container.spec.env if name.startswith("AWS_")]

    def enough() -> bool:
        reader.pull()
        return sum(reader.read.values()) > 200

    eventually(enough, lambda: f"{reader.resolved_ts} {reader.read}\n{world.cluster.outputs()}")
    assert not reader.has_more()
    assert not reader.lacks()


def test_prometheus_sees_every_pod_and_the_lag(world: Deployed) -> None:
    world.prometheus.discover()
    names = set(world.cluster.pods)
    eventually(
        lambda: {labels["pod"] for labels, up in world.prometheus.query("up") if up == 1} == names,
        lambda: world.prometheus.query("up"),
    )
    lag = "max(tistream_checkpoint_lag_seconds{tenant='1'})"
    eventually(lambda: [True for _, value in world.prometheus.query(lag) if 0 < value < 15], world.cluster.outputs)
    assert not [alert for alert in world.prometheus.firing() if alert[0] == "TiStreamProcessDown"]


def test_ports_that_ask_for_no_key_are_reached_by_their_own_alone(world: Deployed) -> None:
    cluster = world.cluster
    cluster.visitor("stranger", {"app.kubernetes.io/instance": "tistream", "app.kubernetes.io/component": "sorter"})
    (pusher,), (sorter, _), (dispatcher, _), (api, _) = map(cluster.of, ("pusher", "sorter", "dispatcher", "api"))
    assert world.connects(sorter.name, dispatcher.address, 8712)
    assert world.connects("prometheus", dispatcher.address, 9464)
    assert world.connects("stranger", api.address, 8711)
    for name in (pusher.name, api.name, "stranger", "prometheus"):
        assert not world.connects(name, dispatcher.address, 8712), name
    for name in (pusher.name, sorter.name, "stranger"):
        assert not world.connects(name, api.address, 9464), name


def test_a_container_writes_to_its_volumes_alone_and_its_health_check_passes(world: Deployed) -> None:
    places = "/ /etc /opt/tistream /opt/tistream/kernels /tmp /var/lib/tistream"
    script = f"id -u; for place in {places}; do touch $place/x 2>&- && echo $place; done; true"
    for role in ("api", "sorter", "pusher"):
        pod = world.cluster.of(role)[0]
        assert world.run_beside(pod, ["/bin/sh", "-c", script + "; true"]).split() == [
            "10001",
            "/tmp",
            "/var/lib/tistream",
        ]
        world.run_beside(pod, ["/bin/sh", "-c", "rm /tmp/x /var/lib/tistream/x"])
        world.run_beside(pod, world.image.health)


def test_an_alert_fires_while_the_node_of_a_sorter_hangs_and_clears(world: Deployed, reader: Reader) -> None:
    sorter = world.cluster.of("sorter")[0]
    alert = ("TiStreamProcessDown", sorter.name)
    sorter.container.hang()
    eventually(lambda: alert in world.prometheus.firing(), world.prometheus.firing)
    sorter.container.resume()
    eventually(lambda: alert not in world.prometheus.firing(), world.prometheus.firing)


def test_a_scheduled_compaction_runs_on_spark_and_the_role_ends_in_order(world: Deployed, reader: Reader) -> None:
    cluster = world.cluster
    cluster.scale(MAINTAIN, 0)  # it would do the jobs, too
    now_ts = ts.compose(int(time.time() * 1000))
    eventually(lambda: pulled_beyond(reader, now_ts) and reader.read.total() > 100, cluster.outputs)
    before = reader.all_rows()
    cluster.scale(SPARK, 1)
    (spark,) = cluster.of("spark")
    world.ready(spark)
    done = f"SELECT 1 FROM jobs WHERE state = 'done' AND bytes_read > 0 AND holder LIKE '{spark.name}/%'"
    eventually(lambda: world.rows(done), lambda: (world.rows("SELECT * FROM jobs"), spark.container.output()[-3000:]))
    assert reader.all_rows() == before != b""
    assert cluster.delete(spark.name) == 0, spark.container.output()
    world.ready(cluster.pods[spark.name])
    cluster.scale(SPARK, 0)
    assert world.rows(f"SELECT kind, state FROM workers WHERE worker_id = '{spark.name}'") == [("spark", "gone")]
    cluster.scale(MAINTAIN, 1)


def test_the_log_is_compacted_as_scheduled_and_retention_advances(world: Deployed, reader: Reader) -> None:
    done = "SELECT bytes_read FROM jobs WHERE kind = 'merge' AND state = 'done' AND bytes_read > 0"
    eventually(lambda: world.rows(done), lambda: world.rows("SELECT * FROM jobs"))
    with connect(world.url, key=world.owner) as client:
        path = "/v1/clusters/1/tenants/1"
        began = int(client.get(f"{path}/retention")["earliest_ts"])
        client.send("PATCH", path, {"retention_s": 10})

        def advanced() -> bool:
            reader.pull()  # who keeps up loses nothing
            return int(client.get(f"{path}/retention")["earliest_ts"]) > max(began, world.start_ts)

        eventually(advanced, lambda: client.get(f"{path}/retention"))
        client.send("PATCH", path, {"retention_s": 0})


@pytest.mark.parametrize("role", [*SERVICES, "pusher"])
def test_a_pod_ends_in_order_and_another_is_ready_soon(world: Deployed, reader: Reader, role: str) -> None:
    """In less than 10 s on a machine with nothing else to do, where imports take one: twice what a start takes. It
    compiles nothing, and waits for no lease."""
    before = world.cluster.of(role)[0]
    began = time.monotonic()
    world.run_beside(before, ["python", "-c", "import fastapi, numba, polars, pyarrow.flight, sqlalchemy"])
    imports_s = time.monotonic() - began
    began = time.monotonic()
    assert world.cluster.delete(before.name) == 0, before.container.output()
    ended_s = time.monotonic() - began
    after = world.cluster.pods[before.name]
    ready_s = world.ready(after)
    print(f"{role}: ended after {ended_s:.1f} s, the next ready after {ready_s:.1f} s; imports take {imports_s:.1f} s")
    assert ready_s < 4 + 6 * imports_s


def test_the_log_is_resolved_on_and_nothing_came_twice(world: Deployed, reader: Reader) -> None:
    now_ts = ts.compose(int(time.time() * 1000))
    eventually(lambda: pulled_beyond(reader, now_ts), world.cluster.outputs)
    assert sum(reader.read.values()) > 200
    assert not reader.has_more()
    assert not reader.lacks()
