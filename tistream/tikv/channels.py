"""gRPC channels to PD and stores, and their TLS certificates.

    Tls(ca=..., certificate=..., key=...)      PEM texts
    TlsFiles(ca, certificate, key)             files, read again when they change
    Channels(tls).at("10.0.0.1:20160")         one channel per address

Certificates are renewed by rewriting the files, every few months or hours. An open connection keeps its certificates;
new ones to the same address, also reconnections, use the current files. While files are unreadable, or a key was
written before its certificate, the last consistent ones stay in use.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog

log = structlog.get_logger(__name__)

_MESSAGE_BYTES_MAX = 256 << 20
_OPTIONS = (
    ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 3_000),
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pem:
    """PEM texts. Without a certificate only the server is authenticated."""

    ca: bytes | None = None  #: None = gRPC's default roots
    certificate: bytes | None = None
    key: bytes | None = None


class Tls:
    def __init__(self, *, ca: bytes | None = None, certificate: bytes | None = None, key: bytes | None = None) -> None:
        self._pem = Pem(ca=ca, certificate=certificate, key=key)

    def current(self) -> Pem:
        return self._pem


class TlsFiles(Tls):
    """Certificates from files, which may be rewritten at any time. Thread-safe. OSError when one is missing."""

    def __init__(self, *, ca: Path | None, certificate: Path | None, key: Path | None) -> None:
        self._files = (ca, certificate, key)
        self._lock = threading.Lock()
        self._seen = self._stamps()
        texts = self._read()
        super().__init__(ca=texts[0], certificate=texts[1], key=texts[2])

    def current(self) -> Pem:
        with self._lock:
            try:
                stamps = self._stamps()
                if stamps != self._seen:
                    ca, certificate, key = self._read()
                    self._pem, self._seen = Pem(ca=ca, certificate=certificate, key=key), stamps
                    log.info("certificates reloaded", files=", ".join(str(f) for f in self._files if f))
            except OSError as e:
                log.warning("reading certificates failed, keeping the last ones", cause=str(e))
            return self._pem

    def _stamps(self) -> tuple[tuple[int, int] | None, ...]:
        stats = [None if file is None else file.stat() for file in self._files]
        return tuple(None if s is None else (s.st_mtime_ns, s.st_size) for s in stats)

    def _read(self) -> tuple[bytes | None, ...]:
        return tuple(None if file is None else file.read_bytes() for file in self._files)


def open_channel(address: str, tls: Tls | None) -> grpc.Channel:
    return _open(address, None if tls is None else tls.current())


def _open(address: str, pem: Pem | None) -> grpc.Channel:
    if pem is None:
        return grpc.insecure_channel(address, _OPTIONS)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(pem.ca, pem.key, pem.certificate), _OPTIONS)


class Channels:
    """Channels by address. Thread-safe; `close` it."""

    def __init__(self, tls: Tls | None) -> None:
        self._tls = tls
        self._lock = threading.Lock()
        self._open: dict[str, tuple[grpc.Channel, Pem | None]] = {}
        self._old: list[grpc.Channel] = []  # replaced; calls on them may be in progress

    def at(self, address: str) -> grpc.Channel:
        pem = None if self._tls is None else self._tls.current()
        with self._lock:
            known = self._open.get(address)
            if known is not None and known[1] == pem:
                return known[0]
            channel = _open(address, pem)
            self._open[address] = (channel, pem)
            if known is not None:
                self._old.append(known[0])
                if len(self._old) > len(self._open):
                    self._old.pop(0).close()
            return channel

    def close(self) -> None:
        with self._lock:
            for channel in [*self._old, *(channel for channel, _ in self._open.values())]:
                channel.close()
            self._open.clear()
            self._old.clear()
