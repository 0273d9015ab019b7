"""How the ports of a process are protected: their certificates, and the rule that a port without TLS is on loopback."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from tistream.clock import Clock
from tistream.errors import ConfigError
from tistream.model.problem import Problem
from tistream.runtime import metrics
from tistream.runtime.proxies import is_loopback
from tistream.runtime.service import Repeating
from tistream.runtime.tls import ServerFiles, not_after

if TYPE_CHECKING:
    from tistream.config import Settings, TlsSettings
    from tistream.runtime.tls import FileContext

log = structlog.get_logger(__name__)

LOOK_S = 5.0  #: between looks at the files


def check_ports(settings: Settings, *own: str) -> None:
    """ConfigError when a port of a process may not be opened. `own`: the settings of the addresses that it listens on,
    beside that of metrics."""
    for name in (*own, *(["metrics.host"] if settings.metrics.port >= 0 else [])):
        section, _, field = name.partition(".")
        certificate = settings.feed.tls_certificate if section == "dispatcher" else settings.tls.cert
        host = getattr(getattr(settings, section), field)
        check_listening(name, host, has_tls=bool(certificate), insecure=settings.insecure.listen)


def check_listening(setting: str, host: str, *, has_tls: bool, insecure: bool) -> None:
    """ConfigError for a port without TLS that others than this machine reach, unless that was asked for. `setting`: of
    the address."""
    if has_tls or insecure or is_loopback(host):
        return
    needed = "feed.tls_certificate, tls_key and tls_ca" if setting == "dispatcher.host" else "tls.cert and tls.key"
    raise ConfigError(
        f"{setting} = {host}: without TLS a port listens on loopback only. Set {needed}, or say that keys and rows may "
        "travel as plain text: --insecure-listen, or TISTREAM_INSECURE_LISTEN=1.",
        setting=setting, host=host,
    )  # fmt: skip


def files_of(settings: TlsSettings) -> ServerFiles:
    """The files of [tls], where they are set."""
    client_ca = Path(settings.client_ca) if settings.client_ca else None
    return ServerFiles(cert=Path(settings.cert), key=Path(settings.key), client_ca=client_ca)


class Certificates:
    """The TLS of a process's HTTP ports, as a service that watches its files. A file that cannot be used is a problem;
    what was read before stays in use."""

    def __init__(self, files: ServerFiles, clock: Clock) -> None:
        """ConfigError when the files cannot be used now."""
        self.name = "certificates"
        self.files = files
        self.context: FileContext = files.context()
        self._read = self.context.times_read
        self._look()
        self._looks = Repeating(self.name, self._look, interval_s=LOOK_S, clock=clock, lasting=True)

    @classmethod
    def of(cls, settings: TlsSettings, clock: Clock) -> Certificates | None:
        """Those of the settings; None: the ports have no TLS."""
        return cls(files_of(settings), clock) if settings.cert else None

    def start(self) -> None:
        self._looks.start()

    def wait_until_ready(self, timeout_s: float) -> bool:
        return self._looks.wait_until_ready(timeout_s)

    def stop(self) -> None:
        self._looks.stop()

    def problems(self) -> list[Problem]:
        return self._looks.problems()

    def _look(self) -> None:
        self.context.refresh()
        if self.context.times_read != self._read:
            self._read = self.context.times_read
            log.info("certificates were read again", certificate=str(self.files.cert))
        metrics.CERTIFICATE_NOT_AFTER.labels("http").set(not_after(self.files.cert.read_bytes()))
