"""Commands, both clients and the pusher in the environment of a shell: proxies, and encodings of a terminal."""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pusher.control import HttpControl
from tests.kit.auth_site import MINE, auth_site
from tistream.catalog.rows.kinds import Keyspace, TenantKind
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.cli.main import command_line
from tistream.cli.server import HttpServer
from tistream.client import AsyncClient, Client
from tistream.client.checks import check_service
from tistream.clock import SystemClock
from tistream.http.auth.core.roles import Role
from tistream.ids import Tenant

ROOT = Path(__file__).parents[2]
SHELLS = {
    "a dead proxy": {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"},
    "a SOCKS proxy": {"ALL_PROXY": "socks5h://127.0.0.1:9"},
    "networks of Kubernetes": {"NO_PROXY": "localhost,10.0.0.0/8,fd00::/8,.svc,.cluster.local"},
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Its address, and an owner's key."""
    with auth_site(tmp_path_factory.mktemp("site")) as site:
        register_tenant(site.parts.catalog, Tenant(5, 5), kind=TenantKind.RAW, keyspace=Keyspace(name="订单"))
        server = HttpServer(site.app, "127.0.0.1", 0)
        server.start()
        yield server.url, site.key(Role.OWNER)
        server.stop()


@pytest.mark.parametrize("shell", SHELLS)
def test_both_clients_the_pusher_and_the_checks_reach_a_service_on_this_machine(
    service: tuple[str, str], shell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, key = service
    for name, value in SHELLS[shell].items():
        monkeypatch.setenv(name, value)

    async def async_answer() -> object:
        async with AsyncClient(url, key=key, retry_s=0) as client:
            return await client.get("/v1/tenants")

    with Client(url, key=key, retry_s=0) as client:
        assert client.get("/v1/tenants") == asyncio.run(async_answer())
    control = HttpControl(url, MINE, token=key)
    control.push_bundle()
    control.close()
    assert any(each.name == "service" and each.verdict == "ok" for each in check_service(url, key, SystemClock()))


CLIENTS = ("httpx2.Client", "httpx2.AsyncClient")


def test_every_command_that_asks_the_service_uses_the_same_way() -> None:
    """A client that is made in another way would read the environment as httpx2 does, which ends with a trace."""
    uses = []
    for package in ("tistream", "pusher", "backup", "reading", "apiserver", "metaserver"):
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if not isinstance(node, ast.Call):
                    continue
                if ast.unparse(node.func) in CLIENTS:
                    uses.append((file.name, any(keyword.arg is None for keyword in node.keywords)))
                elif any(
                    ast.unparse(argument) in CLIENTS for argument in node.args
                ):  # made by tistream/client/shared.py
                    uses.append((file.name, ast.unparse(node.func) == "super().__init__"))
    assert len(uses) == 4
    assert "reach(self.url, files=files)" in (ROOT / "tistream/client/shared.py").read_text("utf-8")
    assert all(through_reach for _, through_reach in uses), uses


@pytest.mark.parametrize("words", [("tenant", "list"), ("status",), ("lag",), ("workers", "list")])
def test_a_command_answers_in_any_shell(service: tuple[str, str], words: tuple[str, ...]) -> None:
    url, key = service
    for shell in SHELLS.values():
        done = CliRunner().invoke(command_line([]), [*words, "--url", url, "--key", key], env=shell)
        assert done.exit_code == 0, done.output


def test_a_name_that_the_terminal_cannot_show_is_escaped(service: tuple[str, str]) -> None:
    url, key = service
    for more, shown in (([], b"\\u8ba2\\u5355"), (["--json"], b"\\u8ba2\\u5355")):
        done = subprocess.run(
            [sys.executable, "-m", "tistream.cli.main", "tenant", "list", "--url", url, "--key", key, *more],
            env={"PYTHONIOENCODING": "ascii", "HOME": "/nonexistent", "ALL_PROXY": "socks5://127.0.0.1:9"},
            cwd=ROOT, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()
        assert shown in done.stdout
