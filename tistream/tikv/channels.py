"""gRPC channels to PD and stores, and their TLS certificates.

    Tls(ca=..., certificate=..., key=...)      PEM texts
    TlsFiles(ca, certificate, key)             files, read again when they change
    Channels(tls).at("10.0.0.1:20160")         one channel per address
    Channels(tls, connection=2)                the channels of all with this number in the process, if their texts are
                                               the same; each is closed with its last user
    Channels(tls, names=CheckedNames(...))     connected only to addresses that a policy allows

Certificates are renewed by rewriting the files, every few months or hours. An open connection keeps its certificates;
new ones to the same address, also reconnections, use the current files. While files are unreadable, or a key was
written before its certificate, the last consistent ones stay in use.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import structlog

from tistream.outbound.checked_names import CheckedNames

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


def _open(address: str, pem: Pem | None, at: Sequence[str] = ()) -> grpc.Channel:
    """`at`: the addresses of the server's name, if they were checked; the name is not resolved again."""
    options: tuple[tuple[str, Any], ...] = _OPTIONS
    if at:
        host = address.rpartition(":")[0].strip("[]")
        options = (*_OPTIONS, ("grpc.default_authority", address), ("grpc.ssl_target_name_override", host))
        address = ("ipv6:" if at[0].startswith("[") else "ipv4:") + ",".join(at)
    if pem is None:
        return grpc.insecure_channel(address, options)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(pem.ca, pem.key, pem.certificate), options)


_Place = tuple[str, Pem | None, tuple[str, ...], Hashable]  # address, texts, checked addresses, whose


class _Open:
    """The channels of a process, by what they are; closed by their last user."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: dict[_Place, tuple[grpc.Channel, int]] = {}

    def take(self, place: _Place) -> grpc.Channel:
        with self._lock:
            known = self._users.get(place)
            channel, users = (_open(*place[:3]), 0) if known is None else known
            self._users[place] = channel, users + 1
            return channel

    def give_back(self, place: _Place) -> None:
        with self._lock:
            channel, users = self._users.pop(place)
            if users > 1:
                self._users[place] = channel, users - 1
                return
        channel.close()


_OPEN = _Open()


class Channels:
    """Channels by address. Thread-safe; `close` it. Without the number of a `connection` they are its own."""

    def __init__(self, tls: Tls | None, connection: int | None = None, names: CheckedNames | None = None) -> None:
        self._tls, self._whose = tls, object() if connection is None else connection
        self._names = names
        self._lock = threading.Lock()
        self._taken: dict[str, tuple[grpc.Channel, _Place]] = {}
        self._old: list[_Place] = []  # replaced; calls on them may be in progress

    def at(self, address: str) -> grpc.Channel:
        """TargetRefused and StoreUnavailable: see `CheckedNames`. It may wait for DNS."""
        checked = () if self._names is None else self._names.at(address)
        place = address, None if self._tls is None else self._tls.current(), checked, self._whose
        with self._lock:
            known = self._taken.get(address)
            if known is not None and known[1] == place:
                return known[0]
            channel = _OPEN.take(place)
            self._taken[address] = channel, place
            if known is not None:
                self._replace(known[1])
            return channel

    def keep(self, addresses: Collection[str]) -> None:
        """Give those of other addresses back."""
        with self._lock:
            for address in self._taken.keys() - set(addresses):
                self._replace(self._taken.pop(address)[1])

    def _replace(self, place: _Place) -> None:
        self._old.append(place)
        while len(self._old) > len(self._taken):
            _OPEN.give_back(self._old.pop(0))

    def close(self) -> None:
        with self._lock:
            for place in [*self._old, *(place for _, place in self._taken.values())]:
                _OPEN.give_back(place)
            self._taken.clear()
            self._old.clear()
