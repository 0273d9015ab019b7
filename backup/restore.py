"""Restores a backup into a keyspace, or into a cluster of API V1.

    manifest -> every file is checked -> the destination is empty -> files, one after the other -> read back and
    compared

A file whose pairs are all written leaves a mark beside the backup. A restore that was interrupted continues after the
last mark; the file in between is written again, with the same pairs.

Time is that of the destination's PD: an entry that has expired by it is not written, others keep what remains of their
time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

import pyarrow as pa

from backup.cluster import keyspace_id_of
from backup.core.compare import FOUND, Comparison, Fault, compare
from backup.core.manifest import Manifest
from backup.core.pairs import alive, parted
from backup.files import read_file
from backup.job import Progress, check_backup, open_backup
from tistream import ts as tso
from tistream.clock import Clock
from tistream.errors import InvalidInput, StoreUnavailable
from tistream.keyrange import KeyRange
from tistream.objectstore.protocol import ObjectStore
from tistream.tikv.channels import Tls
from tistream.tikv.core.raw_messages import RawSpace
from tistream.tikv.pd import PdClient
from tistream.tikv.raw_client import Pace, RawClient, learn_api

_EXPIRIES_ASKED = 500  # a request each
TTL_TOLERANCE_S = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """What is wanted."""

    keyspace: str | None = None  #: name or id; None = the backup's
    pace: Pace = Pace()  # noqa: RUF009
    checksum: bool = True  #: check all files before, read back and compare afterwards
    allow_existing: bool = False  #: the destination may have keys in the range
    again: bool = False  #: write all files, also those that an earlier restore has written


@dataclass(slots=True, kw_only=True)
class Restored:
    """What was done."""

    manifest: Manifest
    keyspace_id: int
    written: int = 0  #: pairs
    expired: int = 0  #: pairs that had expired and were left out
    files_before: int = 0  #: written by an earlier restore
    comparison: Comparison | None = None
    existing: int = 0  #: keys of the destination that are not in the backup, where they may be there
    wrong_expiries: list[bytes] = field(default_factory=list)  #: keys, among those that were looked at

    @property
    def equal(self) -> bool:
        """Whether the destination has what the backup has."""
        faults = {} if self.comparison is None else self.comparison.faults
        return not self.wrong_expiries and not any(faults.values())


def restore(
    pd: PdClient,
    store: ObjectStore,
    wanted: Restore,
    *,
    clock: Clock,
    stop: threading.Event,
    tls: Tls | None = None,
    progress: Progress = lambda done, files: None,
) -> Restored:
    """Restore the backup in `store`. CorruptObject for a damaged one, InvalidInput for a cluster that cannot take it,
    StoreUnavailable when stopped or when the cluster does not answer for long."""
    manifest = open_backup(store)
    api = learn_api(pd, clock=clock, tls=tls)
    if api is not manifest.api:
        raise InvalidInput(
            f"The backup is of API {manifest.api}, the cluster of API {api}. A backup with --dst-api-version "
            f"{api.name.lower()} fits, where there is such a conversion.",
            backup=manifest.api.name.lower(),
            cluster=api.name.lower(),
        )
    keyspace_id = keyspace_id_of(pd, api, str(manifest.keyspace_id) if wanted.keyspace is None else wanted.keyspace)
    if wanted.checksum:
        check_backup(store, manifest, stop=stop)
    done = Restored(manifest=manifest, keyspace_id=keyspace_id)
    with closing(RawClient(pd, RawSpace(api, keyspace_id), clock=clock, tls=tls, pace=wanted.pace)) as client:
        _write(_Marks(store, pd.cluster_id, keyspace_id), client, pd, wanted, done, stop, progress)
        if wanted.checksum:
            _read_back(store, client, pd, wanted, done)
    return done


class _Marks:
    """What earlier restores into the same keyspace of the same cluster have written, as objects beside the backup."""

    def __init__(self, store: ObjectStore, cluster_id: int, keyspace_id: int) -> None:
        self.store = store
        self._prefix = f"restored/{cluster_id}-{keyspace_id}/"
        self.found = {info.key for info in store.list(self._prefix)}

    def name(self, of: str) -> str:
        return self._prefix + of.replace("/", "-")

    def set(self, of: str) -> None:
        self.store.put(self.name(of), b"")


def _write(
    marks: _Marks,
    client: RawClient,
    pd: PdClient,
    wanted: Restore,
    done: Restored,
    stop: threading.Event,
    progress: Progress,
) -> None:
    files = done.manifest.files
    if not marks.found and not wanted.allow_existing:
        _check_empty(client, done.manifest)
    marks.set("begun")
    for number, file in enumerate(files):
        if marks.name(file.name) in marks.found and not wanted.again:
            done.files_before += 1
            continue
        for block in read_file(marks.store, file):
            if stop.is_set():
                raise StoreUnavailable("stopped", object=file.name)
            pairs = alive(block, _now_s(pd)).combine_chunks()
            done.expired += block.num_rows - pairs.num_rows
            done.written += pairs.num_rows
            if pairs.num_rows:
                keys, values, expires = (column.chunk(0) for column in pairs.columns)
                client.batch_put(keys, values, expires.to_numpy())
        marks.set(file.name)
        progress(number + 1, len(files))


def _check_empty(client: RawClient, manifest: Manifest) -> None:
    for page in client.scan(manifest.range, page_keys=1):
        raise InvalidInput(
            "The destination has keys in the range of the backup. Restore into an empty range, or allow it with "
            "--allow-existing: keys of both get the backup's values.",
            key=page.keys[0].as_py(),
        )


def _read_back(store: ObjectStore, client: RawClient, pd: PdClient, wanted: Restore, done: Restored) -> None:
    """Compare the destination with the backup."""
    found = compare(
        (alive(block, _now_s(pd)) for file in done.manifest.files for block in read_file(store, file)),
        scanned(client, done.manifest.range),
        now_s=lambda: _now_s(pd),
        ttl_tolerance_s=TTL_TOLERANCE_S,
    )
    if wanted.allow_existing:
        done.existing, found.faults[Fault.EXTRA] = found.faults[Fault.EXTRA], 0
        found.differences = [each for each in found.differences if each.fault is not Fault.EXTRA]
    done.comparison = found
    if client.space.has_expiry:
        _check_expiries(store, client, pd, done)


def _check_expiries(store: ObjectStore, client: RawClient, pd: PdClient, done: Restored) -> None:
    """Ask for the expiries of the first keys of the backup that have one."""
    asked = 0
    for file in done.manifest.files:
        if asked >= _EXPIRIES_ASKED:
            return
        if not file.expiring.pairs:
            continue
        for block in read_file(store, file):
            _, expiring = parted(block)
            rows = expiring.slice(0, _EXPIRIES_ASKED - asked)
            asked += rows.num_rows
            for key, expire_ts in zip(rows["key"].to_pylist(), rows["expire_ts"].to_pylist(), strict=True):
                left, now_s = client.get_ttl(key), _now_s(pd)
                is_gone = left is None and expire_ts <= now_s + TTL_TOLERANCE_S
                if not is_gone and (not left or abs(now_s + left - expire_ts) > TTL_TOLERANCE_S):
                    done.wrong_expiries.append(key)


def scanned(client: RawClient, wanted: KeyRange) -> Iterator[pa.Table]:
    """All pairs of a range of a destination (schema FOUND), by key; RawScan tells no expiry."""
    for page in client.scan(wanted):
        unknown = pa.nulls(len(page.keys), pa.uint64())
        yield pa.Table.from_arrays([page.keys, page.values, unknown], schema=FOUND)


def _now_s(pd: PdClient) -> int:
    """Unix seconds of PD."""
    return tso.physical_ms(pd.tso()) // 1000
