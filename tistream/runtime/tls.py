"""Certificates from files, for the HTTP ports of a process and for who connects to them.

    ServerFiles(cert, key, client_ca).context()      of a port
    ClientFiles(ca, cert, key).context()             of a client

The files may be rewritten at any time: a context looks at them with each handshake, and open connections stay. Contents
that do not belong together, or are half written, are logged and not used; those before stay in use.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from weakref import WeakSet

from tistream.errors import ConfigError
from tistream.runtime.tls_faults import CertificateNotRead

log = logging.getLogger(__name__)

HANDSHAKES_MAX = 1024  #: of a port at once, until its server says otherwise

Stamp = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFiles:
    """Of a port. With `client_ca` a client may present a certificate, which must be of this authority; who lets it in
    without one decides by the connection (`has_certificate`)."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    def context(self) -> FileContext:
        """For the port. ConfigError when the files cannot be used."""
        paths = [path for path in (self.cert, self.key, self.client_ca) if path is not None]
        return FileContext(ssl.PROTOCOL_TLS_SERVER, paths, self._load, logs=False)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        load_pair(context, self.cert, self.key, "tls.cert and tls.key")
        if self.client_ca is not None:
            load_ca(context, self.client_ca, "tls.client_ca")
            context.verify_mode = ssl.CERT_OPTIONAL
        context.set_alpn_protocols(["http/1.1"])
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFiles:
    """Of a client: whom it trusts (without `ca` the authorities of the system), and its own certificate, if any."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    checks_name: bool = True  #: whether the service's certificate must have the host of the address

    def context(self, roots: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
        """For connections. `roots`: makes a context that trusts the system's authorities. ConfigError when the files
        cannot be used."""
        if (self.cert is None) != (self.key is None):
            raise ConfigError("a client's certificate and its key go together: --client-cert and --client-key")
        paths = [path for path in (self.ca, self.cert, self.key) if path is not None]

        def load() -> ssl.SSLContext:
            if self.ca is None:
                context = roots()
            else:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the file may hold the certificate itself
                context.check_hostname = self.checks_name
                load_ca(context, self.ca, "--ca")
            if self.cert is not None and self.key is not None:
                load_pair(context, self.cert, self.key, "--client-cert and --client-key")
            return context

        return FileContext(ssl.PROTOCOL_TLS_CLIENT, paths, load, logs=True) if paths else load()


class FileContext(ssl.SSLContext):
    """A context that hands each handshake to one of the present contents of its files. Thread-safe."""

    def __new__(cls, protocol: int, paths: list[Path], load: Callable[[], ssl.SSLContext], *, logs: bool) -> Self:
        return super().__new__(cls, protocol)

    def __init__(self, protocol: int, paths: list[Path], load: Callable[[], ssl.SSLContext], *, logs: bool) -> None:
        """`load` reads the files; `logs`: write a warning when changed ones cannot be used. ConfigError when `load`
        does not succeed at once."""
        self.times_read = 1
        self.handshakes: WeakSet[ssl.SSLObject] = WeakSet()  #: that have begun; who accepts the connection takes it out
        self.handshakes_max = HANDSHAKES_MAX
        self._paths, self._load, self._logs = paths, load, logs
        self._lock = threading.Lock()
        self._protocols: list[str] = []
        self._problem: ConfigError | None = None
        self._seen = self._stamps()
        self._context = load()

    def refresh(self) -> None:
        """Read the files again, if they have changed. CertificateNotRead when their present contents cannot be used."""
        with self._lock:
            self._read_again()
            if self._problem is not None:
                raise CertificateNotRead(self._problem.message, **self._problem.facts)

    def set_alpn_protocols(self, alpn_protocols: Any) -> None:
        with self._lock:
            self._protocols = list(alpn_protocols)
            self._context.set_alpn_protocols(self._protocols)

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        return self._present().wrap_socket(*args, **kwargs)

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        wrapped = self._present().wrap_bio(*args, **kwargs)
        if wrapped.server_side:
            if len(self.handshakes) >= self.handshakes_max:
                raise ssl.SSLError("too many handshakes at once")
            self.handshakes.add(wrapped)
        return wrapped

    def _present(self) -> ssl.SSLContext:
        with self._lock:
            self._read_again()
            return self._context

    def _read_again(self) -> None:
        stamps = self._stamps()
        if stamps == self._seen:
            return
        self._seen = stamps
        try:
            context = self._load()
        except ConfigError as e:
            self._problem = e
            if self._logs:
                log.warning("certificates were not read again, those before stay in use: %s", e)
            return
        if self._protocols:
            context.set_alpn_protocols(self._protocols)
        self._context, self._problem = context, None
        self.times_read += 1

    def _stamps(self) -> tuple[Stamp, ...]:
        return tuple(_stamp(path) for path in self._paths)


def _stamp(path: Path) -> Stamp:
    try:
        seen = os.stat(path)
    except OSError:
        return None
    return seen.st_ino, seen.st_mtime_ns, seen.st_size


def load_pair(context: ssl.SSLContext, cert: Path, key: Path, names: str) -> None:
    """Load a certificate chain and its key. ConfigError names the settings or options `names` and the file."""
    for path in (cert, key):
        contents(path, names)

    def refuse() -> str:
        raise ConfigError(f"{names}: the key has a passphrase; store it without one", file=key)

    try:
        context.load_cert_chain(cert, key, refuse)
    except (OSError, ValueError) as e:
        raise ConfigError(
            f"{names} do not belong together, or are not PEM", certificate=cert, key=key, cause=str(e)
        ) from e


def load_ca(context: ssl.SSLContext, ca: Path, name: str) -> None:
    """Trust the authorities of a file. ConfigError names the setting or option and the file."""
    contents(ca, name)
    try:
        context.load_verify_locations(ca)
    except (OSError, ValueError) as e:
        raise ConfigError(f"{name} has no CA certificate", file=ca, cause=str(e)) from e


def contents(path: Path, name: str) -> bytes:
    """The bytes of a file. ConfigError names the setting or option when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as e:
        raise ConfigError(f"cannot read a file of {name}: {e.strerror}", file=path) from e


def not_after(chain: bytes) -> float:
    """When the first certificate of a chain ends, in seconds since 1970. ConfigError when there is none."""
    from cryptography import x509  # of the services only

    try:
        return x509.load_pem_x509_certificate(chain).not_valid_after_utc.timestamp()
    except ValueError as e:
        raise ConfigError("a certificate chain is not PEM", cause=str(e)) from e


def has_certificate(ssl_object: Any) -> bool:
    """Whether the other side of a connection has presented a certificate of the authority."""
    return ssl_object is not None and bool(ssl_object.getpeercert())
