"""Options of the commands that connect to a live TiDB cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tistream.errors import InvalidInput

if TYPE_CHECKING:
    from tistream.tikv.channels import Tls

Pd = Annotated[
    str | None, typer.Option("--pd", help="A live cluster: addresses of its PD servers, host:port[,host:port].")
]
CaPath = Annotated[
    Path | None, typer.Option("--ca-path", help="PEM file: the authority of the cluster's certificates.")
]
CertPath = Annotated[Path | None, typer.Option("--cert-path", help="PEM file: our certificate for the cluster.")]
KeyPath = Annotated[Path | None, typer.Option("--key-path", help="PEM file: the key of our certificate.")]
Keyspace = Annotated[str | None, typer.Option("--keyspace", help="A keyspace of the cluster: its name, or id.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """The files of the cluster's certificates."""

    ca_path: CaPath = None
    cert_path: CertPath = None
    key_path: KeyPath = None

    def tls(self) -> Tls | None:
        """TLS with these files, reloaded when they change; None = no TLS. InvalidInput when one is missing or cannot be
        read."""
        from tistream.tikv.channels import TlsFiles

        if (self.cert_path is None) != (self.key_path is None):
            raise InvalidInput("--cert-path and --key-path belong together")
        if self.ca_path is None and self.cert_path is None:
            return None
        try:
            return TlsFiles(ca=self.ca_path, certificate=self.cert_path, key=self.key_path)
        except OSError as e:
            raise InvalidInput(f"a certificate cannot be read: {e}") from e


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowOptions:
    """What of a live cluster is pushed, and how."""

    store_id: Annotated[
        list[int] | None, typer.Option(help="Of a cluster: follow this store only. May be repeated.")
    ] = None
    seed: Annotated[
        bool,
        typer.Option(
            "--seed-rows",
            help="Of a cluster: also push the rows at the beginning, and those that a MODIFY COLUMN rewrites later.",
        ),
    ] = False
    history_cap: Annotated[
        float, typer.Option(help="Of a cluster: longest delay of its garbage collection, in hours.")
    ] = 24.0
    scans: Annotated[int, typer.Option(min=1, help="Of a cluster: opening scans of one store at once.")] = 32
    scan_rate: Annotated[
        float,
        typer.Option(
            min=0.01, help="Of a cluster: highest read rate of schema and seed, or of a keyspace's scans, in MiB/s."
        ),
    ] = 16.0
    idle_interval: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Of a cluster: while nothing is written anywhere in it, write a batch file per store every this many"
            " seconds instead of every second.",
        ),
    ] = None
    table: Annotated[
        list[str] | None, typer.Option(help="Of a cluster: follow this table, db.table. May be repeated.")
    ] = None
    database: Annotated[list[str] | None, typer.Option(help="Of a cluster: follow this database. May be repeated.")] = (
        None
    )
    index_keys: Annotated[bool, typer.Option(help="Of a cluster: also follow index entries.")] = True
    filter_loop: Annotated[
        bool, typer.Option("--filter-loop", help="Of a cluster: leave out rows written by another change feed.")
    ] = False
    resolve_locks: Annotated[
        bool, typer.Option(help="Of a cluster: resolve locks of dead clients that hold the watermark back.")
    ] = True
    keyspace: Keyspace = None
    spill: Annotated[
        Path | None, typer.Option(help="Of a cluster: a folder for waiting files that exceed 256 MB of memory.")
    ] = None
    spill_mib: Annotated[int, typer.Option(min=1, help="Of a cluster: at most so much per store.")] = 1024


def endpoints(pd: str) -> list[str]:
    """The addresses. InvalidInput when there is none."""
    addresses = [part.strip() for part in pd.split(",") if part.strip()]
    if not addresses:
        raise InvalidInput("--pd: give host:port of at least one PD server")
    return addresses
