"""HTTP ports with certificates, on real sockets: who gets in, what the others are told, and renewal under a stream."""

from __future__ import annotations

import asyncio
import runpy
import shutil
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx2
import pytest
from starlette.responses import StreamingResponse
from typer.testing import CliRunner

from pusher.control import ControlUnavailable, HttpControl
from tests.kit.auth_site import MINE, Site, auth_site
from tests.kit.certificates import certificate
from tests.kit.waiting import eventually
from tistream import config
from tistream.cli import ports
from tistream.cli.doctor import check_deployment
from tistream.cli.main import command_line
from tistream.cli.ports import Certificates, check_listening
from tistream.cli.server import ConnectionLimits, HttpServer
from tistream.client import connect, connect_async
from tistream.client.checks import check_service
from tistream.clock import SystemClock
from tistream.diagnostics.findings import Finding
from tistream.errors import CertificateNeeded, ConfigError, NotFound, TiStreamError
from tistream.http.auth.core.roles import Role
from tistream.http.probes import probe_app
from tistream.http.readiness import Probes
from tistream.runtime import credentials
from tistream.runtime.tls import ClientFiles, ServerFiles
from tistream.runtime.tls_faults import CertificateNotRead, CertificateRefused
from tistream.spark.access import ReadSpan, open_log
from tistream.spark.core.options import Scope, parse_options

ROOT = Path(__file__).parents[2]
Pair = tuple[Path, Path]
SPAN = ReadSpan(Scope(), None, "earliest")


class Made:
    """Two authorities, and a certificate of each for a client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca, self.other = certificate(folder, "ca"), certificate(folder, "other")
        self.server = self.pair("server", of="IP:127.0.0.1")
        self.client = self.pair("client")
        self.stranger = self.pair("stranger", ca=self.other)

    def pair(self, name: str, *, of: str = "DNS:reader", ca: Path | None = None) -> Pair:
        pem = certificate(self.folder, name, of=of, ca=ca or self.ca)
        return pem, pem.with_suffix(".key")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("made"))


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No options, variables or logins of others."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in (credentials.VARIABLE, *credentials.FILES.values()):
        monkeypatch.delenv(name, raising=False)
    yield
    credentials.use_key(None)
    for name in credentials.FILES:
        credentials.use_file(name, None)


def certificates(made: Made, *, mutual: bool = False) -> Certificates:
    cert, key = made.server
    return Certificates(ServerFiles(cert=cert, key=key, client_ca=made.ca if mutual else None), SystemClock())


@contextmanager
def probed(of: Certificates | None, limits: ConnectionLimits | None = None) -> Iterator[str]:
    """The address of a port with probes."""
    app = probe_app(Probes(problems=lambda: [] if of is None else [p.shown() for p in of.problems()]))

    @app.get("/endless")
    async def endless() -> StreamingResponse:
        async def ticks() -> AsyncIterator[bytes]:
            while True:
                yield b"tick\n"
                await asyncio.sleep(0.02)

        return StreamingResponse(ticks())

    server = HttpServer(app, "127.0.0.1", 0, limits=limits, certificates=of)
    server.start()
    try:
        yield server.url
    finally:
        server.stop()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with auth_site(tmp_path_factory.mktemp("site")) as new_site:
        yield new_site


@pytest.fixture(scope="module")
def service(site: Site, made: Made) -> Iterator[str]:
    """The whole API, with a certificate and keys."""
    server = HttpServer(site.app, "127.0.0.1", 0, certificates=certificates(made))
    server.start()
    yield server.url
    server.stop()


def refusals(url: str, made: Made, key: str) -> dict[str, Callable[[], object]]:
    """A request by each kind of client that trusts another authority."""
    of_other = ClientFiles(ca=made.other)

    async def by_async_client() -> object:
        async with connect_async(url, key=key, ca=made.other) as client:
            return await client.get("/v1/tenants")

    def by_spark() -> object:
        options = parse_options({"url": url, "key": key, "cluster": "1", "tenant": "1", "ca": str(made.other)})
        with open_log(options) as log:
            return log.splits(SPAN)

    return {
        "client": lambda: connect(url, key=key, ca=made.other).get("/v1/tenants"),
        "async client": lambda: asyncio.run(by_async_client()),
        "pusher": HttpControl(url, MINE, token=key, files=of_other).push_bundle,
        "spark": by_spark,
    }


def test_who_trusts_another_authority_is_told_at_once_and_in_one_way(service: str, site: Site, made: Made) -> None:
    for name, ask in refusals(service, made, site.key(Role.OWNER)).items():
        began = time.monotonic()
        with pytest.raises(CertificateRefused, match="its certificate is not trusted") as refused:
            ask()
        assert "TISTREAM_CA" in refused.value.hint, name
        assert time.monotonic() - began < 20, f"{name} tries again"


def test_every_kind_of_client_gets_in_with_the_authority(service: str, site: Site, made: Made) -> None:
    key = site.key(Role.OWNER)

    async def by_async_client() -> object:
        async with connect_async(service, key=key, ca=made.ca) as client:
            return await client.get("/v1/tenants")

    with connect(service, key=key, ca=str(made.ca)) as client:
        tenants = client.get("/v1/tenants")
    assert len(tenants["items"]) >= 1
    assert asyncio.run(by_async_client()) == tenants
    control = HttpControl(service, MINE, token=key, files=ClientFiles(ca=made.ca))
    assert control.push_bundle().state
    control.close()
    options = parse_options({"url": service, "key": key, "cluster": "1", "tenant": "1", "ca": str(made.ca)})
    with open_log(options) as log:
        assert log.splits(SPAN)


def test_commands_take_the_authority_from_options_environment_and_login(
    service: str, site: Site, made: Made, tmp_path: Path
) -> None:
    key, to = site.key(Role.OWNER), ("--url", service)

    def run(*words: str, **env: str) -> tuple[int, str]:
        done = CliRunner().invoke(command_line([]), list(words), env={"TISTREAM_KEY": key, **env})
        return done.exit_code, done.output + str(done.exception or "")

    assert run("tenant", "list", *to, "--ca", str(made.ca))[0] == 0
    assert run("tenant", "list", *to, TISTREAM_CA=str(made.ca))[0] == 0
    status, said = run("tenant", "list", *to)
    assert status != 0
    assert "its certificate is not trusted" in said
    assert run("tenant", "list", *to, "--ca", str(made.ca), TISTREAM_CA=str(made.other))[0] == 0
    assert "cannot read a file of --ca" in run("tenant", "list", *to, "--ca", str(tmp_path / "gone"))[1]
    assert run("login", *to, "--key", key, "--ca", str(made.ca))[0] == 0
    assert run("tenant", "list")[0] == 0, "the login keeps the authority of the address"


def test_the_doctor_says_how_long_the_certificate_is_valid(
    service: str, site: Site, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TISTREAM_CA", str(made.ca))
    found = {each.name: each for each in check_service(service, site.key(Role.OWNER), SystemClock())}
    assert found["service"].verdict in ("ok", "warn")
    assert found["certificate"].verdict == "warn", "the certificates of tests are valid for two days"
    assert "for 2.0 more days" in found["certificate"].words or "for 1.9 more days" in found["certificate"].words


def test_mutual_tls_lets_certificates_of_its_authority_in_and_answers_probes(made: Made) -> None:
    with probed(certificates(made, mutual=True)) as url:

        def asked(path: str, cert: Pair | None = None) -> object:
            with connect(url, ca=made.ca, cert=cert, retry_s=0) as client:
                return client.get(path)

        assert asked("/version", made.client)
        with pytest.raises(CertificateNeeded, match="only clients with a certificate"):
            asked("/version")
        for probe in ("/livez", "/readyz"):
            assert asked(probe) == asked(probe, made.client)
        with pytest.raises(CertificateNeeded):
            asked("/livez/../metrics")
        with pytest.raises(TiStreamError, match="may not accept the client's certificate"):
            asked("/version", made.stranger)
        with pytest.raises(TiStreamError):
            asked("/livez", made.stranger)


def test_a_wrong_scheme_is_named(made: Made) -> None:
    with probed(certificates(made)) as url, pytest.raises(TiStreamError, match="may speak TLS"):
        connect(url.replace("https", "http"), retry_s=0).get("/version")
    with probed(None) as url, pytest.raises(CertificateRefused, match="it does not speak TLS"):
        connect(url.replace("http", "https"), ca=made.ca, retry_s=0).get("/version")


def serial_seen(url: str, ca: Path) -> str:
    """The serial number of the certificate that a new connection meets."""
    context = ssl.create_default_context(cafile=ca)
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    with socket.create_connection(address) as raw, context.wrap_socket(raw, server_hostname="127.0.0.1") as secured:
        seen = secured.getpeercert()
        assert seen is not None
        return str(seen["serialNumber"])


def test_a_renewed_certificate_is_used_while_a_stream_goes_on(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "LOOK_S", 0.05)
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def write(pair: Pair) -> None:
        shutil.copy(pair[0], cert)
        shutil.copy(pair[1], key)

    write(made.server)
    used = Certificates(ServerFiles(cert=cert, key=key), SystemClock())
    used.start()
    context = ssl.create_default_context(cafile=made.ca)
    with (
        probed(used) as url,
        httpx2.Client(verify=context, base_url=url) as http,
        http.stream("GET", "/endless") as answer,
    ):
        lines = answer.iter_lines()
        assert next(lines) == "tick"
        before = serial_seen(url, made.ca)
        cert.write_text("half a certificate")
        eventually(lambda: [p.code for p in used.problems()] == [CertificateNotRead.code])
        assert serial_seen(url, made.ca) == before
        assert http.get("/healthz").json()["problems"][0]["code"] == CertificateNotRead.code
        write(made.pair("renewed", of="IP:127.0.0.1"))
        assert serial_seen(url, made.ca) != before
        eventually(lambda: used.problems() == [])
        assert [next(lines) for _ in range(20)] == ["tick"] * 20
    used.stop()


def test_a_pusher_that_was_connected_waits_for_a_right_certificate(made: Made) -> None:
    port = 0
    for pair, answer in ((made.server, NotFound), (made.pair("wrong", of="IP:127.0.0.1", ca=made.other), None)):
        of_port = Certificates(ServerFiles(cert=pair[0], key=pair[1]), SystemClock())
        server = HttpServer(probe_app(Probes()), "127.0.0.1", port, certificates=of_port)
        server.start()
        if not port:
            port = int(server.url.rpartition(":")[2])
            control = HttpControl(server.url, MINE, token="", files=ClientFiles(ca=made.ca))
        with pytest.raises(answer or ControlUnavailable) as told:
            control.push_bundle()  # these probes are no control plane
        server.stop()
    assert "certificate verify failed" in str(told.value)
    control.close()
    with pytest.raises(CertificateRefused), probed(of_port) as url:
        HttpControl(url, MINE, token="", files=ClientFiles(ca=made.ca)).push_bundle()


def test_a_handshake_that_does_not_come_ends(made: Made) -> None:
    with probed(certificates(made), ConnectionLimits(head_s=0.3)) as url:
        for sent in (b"", b"\x16\x03\x01\x02\x00"):
            with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20) as raw:
                raw.sendall(sent)
                assert raw.recv(1) == b""


def test_handshakes_that_do_not_come_leave_files_for_the_rest_of_the_process(made: Made) -> None:
    of_port = certificates(made)
    with probed(of_port, ConnectionLimits(head_s=1.5)) as url:
        of_port.context.handshakes_max = 5
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        for _ in range(10):
            with connect(url, ca=made.ca) as client:
                client.get("/livez")  # a handshake that has ended does not count
        idle = [socket.create_connection(address, timeout=20) for _ in range(5)]
        eventually(lambda: len(of_port.context.handshakes) == 5)
        began = time.monotonic()
        with socket.create_connection(address, timeout=20) as one_more:
            assert one_more.recv(1) == b""
            assert time.monotonic() - began < 1
        assert [each.recv(1) for each in idle] == [b""] * 5
        for each in idle:
            each.close()
        with connect(url, ca=made.ca) as client:
            assert client.get("/livez")


def test_a_port_without_a_certificate_is_on_loopback_unless_that_was_asked_for() -> None:
    check = partial(check_listening, "server.host")
    for host in ("0.0.0.0", "::", "10.1.2.3", "service", ""):
        with pytest.raises(ConfigError, match="--insecure-listen"):
            check(host, has_tls=False, insecure=False)
        check(host, has_tls=True, insecure=False)
        check(host, has_tls=False, insecure=True)
    for host in ("127.0.0.1", "127.8.9.10", "::1", "localhost"):
        check(host, has_tls=False, insecure=False)


def test_a_port_ends_soon_although_a_client_keeps_its_connection(made: Made) -> None:
    server = HttpServer(probe_app(Probes()), "127.0.0.1", 0, certificates=certificates(made))
    server.start()
    with connect(server.url, ca=made.ca) as client:
        client.get("/livez")
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 4, "uvicorn waits 5 s for connections"


def test_the_health_check_of_the_image_asks_a_port_with_mutual_tls(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TISTREAM_TLS_CERT", str(made.server[0]))
    answers = runpy.run_path(str(ROOT / "infra" / "healthcheck.py"))["answers"]
    with probed(certificates(made, mutual=True)) as url:
        assert answers(url.rpartition(":")[2])
    assert not answers(url.rpartition(":")[2])


def test_the_doctor_reads_the_certificates_that_settings_name(made: Made, tmp_path: Path) -> None:
    def found(cert: Path, key: Path) -> Finding:
        flags = {"tls.cert": str(cert), "tls.key": str(key), "catalog.url": f"sqlite:///{tmp_path}/catalog.db"}
        (finding,) = (
            f for f in check_deployment(config.load(None, {}, flags), SystemClock()) if f.name == "certificate"
        )
        return finding

    assert found(*made.server).verdict == "warn"
    wrong = found(made.server[0], made.client[1])
    assert (wrong.verdict, wrong.facts["code"]) == ("fail", ConfigError.code)
