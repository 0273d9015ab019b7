"""Every place that opens an address for a caller, with every kind of target that it must refuse.
`tests/unit/outbound/test_openers.py` lists all places of the code that open an address."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from destinations.opening import open_destination
from destinations.protocol import Share
from destinations.storage.files import BucketFiles
from destinations.storage.settings import read_settings
from destinations.tikv.destination import open_tikv
from destinations.uri import parse_sink_uri
from simulator.serve.served import CLUSTER_ID
from tests.kit.auth_site import MINE, Site, auth_site
from tests.kit.lane_feed import keyspaces
from tistream.catalog.rows.kinds import Keyspace, TenantKind
from tistream.catalog.tenancy.targets import allow_target, disallow_target, policy_of
from tistream.catalog.tenancy.tenants import begin_tenant, get_tenant, register_tenant
from tistream.clock import SystemClock
from tistream.errors import InvalidInput
from tistream.http.auth.core.roles import Role
from tistream.ids import Tenant
from tistream.outbound.policy import OPERATED, Policy, Terms
from tistream.outbound.rules import Rule, TargetRefused

RAW, HIS = Tenant(31, 1), Tenant(31, 2)
SECRET = "AN INTERNAL PAGE"


class Listening:
    """A server that counts its connections, and answers each request with a secret page."""

    def __init__(self, status: int = 200) -> None:
        self.heads: list[bytes] = []
        self._status = status
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                one, _ = self._socket.accept()
            except OSError:
                return
            with one:
                one.settimeout(0.5)
                try:
                    self.heads.append(one.recv(4000))
                    head = f"HTTP/1.1 {self._status} X\r\nContent-Length: {len(SECRET)}\r\nConnection: close"
                    one.sendall(f"{head}\r\n\r\n{SECRET}".encode())
                except OSError:
                    continue

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with auth_site(tmp_path_factory.mktemp("site")) as made:
        register_tenant(made.parts.catalog, RAW, kind=TenantKind.RAW, keyspace=Keyspace(id=1))
        register_tenant(made.parts.catalog, HIS, kind=TenantKind.RAW, keyspace=Keyspace(id=2))
        yield made


@pytest.fixture(scope="module")
def listening() -> Iterator[Listening]:
    made = Listening()
    yield made
    made.close()


KEYS = "access-key=T&secret-access-key=S"
FORBIDDEN = {
    "the machine's role": "s3://bucket/p?x=y",
    "another server with the machine's role": "s3://bucket/p?endpoint=http://127.0.0.1:{port}",
    "a bucket that is not allowed": "s3://bucket/p?" + KEYS,
    "a server inside": "s3://bucket/p?endpoint=http://127.0.0.1:{port}&" + KEYS,
    "a server inside by name": "s3://bucket/p?endpoint=http://localhost:{port}&" + KEYS,
    "a server inside in decimal": "s3://bucket/p?endpoint=http://2130706433:{port}&" + KEYS,
    "a server inside by IPv6": "s3://bucket/p?endpoint=http://[::ffff:127.0.0.1]:{port}&" + KEYS,
    "metadata of the cloud": "s3://bucket/p?endpoint=http://169.254.169.254&" + KEYS,
    "a closed port": "s3://bucket/p?endpoint=http://127.0.0.1:1&" + KEYS,
    "a folder of the machine": "file:///tmp/elsewhere?x=y",
    "a folder of the log": "file://{log}/committed?x=y",
}
FORBIDDEN_CLUSTERS = {
    "an address inside": "tikv://127.0.0.1:{port}",
    "one inside by name": "tikv://localhost:{port}",
    "a closed port": "tikv://127.0.0.1:1",
    "a name that does not resolve": "tikv://nobody.invalid:2379",
    "certificates of the machine": "tikv://127.0.0.1:{port}?ca-path=/etc/hostname",
    "a key of the machine": "tikv://127.0.0.1:{port}?cert-path=/etc/hostname&key-path=/etc/hostname",
    "metadata of the cloud": "tikv://169.254.169.254:80",
}


def path_of(tenant: Tenant) -> str:
    return f"/v1/clusters/{tenant.cluster_id}/tenants/{tenant.tenant_id}/changefeeds"


def filled(uri: str, port: int, site: Site) -> str:
    log = site.parts.settings.object_store.url.removeprefix("file://")
    return uri.format(port=port, log=log).replace("x=y", "protocol=csv")


def with_protocol(uri: str) -> str:
    return uri if "protocol" in uri else f"{uri}&protocol=csv"


@pytest.fixture(scope="module")
def paused(site: Site, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a changefeed of an operator that is paused."""
    folder = tmp_path_factory.mktemp("lake")
    new = {"changefeed_id": "paused", "sink_uri": f"file://{folder}/lake?protocol=csv"}
    site.ask("POST", path_of(MINE), site.key(Role.OWNER), json=new).raise_for_status()
    site.ask("POST", f"{path_of(MINE)}/paused:pause", site.key(Role.OWNER)).raise_for_status()
    return f"{path_of(MINE)}/paused"


@pytest.fixture
def no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(host: str, *args: Any, **more: Any) -> None:
        raise AssertionError(f"the name {host} was resolved")

    monkeypatch.setattr(socket, "getaddrinfo", asked)


@pytest.mark.usefixtures("no_names")
@pytest.mark.parametrize("kind", FORBIDDEN)
@pytest.mark.parametrize("place", ["create", "create dead letters", "update", "update dead letters"])
def test_a_place_refuses_what_no_operator_has_allowed(
    site: Site, listening: Listening, paused: str, kind: str, place: str
) -> None:
    """With one answer, whatever is there: nothing is connected to, and no name is resolved."""
    allow_target(site.parts.catalog, MINE, "s3://allowed")
    key, uri = site.key(Role.TENANT_ADMIN, MINE), filled(FORBIDDEN[kind], listening.port, site)
    letters = uri.replace("?protocol=csv", "")
    body = {
        "create": {"changefeed_id": "new", "sink_uri": with_protocol(uri)},
        "create dead letters": {
            "changefeed_id": "new", "sink_uri": f"s3://allowed/x?protocol=csv&{KEYS}", "dead_letter": letters,
        },
        "update": {"sink_uri": with_protocol(uri)},
        "update dead letters": {"dead_letter": letters},
    }[place]  # fmt: skip
    answer = site.ask("POST", path_of(MINE) if "create" in place else f"{paused}:update", key, json=body)
    assert answer.status_code == 403, answer.text
    assert answer.json()["code"] in ("TS-1081", "TS-1085")
    assert listening.heads == []
    assert not Path("/tmp/elsewhere").exists()


@pytest.mark.usefixtures("no_names")
@pytest.mark.parametrize("kind", FORBIDDEN_CLUSTERS)
def test_a_cluster_that_no_operator_has_allowed_is_refused(site: Site, listening: Listening, kind: str) -> None:
    key, uri = site.key(Role.TENANT_ADMIN, RAW), FORBIDDEN_CLUSTERS[kind].format(port=listening.port)
    answer = site.ask("POST", path_of(RAW), key, json={"changefeed_id": "x", "sink_uri": uri})
    assert answer.status_code == 403, answer.text
    assert listening.heads == []


@pytest.mark.usefixtures("no_names")
def test_an_operator_does_not_write_into_the_log_either(site: Site) -> None:
    log = site.parts.settings.object_store.url
    for uri in (f"{log}?protocol=csv", f"{log}/x?protocol=csv", f"{log}/..?protocol=csv"):
        answer = site.ask("POST", path_of(MINE), site.key(Role.OWNER), json={"changefeed_id": "x", "sink_uri": uri})
        assert (answer.status_code, answer.json()["code"]) == (403, "TS-1085"), answer.text


def test_only_an_operator_allows_targets_and_each_is_in_the_history(site: Site) -> None:
    path = "/v1/clusters/2/tenants/7/targets"
    owner, admin = site.key(Role.OPERATOR), site.key(Role.TENANT_ADMIN, Tenant(2, 7))
    new = {"target": "https://minio.corp:9000/lake"}
    assert site.ask("POST", path, admin, json=new).status_code == 403
    for _ in range(2):
        made = site.ask("POST", path, owner, json=new)
        assert made.json() == {"targets": [new["target"]], "of_deployment": []}
    assert site.get(path, admin).json() == made.json()
    assert site.ask("POST", path, owner, json={"target": "gopher://x"}).status_code == 400
    assert site.ask("DELETE", path, admin, params=new).status_code == 403
    assert site.ask("DELETE", path, owner, params=new).json()["targets"] == []
    assert site.ask("DELETE", path, owner, params=new).status_code == 404
    kinds = [
        item["kind"] for item in site.get("/v1/events?kind=tenant&cluster_id=2&tenant_id=7", owner).json()["items"]
    ]
    assert kinds[:2] == ["tenant.disallowed", "tenant.allowed"]


def test_a_tenant_has_so_many_targets_at_most(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tistream.catalog.tenancy.targets.TARGETS_MAX", 1)
    path, owner = "/v1/clusters/2/tenants/7/targets", site.key(Role.OWNER)
    assert site.ask("POST", path, owner, json={"target": "s3://one"}).status_code == 200
    assert site.ask("POST", path, owner, json={"target": "s3://two"}).status_code == 400
    site.ask("DELETE", path, owner, params={"target": "s3://one"}).raise_for_status()


@pytest.mark.parametrize("status", [200, 301, 400, 403, 404, 500])
def test_a_server_that_is_allowed_gets_the_callers_credentials_alone_and_its_page_is_not_shown(
    site: Site, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the service's keys and token, nor its own server; and of an answer nothing but S3's codes."""
    monkeypatch.setattr("destinations.storage.files._RETRY", {"max_retries": 0})
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIASERVICE", "AWS_SECRET_ACCESS_KEY": "service", "AWS_SESSION_TOKEN": "THE-TOKEN",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with closing(Listening(status)) as server:
        rule = f"http://127.0.0.1:{server.port}/hers"
        allow_target(site.parts.catalog, MINE, rule)
        uri = f"s3://hers/x?protocol=csv&endpoint=http://127.0.0.1:{server.port}&{KEYS}"
        new = {"changefeed_id": "allowed", "sink_uri": uri}
        answer = site.ask("POST", path_of(MINE), site.key(Role.TENANT_ADMIN, MINE), json=new)
        assert answer.status_code == 503, answer.text
        assert SECRET not in answer.text
        assert [b"Credential=T/" in head for head in server.heads] == [True] * max(1, len(server.heads))
        assert not any(word in head for head in server.heads for word in (b"THE-TOKEN", b"AKIASERVICE"))
        disallow_target(site.parts.catalog, MINE, rule)
        assert site.ask("POST", path_of(MINE), site.key(Role.TENANT_ADMIN, MINE), json=new).status_code == 403


def test_a_bucket_of_aws_is_not_that_of_the_services_own_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS_ENDPOINT is where the service has its log."""
    with closing(Listening()) as server:
        monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{server.port}")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        settings = read_settings(parse_sink_uri(f"s3://hers/x?protocol=csv&region=eu-central-1&{KEYS}"))
        assert settings.s3 is not None
        made = BucketFiles(settings.s3, "s3://hers/x", Policy(terms=Terms(), is_operated=False))
        assert made._bucket.config["endpoint"] == "https://s3.eu-central-1.amazonaws.com"
        assert server.heads == []


def test_what_is_behind_an_address_is_not_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator has allowed a network: an open port reads as a closed one."""
    monkeypatch.setattr("destinations.tikv.destination._PD_PATIENCE_S", 0.1)
    allow_target(site.parts.catalog, RAW, "tikv://127.0.0.1")
    key, texts = site.key(Role.TENANT_ADMIN, RAW), set()
    with closing(Listening()) as server, closing(socket.create_server(("127.0.0.1", 0))) as free:
        closed = free.getsockname()[1]
        free.close()
        for port in (server.port, closed):
            new = {"changefeed_id": "x", "sink_uri": f"tikv://127.0.0.1:{port}"}
            answer = site.ask("POST", path_of(RAW), key, json=new)
            assert answer.status_code == 503, answer.text
            texts.add(answer.text.replace(str(port), "PORT"))
    assert len(texts) == 1
    disallow_target(site.parts.catalog, RAW, "tikv://127.0.0.1")


def test_clusters_that_are_captured_are_no_targets_of_tenants(site: Site) -> None:
    allow_target(site.parts.catalog, RAW, "tikv://127.0.0.1")
    with keyspaces(hers=1, his=2) as source:

        def create(keyspace: str, role: Role, tenant: Tenant | None) -> Any:
            new = {"changefeed_id": f"x-{keyspace}", "sink_uri": f"tikv://{source.pd_address}?keyspace={keyspace}"}
            return site.ask("POST", path_of(RAW), site.key(role, tenant), json=new)

        before = create("his", Role.TENANT_ADMIN, RAW)
        assert (before.status_code, before.json()["code"]) == (403, "TS-1085"), "no pusher has said which cluster it is"
        begin_tenant(site.parts.catalog, HIS, 2, 0, CLUSTER_ID)
        for keyspace in ("his", "hers"):
            answer = create(keyspace, Role.TENANT_ADMIN, RAW)
            assert (answer.status_code, answer.json()["code"]) == (403, "TS-1085"), answer.text
        made = create("his", Role.OWNER, None)
        assert made.status_code == 201, f"an operator may, to turn a replication round: {made.text}"
        site.ask("DELETE", f"{path_of(RAW)}/x-his", site.key(Role.OWNER)).raise_for_status()
    disallow_target(site.parts.catalog, RAW, "tikv://127.0.0.1")


def test_stores_that_a_pd_names_are_held_against_the_same_rule() -> None:
    share = Share(tenant=RAW, changefeed_id="x", number=0, of=1)
    with keyspaces(hers=1) as served:
        for rules, is_opened in (([f"tikv://{served.pd_address}"], False), (["tikv://127.0.0.1"], True)):
            policy = Policy(terms=Terms(), rules=tuple(map(Rule.parse, rules)), is_operated=False)
            uri = parse_sink_uri(f"tikv://{served.pd_address}?keyspace=hers")
            with closing(open_tikv(uri, share, Keyspace(id=1), SystemClock(), policy)) as there:
                if is_opened:
                    assert there.check()
                    continue
                with pytest.raises(TargetRefused):
                    there.check()


def test_another_cluster_behind_the_same_name_is_refused_by_the_worker(site: Site) -> None:
    with keyspaces(hers=1) as served:
        uri, row = f"tikv://{served.pd_address}?keyspace=hers", get_tenant(site.parts.catalog, RAW)
        for cluster_id, is_opened in ((CLUSTER_ID, True), (CLUSTER_ID + 1, False)):
            options = f'{{"sink_cluster": {cluster_id}}}'
            there = open_destination(uri, row, RAW, "x", 0, 1, SystemClock(), OPERATED, options)
            with closing(there):
                if is_opened:
                    assert there.check()
                    continue
                with pytest.raises(InvalidInput, match="another cluster"):
                    there.check()


def test_a_name_is_connected_to_at_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the policy can resolve this name: gRPC does not ask again."""
    share = Share(tenant=RAW, changefeed_id="x", number=0, of=1)
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo",
        lambda host, *args, **more: real("127.0.0.1" if host == "pd.invalid" else host, *args, **more),
    )  # fmt: skip
    terms = Terms.of("tikv://pd.invalid tikv://127.0.0.1", "127.0.0.0/8", store_url="", catalog_url="")
    with keyspaces(hers=1) as served:
        port = served.pd_address.rpartition(":")[2]
        uri = parse_sink_uri(f"tikv://pd.invalid:{port}?keyspace=hers")
        policy = Policy(terms=terms, is_operated=False)
        with closing(open_tikv(uri, share, Keyspace(id=1), SystemClock(), policy)) as there:
            assert there.check()


def test_a_worker_opens_what_is_allowed_when_it_opens_it(site: Site) -> None:
    """A rule that is gone holds for changefeeds that were created under it."""
    catalog, uri = site.parts.catalog, f"s3://hers/x?protocol=csv&{KEYS}"

    def opened() -> None:
        policy = policy_of(catalog, Terms(), MINE, is_operated=False)
        open_destination(uri, get_tenant(catalog, MINE), MINE, "x", 0, 1, SystemClock(), policy).close()

    allow_target(catalog, MINE, "s3://hers")
    opened()
    disallow_target(catalog, MINE, "s3://hers")
    with pytest.raises(TargetRefused):
        opened()
