"""How the catalog's driver proves who it is and who the server is: TLS to a real MariaDB, and MySQL 8's default login.

No MySQL server can be installed here: its part is played by a socket that follows the protocol's description of
caching_sha2_password (full authentication over a connection without TLS).
"""

from __future__ import annotations

import socket
import struct
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from simulator.chaos.servers.mariadb import MariaDBServer
from tests.kit.certificates import certificate
from tistream.catalog.database.engine import Catalog
from tistream.errors import CatalogUnavailable

ROOT = Path(__file__).parents[2]
SALT = b"ABCDEFGHIJKLMNOPQRST"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[MariaDBServer]:
    """A MariaDB server with a certificate."""
    own = certificate(folder, "own")
    (folder / "server").mkdir()
    new_server = MariaDBServer(folder / "server", options=[f"--ssl-cert={own}", f"--ssl-key={own.with_suffix('.key')}"])
    try:
        new_server.start()
        yield new_server
    finally:
        new_server.stop()


def cipher(url: str) -> str:
    """What the session is encrypted with; empty when it is not."""
    catalog = Catalog(url)
    try:
        with catalog.reading() as conn:
            return str(conn.exec_driver_sql("SHOW SESSION STATUS LIKE 'Ssl_cipher'").one()[1])
    finally:
        catalog.close()


def test_a_server_that_offers_tls_or_has_the_named_authority_is_accepted(server: MariaDBServer, folder: Path) -> None:
    assert cipher(server.url()) != ""
    assert cipher(f"{server.url()}?ssl_ca={folder / 'own.pem'}") != ""


@pytest.mark.parametrize(("host", "authority"), [("127.0.0.1", "other"), ("localhost", "own")])
def test_a_server_of_another_authority_or_name_is_refused(
    server: MariaDBServer, folder: Path, host: str, authority: str
) -> None:
    if authority == "other":
        certificate(folder, authority)
    with pytest.raises(CatalogUnavailable, match="certificate verify failed"):
        cipher(f"{server.url().replace('127.0.0.1', host)}?ssl_ca={folder / authority}.pem")


# ---- MySQL 8


class LikeMySQL8:
    """Asks for the full authentication of an account of the default plugin, and learns the password."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.password = b""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.close()
        self._thread.join(10)

    def _serve(self) -> None:
        conn, _ = self._listener.accept()
        with conn, conn.makefile("rb") as said:
            _send(conn, 0, _greeting())
            _receive(said)  # the scramble: this server has not cached the account
            _send(conn, 2, b"\x01\x04")  # full authentication
            assert _receive(said) == b"\x02"  # asks for the public key
            public = self._key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
            _send(conn, 4, b"\x01" + public)
            oaep = padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None)
            mixed = self._key.decrypt(_receive(said), oaep)
            self.password = bytes(a ^ SALT[i % len(SALT)] for i, a in enumerate(mixed))
            _send(conn, 6, b"\xff" + struct.pack("<H", 1045) + b"#28000the test is over")


def _greeting() -> bytes:
    """Handshake V10 without CLIENT_SSL."""
    capabilities = 0x1 | 0x8 | 0x200 | 0x2000 | 0x8000 | 0x10000 | 0x20000 | 0x80000
    return (
        b"\x0a8.0.36\0" + struct.pack("<I", 1) + SALT[:8] + b"\0" + struct.pack("<H", capabilities & 0xFFFF)
        + b"\xff" + struct.pack("<H", 2) + struct.pack("<H", capabilities >> 16) + bytes([21]) + bytes(10)
        + SALT[8:] + b"\0" + b"caching_sha2_password\0"
    )  # fmt: skip


def _send(conn: socket.socket, number: int, body: bytes) -> None:
    conn.sendall(struct.pack("<I", len(body))[:3] + bytes([number]) + body)


def _receive(said: object) -> bytes:
    head = said.read(4)  # type: ignore[attr-defined]
    body: bytes = said.read(int.from_bytes(head[:3], "little"))  # type: ignore[attr-defined]
    return body


def test_an_account_of_mysqls_default_plugin_logs_in_without_tls() -> None:
    server = LikeMySQL8()
    try:
        with pytest.raises(Exception, match="the test is over"):
            Catalog(f"mysql+pymysql://app:secret@127.0.0.1:{server.port}/tistream").ping()
    finally:
        server.close()
    assert server.password == b"secret\0"


def test_what_that_needs_is_installed_with_the_package() -> None:
    """The driver encrypts the password by the package `cryptography`, which its extra `rsa` brings."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]["services"]
    assert any(each.startswith("pymysql[rsa]") for each in extras)
