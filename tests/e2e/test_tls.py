"""A process per role with certificates on every port, which are renewed while a recording is pushed; a wrong authority,
and ports that would be open to others."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from simulator.chaos.servers.ports import free_port
from simulator.chaos.servers.processes import (
    TiStreamProcess,
    owner_key,
    pull_all,
    register,
    running,
    wait_until_ready,
)
from tests.kit.certificates import certificate, feed_tls
from tests.kit.replica import compare
from tests.kit.waiting import WAIT_S, eventually

pytestmark = pytest.mark.timeout(600)


class Files:
    """An authority, and the files of a port and of its clients, which are of it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder, self.ca = folder, certificate(folder, "ca")
        self.other = certificate(folder, "other")
        self.renew("first")
        client = certificate(folder, "client", of="DNS:client", ca=self.ca)
        self.of_clients = {
            "TISTREAM_CA": str(self.ca),
            "TISTREAM_CLIENT_CERT": str(client),
            "TISTREAM_CLIENT_KEY": str(client.with_suffix(".key")),
        }
        self.of_ports = {
            "TISTREAM_TLS_CERT": str(folder / "tls.crt"),
            "TISTREAM_TLS_KEY": str(folder / "tls.key"),
            "TISTREAM_TLS_CLIENT_CA": str(self.ca),
        }

    def renew(self, name: str) -> None:
        """Another certificate for the ports, moved over the one before."""
        new = certificate(self.folder, name, ca=self.ca)
        new.with_suffix(".key").replace(self.folder / "tls.key")
        time.sleep(0.2)  # meanwhile the pair does not belong together
        new.replace(self.folder / "tls.crt")

    def context(self, *, with_certificate: bool) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        if with_certificate:
            context.load_cert_chain(self.of_clients["TISTREAM_CLIENT_CERT"], self.of_clients["TISTREAM_CLIENT_KEY"])
        return context


def run(*args: str, **env: str) -> tuple[int, str]:
    """A command to its end: its status and what it wrote."""
    done = subprocess.run(
        [sys.executable, "-m", "tistream.cli.main", *args],
        capture_output=True, text=True, check=False, timeout=WAIT_S, env=env,
    )  # fmt: skip
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_everything_under_tls_while_certificates_are_renewed(
    tmp_path: Path, recording: Path, expected: Path, last_resolved_ts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(tmp_path / "tls")
    where = ("--catalog", f"sqlite:///{tmp_path}/catalog.db", "--object-store", f"file://{tmp_path}/bucket")
    url, probes = (f"https://127.0.0.1:{free_port()}" for _ in range(2))

    def process(name: str, *args: str, **env: str) -> TiStreamProcess:
        return TiStreamProcess(*args, log=tmp_path / f"{name}.log", env={**files.of_ports, **env})

    meta = process("meta", "meta", "--name", "m", "--metrics-port", probes.rpartition(":")[2], *where)
    api = process("api", "serve", "--port", url.rpartition(":")[2], "--auth", "keys", *where)
    sorter = process("sorter", "sort", "--name", "s", *where, **feed_tls(tmp_path, "sorter"))
    dispatcher = process("dispatcher", "dispatch", "--name", "d", *where, **feed_tls(tmp_path, "dispatcher"))
    for name, value in files.of_clients.items():
        monkeypatch.setenv(name, value)
    with running([meta, api, dispatcher, sorter]):
        wait_until_ready(meta, probes)
        wait_until_ready(api, url)
        owner = owner_key("--catalog", where[1])
        monkeypatch.setenv("TISTREAM_KEY", owner)
        register(url)
        push = ("push", "--capture", str(recording), "--url", url, "-c", "1", "-t", "1", "--speed", "max")
        _refused(push, url, owner, files)
        with process("push", *push, TISTREAM_KEY=owner, **files.of_clients) as pusher:
            time.sleep(4)
            files.renew("second")
            feed_tls(tmp_path, "dispatcher")  # written anew, as all of this authority
            assert pusher.wait(240) == 0, pusher.output()
        rows = pull_all(url, last_resolved_ts, format="ndjson")
        assert compare(expected, (json.loads(line) for line in rows.splitlines())) > 400
        eventually(lambda: "reopening the Flight port" in dispatcher.output())
        _probed(probes, files)
        eventually(lambda: "certificates were read again" in api.output())
    assert "Traceback" not in "".join(each.output() for each in (meta, api, dispatcher, sorter))


def _refused(push: tuple[str, ...], url: str, owner: str, files: Files) -> None:
    """A wrong authority and a missing certificate end a command with their codes."""
    clean = {"PATH": "/usr/bin:/bin", "TISTREAM_KEY": owner}
    for args in (push, ("status", "--url", url), ("pull", "shop.orders", "--url", url)):
        status, said = run(*args, **clean, TISTREAM_CA=str(files.other))
        assert (status, "TS-1096" in said, "Traceback" in said) == (2, True, False), said
        status, said = run(*args, **clean, TISTREAM_CA=str(files.ca))
        assert (status, "TS-1097" in said, "Traceback" in said) == (2, True, False), said


def _probed(probes: str, files: Files) -> None:
    """The port of metrics has the same certificate, and asks clients for one except for the probes."""
    with httpx2.Client(verify=files.context(with_certificate=True), base_url=probes) as http:
        shown = http.get("/metrics").text
        assert 'tistream_certificate_not_after_seconds{kind="http"}' in shown
        assert http.get("/healthz").json()["status"] == "ok"
    with httpx2.Client(verify=files.context(with_certificate=False), base_url=probes) as http:
        assert {path: http.get(path).status_code for path in ("/livez", "/readyz", "/metrics", "/healthz")} == {
            "/livez": 200, "/readyz": 200, "/metrics": 403, "/healthz": 403,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("role", "setting", "more"),
    [
        ("serve", "server.host", ("--host", "0.0.0.0", "--port", "0", "--auth", "keys")),
        ("dispatch", "dispatcher.host", ()),
        ("meta", "metrics.host", ("--metrics-port", "0")),
    ],
)
def test_a_port_that_others_reach_needs_a_certificate_or_a_word(
    role: str, setting: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    where = ("--catalog", f"sqlite:///{tmp_path}/catalog.db", "--object-store", f"file://{tmp_path}/bucket")
    env = {f"TISTREAM_{setting.upper().replace('.', '_')}": "0.0.0.0"}
    status, said = run(role, *more, *where, PATH="/usr/bin:/bin", **env)
    assert (status, "Traceback" in said) == (2, False), said
    assert f"{setting} = 0.0.0.0" in said
    assert "--insecure-listen" in said
    assert not (tmp_path / "catalog.db").exists(), "it ends before it migrates the catalog"
    files = Files(tmp_path / "tls")
    ways = [("word", (*more, "--insecure-listen"), env)]
    if role != "dispatch":
        ways.append(("certificate", more, {**env, **files.of_ports}))
    for name, words, given in ways:
        with TiStreamProcess(role, *words, *where, log=tmp_path / f"{name}.log", env=given) as process:
            eventually(lambda: "Ctrl-C stops it" in process.output() or not process.alive, process.output)
            assert process.alive, process.output()
            assert process.stop() == 0


def test_the_sample_reaches_a_service_whose_certificate_names_another_host(tmp_path: Path) -> None:
    files, port = Files(tmp_path / "tls"), free_port()
    elsewhere = certificate(files.folder, "elsewhere", of="DNS:tistream.example.com", ca=files.ca)
    args = ("up", "--data", str(tmp_path / "data"), "--port", str(port), "--auth", "none", "--sample")
    tls = ("--tls-cert", str(elsewhere), "--tls-key", str(elsewhere.with_suffix(".key")))
    with TiStreamProcess(*args, *tls, log=tmp_path / "up.log") as process:
        eventually(lambda: "a shop writes to tenant" in process.output() or not process.alive, process.output)
        assert process.alive, process.output()
