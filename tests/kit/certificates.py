"""Throw-away certificates, made by openssl: of an authority, or signed by one; and what uses them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import grpc

from tistream.tikv.channels import Tls


def certificate(folder: Path, name: str, *, of: str = "IP:127.0.0.1", ca: Path | None = None) -> Path:
    """A certificate for this address or DNS name (`DNS:sorter`), signed by `ca`, or its own authority; its key lies
    beside it."""
    pem = folder / f"{name}.pem"
    signer = [] if ca is None else ["-CA", str(ca), "-CAkey", str(ca.with_suffix(".key"))]
    place = ["-keyout", str(pem.with_suffix(".key")), "-out", str(pem), "-days", "2", "-subj", f"/CN={name}"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *place, *signer]
    subprocess.run([*command, "-addext", f"subjectAltName={of}"], check=True, capture_output=True)
    return pem


def feed_tls(folder: Path, role: str) -> dict[str, str]:
    """Settings of a dispatcher or a sorter, whose certificates are of one authority and name the role."""
    ca = folder / "authority.pem"
    if not ca.exists():
        certificate(folder, "authority")
    own = certificate(folder, role, of=f"DNS:{role}.test", ca=ca)
    peer = {"dispatcher": "sorter", "sorter": "dispatcher"}[role]
    return {
        "TISTREAM_FEED_TLS_CERTIFICATE": str(own),
        "TISTREAM_FEED_TLS_KEY": str(own.with_suffix(".key")),
        "TISTREAM_FEED_TLS_CA": str(ca),
        "TISTREAM_FEED_TLS_PEER_NAME": f"{peer}.test",
    }


def both_sides(folder: Path) -> tuple[grpc.ServerCredentials, Tls, Tls]:
    """A server that accepts clients with its own certificate; TLS of such a client, and of one without."""
    pem = certificate(folder, "both")
    key, text = pem.with_suffix(".key").read_bytes(), pem.read_bytes()
    server = grpc.ssl_server_credentials([(key, text)], root_certificates=text, require_client_auth=True)
    return server, Tls(ca=text, certificate=text, key=key), Tls(ca=text)


def listening(server: grpc.Server, credentials: grpc.ServerCredentials | None = None) -> str:
    """Start a gRPC server on a free port of loopback; its address."""
    place = "127.0.0.1:0"
    port = server.add_insecure_port(place) if credentials is None else server.add_secure_port(place, credentials)
    server.start()
    return f"127.0.0.1:{port}"
