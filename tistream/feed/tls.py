"""TLS of the feed: the files of [feed], read and checked, for the dispatcher's port and for the sorter's connections.

The files may be replaced at any time (cert-manager renews a mounted secret): each side reads them again. Contents that
do not belong together raise ConfigError and are not used.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.flight as fl

from tistream.config import FeedSettings
from tistream.errors import ConfigError, FeedUnavailable
from tistream.runtime.tls import contents, load_ca, load_pair

TLS_SCHEME = "grpc+tls://"


@dataclass(frozen=True, slots=True)
class FeedTls:
    """The contents of the files, and whom to accept."""

    certificate: bytes
    key: bytes = field(repr=False)
    ca: bytes
    peer_name: str

    def server(self) -> dict[str, Any]:
        """Arguments of a Flight server that accepts only clients with a certificate of the CA."""
        return {
            "tls_certificates": [(self.certificate, self.key)],
            "verify_client": True,
            "root_certificates": self.ca,
        }

    def client(self) -> dict[str, Any]:
        """Arguments of a Flight client. The server's certificate must have `peer_name`, or the host of its address."""
        name = {"override_hostname": self.peer_name} if self.peer_name else {}
        return {"tls_root_certs": self.ca, "cert_chain": self.certificate, "private_key": self.key, **name}


@dataclass(frozen=True, slots=True)
class FeedTlsFiles:
    """Where they are."""

    certificate: Path
    key: Path
    ca: Path
    peer_name: str = ""

    @classmethod
    def of(cls, settings: FeedSettings) -> FeedTlsFiles | None:
        """The files of the settings; None: the feed is not encrypted."""
        if not settings.tls_certificate:
            return None
        return cls(
            Path(settings.tls_certificate), Path(settings.tls_key), Path(settings.tls_ca), settings.tls_peer_name
        )

    def read(self) -> FeedTls:
        """The present contents. ConfigError when a file cannot be read, is not PEM, or the key is of another
        certificate."""
        read = self._read()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        load_pair(context, self.certificate, self.key, "feed.tls_certificate and feed.tls_key")
        load_ca(context, self.ca, "feed.tls_ca")
        if self._read() != read:
            raise ConfigError("the files of [feed] changed while they were read", certificate=self.certificate)
        return read

    def _read(self) -> FeedTls:
        certificate, key, ca = (contents(path, "[feed]") for path in (self.certificate, self.key, self.ca))
        return FeedTls(certificate, key, ca, self.peer_name)


def connect(address: str, files: FeedTlsFiles | None) -> tuple[fl.FlightClient, FeedTls | None]:
    """A client of a dispatcher's port, and the contents that it uses. FeedUnavailable when these settings ask for TLS
    and the dispatcher has none: the token would be sent in the clear."""
    if files is None:
        return fl.FlightClient(address), None
    if not address.startswith(TLS_SCHEME):
        raise FeedUnavailable("this service has the files of [feed], but the dispatcher has not", address=address)
    tls = files.read()
    return fl.FlightClient(address, **tls.client()), tls
