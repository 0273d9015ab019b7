"""Throw-away certificates, made by openssl: of an authority, or signed by one."""

from __future__ import annotations

import subprocess
from pathlib import Path


def certificate(folder: Path, name: str, *, of: str = "IP:127.0.0.1", ca: Path | None = None) -> Path:
    """A certificate for this address or DNS name (`DNS:sorter`), signed by `ca`, or its own authority; its key lies
    beside it."""
    made = folder / f"{name}.pem"
    signer = [] if ca is None else ["-CA", str(ca), "-CAkey", str(ca.with_suffix(".key"))]
    place = ["-keyout", str(made.with_suffix(".key")), "-out", str(made), "-days", "2", "-subj", f"/CN={name}"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *place, *signer]
    subprocess.run([*command, "-addext", f"subjectAltName={of}"], check=True, capture_output=True)
    return made
