"""`tistream raw backup|check|restore`: backups of RawKV in object storage."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tistream.cli.cluster_options import Keyspace, Pd, TlsOptions, endpoints
from tistream.cli.filter_options import FormatOfKeys
from tistream.cli.options import OneCluster, OneTenant
from tistream.cli.output import OutputForm, OutputOption, show_facts
from tistream.cli.service import ServiceOptions
from tistream.errors import InvalidInput

if TYPE_CHECKING:
    from backup.core.manifest import Manifest
    from backup.job import Progress
    from backup.restore import Restored
    from tistream.keyrange import KeyRange
    from tistream.objectstore.protocol import ObjectStore
    from tistream.tikv.channels import Tls
    from tistream.tikv.pd import PdClient

commands = typer.Typer(help="Back up and restore RawKV.", no_args_is_help=True)

Storage = Annotated[
    str, typer.Option("--storage", "-s", help="Of the backup: s3://bucket/prefix or file:///absolute/folder.")
]
Start = Annotated[str, typer.Option("--start", help="Only keys from this one on, in the key format.")]
End = Annotated[str, typer.Option("--end", help="Only keys below this one, in the key format.")]
RateLimit = Annotated[float, typer.Option("--ratelimit", min=0, help="MiB a second at most; 0 = no limit.")]
Threads = Annotated[int, typer.Option("--concurrency", min=1, max=64, help="Regions, or requests, at once.")]
Checksum = Annotated[
    bool, typer.Option("--checksum/--no-checksum", help="Check all files; after a restore read back and compare.")
]


@commands.command()
def backup(
    *,
    storage: Storage,
    pd: Pd = None,
    keyspace: Keyspace = None,
    start: Start = "",
    end: End = "",
    key_format: FormatOfKeys = None,
    dst_api_version: Annotated[
        str | None, typer.Option(help="Of the files: v1, v1ttl or v2; the cluster's by default. V1 becomes V2.")
    ] = None,
    ratelimit: RateLimit = 0,
    concurrency: Threads = 4,
    checksum: Checksum = True,
    safe_interval: Annotated[
        float, typer.Option(min=0, help="Seconds before PD's time that backup-ts is, for a keyspace without a tenant.")
    ] = 60,
    from_log: Annotated[
        bool, typer.Option("--from-log", help="From the log of a tenant, not from the cluster.")
    ] = False,
    as_of: Annotated[
        str, typer.Option(help="Of the log: TSO, RFC 3339 time, latest or a span such as -15m.")
    ] = "latest",
    allow_state: Annotated[
        bool, typer.Option("--allow-state", help="Show the newest known versions where the log may lack some.")
    ] = False,
    cluster: OneCluster = None,
    tenant: OneTenant = None,
    tls: TlsOptions,
    to: ServiceOptions,
) -> None:
    """Back up the keys of a cluster, or of a tenant as of a timestamp.

    With --cluster and --tenant, the tenant that captures the keyspace, backup-ts is its watermark; a changefeed that
    starts there continues without a gap. With --from-log the cluster is not touched."""
    from backup.cluster import ClusterBackup, back_up_cluster
    from backup.core.manifest import api_named
    from tistream.clock import SystemClock

    keys = _range(start, end, key_format or "escaped")
    with _store(storage) as store, _progress("backed up", "parts") as progress:
        if from_log:
            if pd or keyspace or dst_api_version:
                raise InvalidInput("A backup from the log has no --pd, --keyspace and --dst-api-version.")
            manifest = _from_log(
                store, keys, _tenant_of(cluster, tenant), to.url, as_of, ratelimit, progress, allow_state=allow_state
            )
        else:
            settings = ClusterBackup(
                keyspace=keyspace,
                range=keys,
                api=None if dst_api_version is None else api_named(dst_api_version),
                bytes_s=_bytes_s(ratelimit),
                threads=concurrency,
                safe_interval_s=safe_interval,
                watermark=None if cluster is None else partial(_watermark, to.url, _tenant_of(cluster, tenant), keys),
            )
            certificates, stop = tls.tls(), threading.Event()
            with _pd(pd, certificates) as client:
                manifest = back_up_cluster(
                    client, store, settings, clock=SystemClock(), stop=stop, tls=certificates, progress=progress
                )
        if checksum:
            _check(store, manifest, concurrency)
    to.show(_facts(manifest))
    _say_next(manifest)


@commands.command()
def check(storage: Storage, concurrency: Threads = 4, output: OutputOption = OutputForm.TABLE) -> None:
    """Read all files of a backup and compare them with its manifest."""
    from backup.job import open_backup

    with _store(storage) as store:
        manifest = open_backup(store)
        _check(store, manifest, concurrency)
    show_facts(_facts(manifest), output)


@commands.command()
def restore(
    *,
    storage: Storage,
    pd: Pd = None,
    keyspace: Keyspace = None,
    ratelimit: RateLimit = 0,
    concurrency: Threads = 4,
    batch_keys: Annotated[int, typer.Option(min=1, help="Keys of a request at most.")] = 1024,
    batch_mib: Annotated[float, typer.Option(min=0.01, max=3, help="MiB of a request at most.")] = 1,
    checksum: Checksum = True,
    allow_existing: Annotated[
        bool, typer.Option("--allow-existing", help="The destination may have keys in the range; they stay.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Begin a new restore, also where one was interrupted.")
    ] = False,
    secured: TlsOptions,
    output: OutputOption = OutputForm.TABLE,
) -> None:
    """Restore a backup into a keyspace, or into a cluster of API V1.

    Run it again to continue after an interruption. What has expired by the time of the cluster's PD is not written.
    Exit status 1: the keys read back differ."""
    from backup.restore import Restore
    from backup.restore import restore as run
    from tistream.clock import SystemClock
    from tistream.tikv.raw_client import WriteLimits

    limits = WriteLimits(
        concurrency=concurrency, batch_keys=batch_keys, batch_bytes=int(batch_mib * (1 << 20)),
        rate_bytes_s=int(ratelimit * (1 << 20)), patience_s=600, write_s=20,
    )  # fmt: skip
    options = Restore(keyspace=keyspace, limits=limits, checksum=checksum, allow_existing=allow_existing, again=again)
    tls = secured.tls()
    with _store(storage) as store, _pd(pd, tls) as client, _progress("restored", "files") as progress:
        done = run(client, store, options, clock=SystemClock(), stop=threading.Event(), tls=tls, progress=progress)
    show_facts(_restored_facts(done), output)
    if not done.equal:
        _show_differences(done)
        raise typer.Exit(1)
    _say_next(done.manifest)


# -- inside ------------------------------------------------------------------------------------------------------------


def _from_log(
    store: ObjectStore,
    keys: KeyRange,
    tenant: tuple[int, int],
    url: str,
    as_of: str,
    ratelimit: float,
    progress: Progress,
    *,
    allow_state: bool,
) -> Manifest:
    from backup.from_log import back_up_log
    from tistream.cli.service import connect
    from tistream.clock import SystemClock
    from tistream.runtime.rate_limiter import RateLimiter

    stop = threading.Event()
    with connect(url) as client:
        return back_up_log(
            client, client.tenant(*tenant), store, keys, as_of,
            allow_state=allow_state, rate=RateLimiter(_bytes_s(ratelimit), SystemClock(), stop), stop=stop,
            progress=progress,
        )  # fmt: skip


def _watermark(url: str, tenant: tuple[int, int], keys: KeyRange, keyspace_id: int) -> int:
    from backup.from_log import watermark_of
    from tistream.cli.service import connect

    with connect(url) as client:
        return watermark_of(client, client.tenant(*tenant), keyspace_id, keys)


def _check(store: ObjectStore, manifest: Manifest, threads: int) -> None:
    from backup.job import check_backup

    with _progress("checked", "files") as progress:
        check_backup(store, manifest, stop=threading.Event(), threads=threads, progress=progress)


def _range(start: str, end: str, form: str) -> KeyRange:
    from tistream.codec.key_format import KeyFormat, parse
    from tistream.keyrange import KeyRange

    if form not in [*KeyFormat]:
        raise InvalidInput(f"There is no key format '{form}': give {', '.join(KeyFormat)}.", option="key-format")
    first, last = (parse(text, KeyFormat(form), parameter=name) for name, text in (("start", start), ("end", end)))
    if last and last <= first:
        raise InvalidInput("The range is empty: --end is not above --start.", option="end")
    return KeyRange(first, last)


def _tenant_of(cluster: int | None, tenant: int | None) -> tuple[int, int]:
    if cluster is None or tenant is None:
        raise InvalidInput("Name the tenant: --cluster and --tenant.")
    return cluster, tenant


def _bytes_s(mib_s: float) -> float:
    return mib_s * (1 << 20) or float("inf")


@contextmanager
def _store(url: str) -> Iterator[ObjectStore]:
    from tistream.objectstore.factory import open_store

    if url.startswith("file:///"):
        Path(url.removeprefix("file://")).mkdir(parents=True, exist_ok=True)
    yield open_store(url)


@contextmanager
def _pd(addresses: str | None, tls: Tls | None) -> Iterator[PdClient]:
    from tistream.tikv.pd import PdClient

    if addresses is None:
        raise InvalidInput("Name the cluster: --pd host:port.", option="pd")
    client = PdClient(endpoints(addresses), tls=tls)
    try:
        yield client
    finally:
        client.close()


@contextmanager
def _progress(title: str, unit: str) -> Iterator[Progress]:
    from tistream.cli.progress import Progress as Shown

    with Shown(title, sys.stderr) as shown:
        yield lambda done, total: shown.update(done, total, unit)


def _facts(manifest: Manifest) -> dict[str, Any]:
    sums = manifest.lasting + manifest.expiring
    return {
        "backup_ts": str(manifest.backup_ts),
        "made_from": manifest.made_from,
        "source_api_version": manifest.source_api.name.lower(),
        "api_version": manifest.api.name.lower(),
        "keyspace_id": manifest.keyspace_id,
        "files": len(manifest.files),
        "pairs": sums.pairs,
        "bytes": sums.bytes,
        "crc64_xor": f"{manifest.lasting.crc64_xor:016x}",
        "expiring_pairs": manifest.expiring.pairs,
        "inexact_keys": manifest.inexact,
    }


def _restored_facts(done: Restored) -> dict[str, Any]:
    return {
        **_facts(done.manifest),
        "keyspace_id": done.keyspace_id,
        "written_pairs": done.written,
        "expired_pairs": done.expired,
        "files_restored_before": done.files_before,
        "kept_keys": done.kept,
        "compared": done.comparison is not None,
        "equal": done.equal if done.comparison is not None else None,
        "other_keys": done.existing,
    }


def _show_differences(done: Restored) -> None:
    if done.kept:
        print(f"{done.kept} keys have another value, written since the restore began: they are kept", file=sys.stderr)
    if (comparison := done.comparison) is None:
        return
    counts = ", ".join(f"{count} {fault}" for fault, count in comparison.faults.items() if count)
    print(f"the keys read back differ: {counts or 'expiries'}", file=sys.stderr)
    for each in comparison.differences:
        print(f"  0x{each.key.hex()} {each.fault}: {each.source} in the backup, {each.destination}", file=sys.stderr)
    for key in done.wrong_expiries[:10]:
        print(f"  0x{key.hex()} ends at another time", file=sys.stderr)


def _say_next(manifest: Manifest) -> None:
    if manifest.source_api.name == "V2":
        print(
            "the changes after it: tistream changefeed create NAME -c CLUSTER -t TENANT --sink-uri tikv://PD"
            f" --start-ts {manifest.backup_ts}",
            file=sys.stderr,
        )
