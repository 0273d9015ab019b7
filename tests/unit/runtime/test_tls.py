"""Certificates in files that change: what the next handshake uses, in memory."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.kit.certificates import certificate
from tistream.errors import ConfigError
from tistream.runtime.tls import ClientFiles, ServerFiles, not_after
from tistream.runtime.tls_faults import CertificateNotRead


def roots() -> ssl.SSLContext:
    return ssl.create_default_context()


def key_of(pem: Path) -> Path:
    return pem.with_suffix(".key")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two authorities, and certificates of the first."""
    folder = tmp_path_factory.mktemp("tls")
    ca = certificate(folder, "ca")
    return {
        "ca": ca,
        "other": certificate(folder, "other"),
        **{name: certificate(folder, name, of="DNS:service", ca=ca) for name in ("first", "second")},
    }


class Port:
    """The files of a port, written again and again."""

    def __init__(self, folder: Path, made: dict[str, Path], client_ca: Path | None = None) -> None:
        self.made, self.cert, self.key = made, folder / "tls.crt", folder / "tls.key"
        self.files = ServerFiles(cert=self.cert, key=self.key, client_ca=client_ca)
        self.write("first", "first")
        self.context = self.files.context()

    def write(self, cert: str, key: str) -> None:
        shutil.copy(self.made[cert], self.cert)
        shutil.copy(key_of(self.made[key]), self.key)

    def met(self, client: ssl.SSLContext) -> str:
        """The common name of the certificate that a client meets."""
        names = dict(pair for ((pair),) in handshake(self.context, client)[0]["subject"])
        return str(names["commonName"])


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[dict, dict]:  # type: ignore[type-arg]
    """What the client and the server see of each other. SSLError when they do not agree."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = {
        "client": client.wrap_bio(to_client, to_server, server_hostname="service"),
        "server": server.wrap_bio(to_server, to_client, server_side=True),
    }
    left = dict(sides)
    for _ in range(10):
        for name, side in list(left.items()):
            try:
                side.do_handshake()
                del left[name]
            except ssl.SSLWantReadError:
                continue
    assert not left
    return sides["client"].getpeercert() or {}, sides["server"].getpeercert() or {}


def test_the_next_handshake_uses_the_renewed_pair(tmp_path: Path, made: dict[str, Path]) -> None:
    port = Port(tmp_path, made)
    client = ClientFiles(ca=made["ca"]).context(roots)
    assert port.met(client) == "first"
    port.write("second", "second")
    assert port.met(client) == "second"


@pytest.mark.parametrize("harm", ["half", "empty", "gone", "of another key"])
def test_a_pair_that_cannot_be_used_is_told_and_the_one_before_stays(
    harm: str, tmp_path: Path, made: dict[str, Path]
) -> None:
    port = Port(tmp_path, made)
    client = ClientFiles(ca=made["ca"]).context(roots)
    if harm == "half":
        port.cert.write_bytes(port.cert.read_bytes()[:400])
    elif harm == "empty":
        port.cert.write_bytes(b"")
    elif harm == "gone":
        port.key.unlink()
    else:
        shutil.copy(made["second"], port.cert)
    for _ in range(2):
        with pytest.raises(CertificateNotRead, match=r"tls\.cert and tls\.key"):
            port.context.refresh()
        assert port.met(client) == "first"
    port.write("second", "second")
    port.context.refresh()
    assert port.met(client) == "second"


def test_clients_of_an_authority_that_was_taken_out_are_refused(tmp_path: Path, made: dict[str, Path]) -> None:
    trusted = tmp_path / "clients.pem"
    shutil.copy(made["ca"], trusted)
    port = Port(tmp_path, made, client_ca=trusted)
    client = ClientFiles(ca=made["ca"], cert=made["second"], key=key_of(made["second"])).context(roots)
    assert handshake(port.context, client)[1]["subject"] == ((("commonName", "second"),),)
    shutil.copy(made["other"], trusted)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(port.context, client)
    nobody = ClientFiles(ca=made["ca"]).context(roots)
    assert handshake(port.context, nobody)[1] == {}, "who has no certificate is judged by the request"


def test_a_client_reads_its_files_again_and_trusts_the_named_authority_alone(
    tmp_path: Path, made: dict[str, Path]
) -> None:
    port, trusted = Port(tmp_path, made), tmp_path / "ca.pem"
    shutil.copy(made["other"], trusted)
    client = ClientFiles(ca=trusted).context(roots)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(port.context, client)
    shutil.copy(made["ca"], trusted)
    assert port.met(client) == "first"
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(port.context, ClientFiles().context(roots))
    elsewhere = certificate(tmp_path, "elsewhere", of="DNS:elsewhere", ca=made["ca"])
    for suffix in (".crt", ".key"):
        shutil.copy(elsewhere.with_suffix(".pem" if suffix == ".crt" else suffix), tmp_path / f"tls{suffix}")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(port.context, client)


def test_files_that_cannot_be_used_at_the_start_are_named(tmp_path: Path, made: dict[str, Path]) -> None:
    first, second, gone = made["first"], made["second"], tmp_path / "gone.pem"
    locked = tmp_path / "locked.key"
    command = ["openssl", "rsa", "-aes128", "-passout", "pass:secret", "-in", str(key_of(first)), "-out", str(locked)]
    subprocess.run(command, check=True, capture_output=True)
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: ServerFiles(cert=first, key=key_of(second)).context(), "do not belong together"),
        (lambda: ServerFiles(cert=gone, key=key_of(first)).context(), r"cannot read a file of tls\.cert and tls\.key"),
        (lambda: ServerFiles(cert=first, key=locked).context(), "passphrase"),
        (
            lambda: ServerFiles(cert=first, key=key_of(first), client_ca=key_of(first)).context(),
            r"tls\.client_ca has no CA",
        ),
        (lambda: ClientFiles(ca=key_of(first)).context(roots), "--ca has no CA"),
        (lambda: ClientFiles(cert=first).context(roots), "go together"),
        (lambda: ClientFiles(cert=first, key=key_of(second)).context(roots), "--client-cert and --client-key do not"),
    ]
    for make, words in cases:
        with pytest.raises(ConfigError, match=words):
            make()


def test_the_end_of_a_chain_is_that_of_its_first_certificate(made: dict[str, Path]) -> None:
    shown = subprocess.run(
        ["openssl", "x509", "-noout", "-enddate", "-in", str(made["first"])], check=True, capture_output=True, text=True
    ).stdout
    end = datetime.strptime(shown.strip(), "notAfter=%b %d %H:%M:%S %Y GMT").replace(tzinfo=UTC)
    assert not_after(made["first"].read_bytes() + made["ca"].read_bytes()) == end.timestamp()
    with pytest.raises(ConfigError):
        not_after(b"no certificate")
