"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tistream.errors import ConfigError, InvalidInput

if TYPE_CHECKING:
    from tistream.catalog.database.engine import Catalog as Database
    from tistream.cli.running import Parts
    from tistream.config import Settings


def _last_url(context: typer.Context, parameter: typer.CallbackParam, value: str) -> str:
    """The address of the last login, when none is given."""
    from tistream.runtime import credentials

    given = context.get_parameter_source(str(parameter.name))
    return value if given is None or given.name != "DEFAULT" else credentials.last_url() or value


def _use_key(value: str | None) -> str | None:
    """Use the key for all requests of this process."""
    from tistream.runtime import credentials

    credentials.use_key(value)
    return value


def _use_file(context: typer.Context, parameter: typer.CallbackParam, value: Path | None) -> Path | None:
    """Use this file of TLS for all requests of this process."""
    from tistream.runtime import credentials

    credentials.use_file(_FILES[str(parameter.name)], None if value is None else str(value))
    return value


_FILES = {"ca": "ca", "client_cert": "cert", "client_key": "key"}
Url = Annotated[str, typer.Option("--url", help="The service's address.", envvar="TISTREAM_URL", callback=_last_url)]
Key = Annotated[
    str | None,
    typer.Option(
        "--key", help="API key; by default the one that tistream login kept.", envvar="TISTREAM_KEY", callback=_use_key
    ),
]
Ca = Annotated[
    Path | None,
    typer.Option(
        "--ca", help="PEM file: the authority of the service's certificate.", envvar="TISTREAM_CA", callback=_use_file
    ),
]
ClientCert = Annotated[
    Path | None,
    typer.Option(
        "--client-cert",
        help="PEM file: our certificate, where the service asks for one.",
        envvar="TISTREAM_CLIENT_CERT",
        callback=_use_file,
    ),
]
ClientKey = Annotated[
    Path | None,
    typer.Option("--client-key", help="PEM file: its key.", envvar="TISTREAM_CLIENT_KEY", callback=_use_file),
]
Cluster = Annotated[int, typer.Option("--cluster", "-c", help="Upstream cluster id.")]
Tenant = Annotated[int, typer.Option("--tenant", "-t", help="Tenant id within the cluster.")]
OneCluster = Annotated[int | None, typer.Option("--cluster", "-c", help="Only this upstream cluster.")]
OneTenant = Annotated[int | None, typer.Option("--tenant", "-t", help="Only this tenant of the cluster.")]
Config = Annotated[Path | None, typer.Option("--config", help="A TOML file with settings.", exists=True)]
Catalog = Annotated[str | None, typer.Option("--catalog", help="Catalog URL (setting catalog.url).")]
Bucket = Annotated[str | None, typer.Option("--object-store", help="Object store URL (setting object_store.url).")]
Host = Annotated[str | None, typer.Option("--host", help="Address to listen on.")]
Port = Annotated[int | None, typer.Option("--port", "-p", help="Port to listen on; 0 = any free one.")]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port", help="Port for probes and metrics (setting metrics.port); 0 = any free one, none by default."
    ),
]
MetricsHost = Annotated[str, typer.Option("--metrics-host", help="Address that --metrics-port listens on.")]
TlsCert = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert",
        help="PEM file: the certificate of this process's HTTP ports (setting tls.cert).",
        envvar="TISTREAM_TLS_CERT",
    ),
]
TlsKey = Annotated[
    Path | None, typer.Option("--tls-key", help="PEM file: its key (setting tls.key).", envvar="TISTREAM_TLS_KEY")
]
TlsClientCa = Annotated[
    Path | None,
    typer.Option(
        "--tls-client-ca",
        help="PEM file: the authority whose certificates clients need (setting tls.client_ca).",
        envvar="TISTREAM_TLS_CLIENT_CA",
    ),
]
InsecureListen = Annotated[
    bool | None,
    typer.Option(
        "--insecure-listen",
        help="Listen on other addresses than loopback although a port has no TLS (setting insecure.listen).",
        envvar="TISTREAM_INSECURE_LISTEN",
    ),
]
Master = Annotated[str | None, typer.Option("--master", help="Spark master; without it that of spark-submit.")]
SparkConf = Annotated[
    list[str] | None, typer.Option("--spark-conf", help="A Spark setting, NAME=VALUE; may be repeated.")
]

DEFAULT_URL = "http://127.0.0.1:8711"


def spark_settings(given: list[str]) -> dict[str, str]:
    """Spark settings. InvalidInput for one without a name or a value."""
    out: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidInput(f"'{text}' is not a Spark setting: write NAME=VALUE.")
        out[name] = value
    return out


@contextmanager
def catalog_of(url: str | None, config: Path | None, *, must_exist: bool = False) -> Iterator[Database]:
    """The catalog that the option or the settings name, for a command that needs no bucket; closed at the end. NotFound
    when it must exist and is a SQLite file that does not."""
    from tistream.catalog.database.checks import refuse_missing
    from tistream.catalog.database.engine import Catalog as Database
    from tistream.cli.assembly import load_settings

    url = load_settings(config, {"catalog.url": url}).catalog.url
    if not url:
        raise ConfigError("Name the catalog: --catalog, or [catalog] url of the settings.")
    if must_exist:
        refuse_missing(url)
    database = Database(url)
    try:
        yield database
    finally:
        database.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentOptions:
    """Where catalog and bucket of a deployment are."""

    catalog: Catalog = None
    object_store: Bucket = None
    config: Config = None

    def settings(self, more: dict[str, object] | None = None) -> Settings:
        """Settings from file, environment and flags; the log is configured by them. `more`: other settings."""
        from tistream.cli import assembly
        from tistream.cli.log import configure

        flags = {"catalog.url": self.catalog, "object_store.url": self.object_store, **(more or {})}
        settings = assembly.load_settings(self.config, flags)
        configure(settings.log)
        return settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions(DeploymentOptions):
    """The same of a process of the deployment."""

    metrics_port: MetricsPort = None

    def open(self, more: dict[str, object] | None = None, *ports: str) -> Parts:
        """Open catalog and bucket. `ports`: the settings of the addresses that the process listens on, beside that of
        metrics."""
        from tistream.cli import assembly

        return assembly.open_process(self.settings({"metrics.port": self.metrics_port, **(more or {})}), *ports)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortOptions:
    """How the ports of a process are protected."""

    tls_cert: TlsCert = None
    tls_key: TlsKey = None
    tls_client_ca: TlsClientCa = None
    insecure_listen: InsecureListen = None

    def flags(self) -> dict[str, object]:
        """The settings that these options name."""
        return {
            "tls.cert": _text(self.tls_cert),
            "tls.key": _text(self.tls_key),
            "tls.client_ca": _text(self.tls_client_ca),
            "insecure.listen": self.insecure_listen,
        }


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
