"""Restores a backup into a keyspace, or into a cluster of API V1.

    manifest -> every file is checked -> the destination is empty -> files, one after the other -> read back and
    compared

A restore leaves a record in the storage of the backup: one that was interrupted continues after
the last whole file; after a finished one, or with another backup, the next is a new one and needs an empty destination
again.

A key that is in the destination already is not written, unless `allow_existing`: the range was empty, so this restore
or the application wrote it. The latter are counted. (A key that the application has deleted since is written.)

Time is that of the destination's PD: an entry that has expired by it is not written, others keep what remains of their
time.

    restored/TARGET/RUN/begun       the sha256 of the manifest that it restores, and a random number
    restored/TARGET/RUN/FILE        all pairs of this file are written
    restored/TARGET/RUN/finished    nothing of this run is left to do

TARGET is the cluster's id and the keyspace's. Objects are created and never replaced, so of two restores that begin at
the same time one is refused. The newest run is continued if it is unfinished and of the same backup; any other restore
is a new run, which trusts nothing that an earlier one has written.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from backup.cluster import keyspace_id_of
from backup.core.compare import FOUND, Comparison, Fault, compare
from backup.core.manifest import NAME, Manifest
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
from tistream.tikv.raw_client import RawClient, WriteLimits, learn_api

_EXPIRIES_ASKED = 500  # a request each
TTL_TOLERANCE_S = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """What is wanted."""

    keyspace: str | None = None  #: name or id; None = the backup's
    limits: WriteLimits = WriteLimits()  # noqa: RUF009
    checksum: bool = True  #: check all files before, read back and compare afterwards
    allow_existing: bool = False  #: the destination may have keys in the range
    again: bool = False  #: begin a new one, also where one was interrupted


@dataclass(slots=True, kw_only=True)
class Restored:
    """What was done."""

    manifest: Manifest
    keyspace_id: int
    written: int = 0  #: pairs
    expired: int = 0  #: pairs that had expired and were left out
    files_before: int = 0  #: written before this restore was interrupted
    kept: int = 0  #: keys that have another value, written since the restore began
    comparison: Comparison | None = None
    existing: int = 0  #: keys of the destination that are not in the backup, where they may be there
    wrong_expiries: list[bytes] = field(default_factory=list)  #: keys, among those that were looked at

    @property
    def equal(self) -> bool:
        """Whether the destination has what the backup has."""
        faults = {} if self.comparison is None else self.comparison.faults
        return not self.wrong_expiries and not self.kept and not any(faults.values())


def restore(
    pd: PdClient,
    store: ObjectStore,
    plan: Restore,
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
    keyspace_id = keyspace_id_of(pd, api, str(manifest.keyspace_id) if plan.keyspace is None else plan.keyspace)
    if plan.checksum:
        check_backup(store, manifest, stop=stop)
    done = Restored(manifest=manifest, keyspace_id=keyspace_id)
    with closing(RawClient(pd, RawSpace(api, keyspace_id), clock=clock, tls=tls, limits=plan.limits)) as client:
        written = RunRecord(store, f"{pd.cluster_id}-{keyspace_id}", new=plan.again)
        _write(written, client, pd, plan, done, stop, progress)
        if plan.checksum:
            _read_back(store, client, pd, plan, done)
    return done


def _write(
    written: RunRecord,
    client: RawClient,
    pd: PdClient,
    plan: Restore,
    done: Restored,
    stop: threading.Event,
    progress: Progress,
) -> None:
    files = done.manifest.files
    if written.is_new and not plan.allow_existing:
        _check_empty(client, done.manifest)
    written.begin()
    for number, file in enumerate(files):
        if file.name in written.files:
            done.files_before += 1
            continue
        for block in read_file(written.store, file):
            if stop.is_set():
                raise StoreUnavailable("stopped", object=file.name)
            pairs = alive(block, _now_s(pd)).combine_chunks()
            done.expired += block.num_rows - pairs.num_rows
            if not plan.allow_existing:
                pairs = _absent(client, pairs, done).combine_chunks()
            done.written += pairs.num_rows
            if pairs.num_rows:
                keys, values, expires = (column.chunk(0) for column in pairs.columns)
                client.batch_put(keys, values, expires.to_numpy())
        written.add(file.name)
        progress(number + 1, len(files))
    written.finish()


def _absent(client: RawClient, pairs: pa.Table, done: Restored) -> pa.Table:
    """The pairs whose keys the destination does not have; those with another value there are counted."""
    if not pairs.num_rows:
        return pairs
    part = KeyRange(pairs["key"][0].as_py(), pairs["key"][pairs.num_rows - 1].as_py() + b"\0")
    for page in client.scan(part):
        there = pc.index_in(page.keys, pairs["key"].combine_chunks())
        ours = pc.is_valid(there)
        values = pc.take(pairs["value"].combine_chunks(), there.filter(ours))
        done.kept += int(pc.sum(pc.not_equal(values, page.values.filter(ours))).as_py() or 0)
        pairs = pairs.filter(pc.invert(pc.is_in(pairs["key"], page.keys)))
    return pairs


def _check_empty(client: RawClient, manifest: Manifest) -> None:
    for page in client.scan(manifest.range, page_keys=1):
        raise InvalidInput(
            "The destination has keys in the range of the backup. Restore into an empty range, or allow it with "
            "--allow-existing: keys of both get the backup's values.",
            key=page.keys[0].as_py(),
        )


def _read_back(store: ObjectStore, client: RawClient, pd: PdClient, plan: Restore, done: Restored) -> None:
    """Compare the destination with the backup."""
    comparison = compare(
        (alive(block, _now_s(pd)) for file in done.manifest.files for block in read_file(store, file)),
        scanned(client, done.manifest.range),
        now_s=lambda: _now_s(pd),
        ttl_tolerance_s=TTL_TOLERANCE_S,
    )
    if plan.allow_existing:
        done.existing, comparison.faults[Fault.EXTRA] = comparison.faults[Fault.EXTRA], 0
        comparison.differences = [each for each in comparison.differences if each.fault is not Fault.EXTRA]
    done.comparison = comparison
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


def scanned(client: RawClient, range_: KeyRange) -> Iterator[pa.Table]:
    """All pairs of a range of a destination (schema FOUND), by key; RawScan tells no expiry."""
    for page in client.scan(range_):
        unknown = pa.nulls(len(page.keys), pa.uint64())
        yield pa.Table.from_arrays([page.keys, page.values, unknown], schema=FOUND)


def _now_s(pd: PdClient) -> int:
    """Unix seconds of PD."""
    return tso.physical_ms(pd.tso()) // 1000


_BEGUN, _FINISHED = "begun", "finished"


class RunRecord:
    """The record of one run."""

    def __init__(self, store: ObjectStore, target: str, *, new: bool = False) -> None:
        """Continue the newest run into this target, or begin one; `new`: begin one in any case."""
        self.store = store
        self._backup = hashlib.sha256(store.get(NAME)).hexdigest()
        prefix = f"restored/{target}/"
        runs: dict[int, set[str]] = {}
        for info in store.list(prefix):
            number, _, name = info.key.removeprefix(prefix).partition("/")
            runs.setdefault(int(number), set()).add(name)
        newest = max(runs, default=0)
        run = runs.get(newest, set())
        self.is_new = new or not run or _FINISHED in run or not self._is_ours(f"{prefix}{newest:06d}/{_BEGUN}")
        self._prefix = f"{prefix}{newest + self.is_new:06d}/"
        self._names = set[str]() if self.is_new else run

    def _is_ours(self, key: str) -> bool:
        return bool(orjson.loads(self.store.get(key))["backup"] == self._backup)

    @property
    def files(self) -> set[str]:
        """Names of the files that are written."""
        return {name for name in self._names if name not in (_BEGUN, _FINISHED)}

    def begin(self) -> None:
        """Note a new run. ObjectConflict when another one has begun since."""
        if self.is_new:
            body = {"backup": self._backup, "run": secrets.token_hex(8)}
            self.store.put(self._prefix + _BEGUN, orjson.dumps(body))

    def add(self, file: str) -> None:
        """Record that all entries of a file are written."""
        self.store.put(self._prefix + file, b"")

    def finish(self) -> None:
        """Note that all files are."""
        self.store.put(self._prefix + _FINISHED, b"")
