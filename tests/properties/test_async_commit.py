"""Locks of dead clients, of async commit and of two phases: whoever ends a transaction, all of its keys end alike.

The resolver of the pusher asks the stores of the model, is lost behind any of its requests and begins again, while the
client comes back late and goes on where it was. What a living TiKV answered (`tests/data/real_tikv/async_locks.ndjson`)
is held against the resolver and against the model.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pusher.tikv import locks
from pusher.tikv.core.effects import HeldBack
from pusher.tikv.locks import LockResolver
from simulator.core.cluster import Cluster
from simulator.core.mvcc import Lock
from simulator.dst.mutants import reworded
from simulator.serve.content import cluster_of
from simulator.serve.core.kv import (
    KV_CHECK_SECONDARIES,
    KV_CHECK_TXN,
    KV_RESOLVE_LOCK,
    KV_SCAN_LOCK,
    AsyncLock,
    KvReads,
)
from tistream import ts
from tistream.codec.protobuf import parse
from tistream.codec.table_key import record_key
from tistream.errors import StoreUnavailable
from tistream.keyrange import KeyRange
from tistream.model.change import Op
from tistream.tikv.core import wire
from tistream.tikv.core.pd_messages import Region, Store
from tistream.tikv.core.regions import region_form

RECORDED = Path(__file__).parents[1] / "data" / "real_tikv" / "async_locks.ndjson"
START = ts.compose(1_700_000_000_000)
NOW = START + ts.compose(60_000)
KEYS = tuple(record_key(100, n) for n in range(6))
SEEDS = range(90)


class Lost(Exception):
    """Stands for a resolver whose process ends."""


class Stores:
    """PD, and the stores of the model without a network. `before` and `after` are called around each request."""

    def __init__(self, cluster: Cluster, reads: KvReads) -> None:
        self.cluster, self.reads = cluster, reads
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        self.asked: list[tuple[str, bytes]] = []

    def tso(self) -> int:
        return NOW

    def stores(self) -> list[Store]:
        return [Store(id=i, address=str(i), state=0, version="") for i in (1, 2, 3)]

    def get_region(self, key: bytes) -> Region:
        (region,) = [r for r in self.cluster.regions() if _starts_at(r.range, key)]
        return Region(
            id=region.region_id,
            conf_ver=1,
            version=region.version,
            start=region_form(region.range.start),
            end=region_form(region.range.end),
            leader_store_id=region.store_id,
            leader_peer_id=1,
        )

    def keep(self, addresses: object) -> None:
        """Does nothing: the model has no connections."""

    def channel(self, store_id: int) -> Stores:
        self._store_id = store_id
        return self

    def unary_unary(self, method: str) -> Callable[..., bytes]:
        answer = {
            KV_SCAN_LOCK: self.reads.scan_lock,
            KV_CHECK_TXN: self.reads.check_txn,
            KV_CHECK_SECONDARIES: self.reads.check_secondaries,
            KV_RESOLVE_LOCK: self.reads.resolve_lock,
        }[method]

        def ask(request: bytes, timeout: float) -> bytes:
            self.before()
            self.asked.append((method, request))
            reply = answer(self._store_id, request)
            self.after()
            return reply

        return ask

    def close(self) -> None:
        pass


def _starts_at(range_: KeyRange, key: bytes) -> bool:
    start, end = region_form(range_.start), region_form(range_.end)
    return start <= key and (not end or key < end)


class Client:
    """Writes a transaction of async commit, or one that goes over to two phases. One step at a time; `commit_ts` is
    what it has told its caller, once it has."""

    def __init__(self, rand: random.Random, cluster: Cluster, reads: KvReads, keys: list[bytes]) -> None:
        self.cluster, self.reads, self.keys = cluster, reads, keys
        self.commit_ts = 0
        self.is_plain = False  #: some lock is not of async commit
        self.two_phases = rand.random() < 0.3
        self.min_commit_ts = {key: START + 1 + rand.randint(0, 9) for key in keys}
        first = [key for key in keys[1:] if rand.random() < 0.5]
        order = [*first, *keys[:1], *(key for key in keys[1:] if key not in first)]
        self.steps = self._run(order)

    def step(self) -> None:
        next(self.steps, None)

    def _run(self, order: list[bytes]) -> Iterator[None]:
        primary = self.keys[0]
        for n, key in enumerate(order):
            if (key, START) in self.reads.refused or START in self.reads.rolled_back:
                return
            if not self.two_phases or n % 2 == 0 or key == primary:
                others = tuple(self.keys[1:]) if key == primary else ()
                said = AsyncLock(min_commit_ts=self.min_commit_ts[key], secondaries=others)
                self.reads.asynchronous[key, START] = said
            else:
                self.is_plain = True
            self.reads.primaries[key] = primary
            self.cluster.prewrite(key, Lock(START, Op.PUT, b"new", None))
            yield
        if self.is_plain:
            yield from self._commit(START + 50, order)
            return
        self.commit_ts = max(self.min_commit_ts.values())
        yield
        yield from self._commit(self.commit_ts, order)

    def _commit(self, commit_ts: int, order: list[bytes]) -> Iterator[None]:
        """The primary first: without its lock nothing is committed."""
        for key in [self.keys[0], *order]:
            lock = self.cluster.lock(key)
            if lock is not None and lock.start_ts == START:
                self.cluster.commit(key, start_ts=START, commit_ts=commit_ts)
            elif key == self.keys[0] and not self.cluster.versions(key):
                return
            yield


def wrong(seed: int) -> str:
    """What is not as it must be after a random run; empty when all is."""
    rand = random.Random(f"async {seed}")
    cluster = cluster_of([], floor_ts=START - 1, regions=1)
    cluster.split(cluster.region_of(KEYS[0]).region_id, [KEYS[2], KEYS[4]], [101, 102])
    reads = KvReads(cluster)
    stores = Stores(cluster, reads)
    keys = rand.sample(KEYS, rand.randint(1, len(KEYS)))
    client = Client(rand, cluster, reads, keys)
    for _ in range(rand.randint(0, 2 * len(keys))):
        client.step()

    def happen() -> None:
        while rand.random() < 0.3:
            client.step()
        if rand.random() < 0.15:
            raise Lost

    stores.before = stores.after = happen
    for _ in range(40):
        check(stores)
    stores.before = stores.after = lambda: None
    for _ in range(3):
        check(stores)
        for _ in range(3 * len(keys)):
            client.step()
    locked = [key for key in keys if cluster.lock(key) is not None]
    ended = {key: [v.commit_ts for v in cluster.versions(key)] for key in keys}
    allowed = {client.commit_ts} if client.commit_ts else {0, max(client.min_commit_ts.values())}
    if client.is_plain:
        allowed = {0, START + 50}
    outcomes = {versions[0] if versions else 0 for versions in ended.values()}
    if locked or len(outcomes) > 1 or not outcomes <= allowed or any(len(each) > 1 for each in ended.values()):
        return f"{ended}, {locked} are locked, the client has told {client.commit_ts}"
    return ""


def check(stores: Stores) -> None:
    """A process that looks once at every region."""
    resolver = LockResolver(stores)  # type: ignore[arg-type]
    resolver._stores = stores  # type: ignore[assignment]
    regions = [HeldBack(region_id=r.region_id, range=r.range, resolved_ts=START - 1) for r in stores.cluster.regions()]
    with suppress(Lost):
        resolver.check(regions)


@pytest.mark.parametrize("part", range(3))
def test_all_keys_of_a_transaction_end_alike_whoever_ends_it(part: int) -> None:
    assert [said for seed in SEEDS[part::3] if (said := wrong(seed))] == []


MUTANTS: dict[str, tuple[object, str, tuple[str, str]]] = {
    "smallest counts": (locks, "decided", ("max(commit_ts", "min(commit_ts")),
    "missing overlooked": (locks, "decided", ("ends.add(answer.commit_ts)", "pass")),
    "two phases overlooked": (locks, "decided", ("if not lock.is_async:", "if False:")),
    "secondaries not asked": (LockResolver, "_outcome", ("self._secondaries(lock.start_ts, keys)", "()")),
    "never forced": (LockResolver, "_outcome", ("force_sync=True", "force_sync=False")),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_noticed(name: str) -> None:
    with reworded(*MUTANTS[name]):
        assert any(wrong(seed) for seed in SEEDS)


def test_a_scan_that_ends_too_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LOCKS_MAX", 2)
    cluster = cluster_of([], floor_ts=START - 1, regions=1)
    stores = Stores(cluster, KvReads(cluster))

    def left() -> int:
        for key in KEYS:
            cluster.prewrite(key, Lock(START, Op.PUT, b"new", None))
        check(stores)
        return sum(cluster.lock(key) is not None for key in KEYS)

    assert left() == 0
    with reworded(LockResolver, "_check", ("if len(locks) < LOCKS_MAX:", "if True:")):
        assert left() > 0


# ---- the recording


def scenarios() -> dict[str, list[dict[str, Any]]]:
    by_name: dict[str, list[dict[str, Any]]] = {}
    for line in RECORDED.read_text().splitlines():
        each = json.loads(line)
        if each["dir"] == "note" and "scenario" in each["note"]:
            name = each["note"].split(":")[0][-1]
            by_name[name] = []
        by_name[name].append(each)
    return by_name


REQUESTS: dict[str, tuple[type[Any], type[Any]]] = {
    "KvScanLock": (wire.ScanLockRequest, wire.ScanLockResponse),
    "KvCheckTxnStatus": (wire.CheckTxnStatusRequest, wire.CheckTxnStatusResponse),
    "KvCheckSecondaryLocks": (wire.CheckSecondaryLocksRequest, wire.CheckSecondaryLocksResponse),
    "KvResolveLock": (wire.ResolveLockRequest, wire.ResolveLockResponse),
}


def plain(kind: Any, data: bytes) -> Any:
    """A message as the fields that we know, without the region it is for."""
    parsed = parse(kind, data)
    parsed.DiscardUnknownFields()
    with suppress(ValueError):
        parsed.ClearField("context")
    return parsed


class Replayed(Stores):
    """Answers as recorded, where the request is the recorded one."""

    def __init__(self, lines: list[dict[str, Any]], now_ts: int) -> None:
        self.lines, self.now_ts, self.asked = lines, now_ts, []
        self.regions: dict[int, wire.Context] = {}
        for line in lines:
            context = parse(REQUESTS[line["method"]][0], bytes.fromhex(line["req_hex"])).context
            self.regions[line["region"]] = context

    def tso(self) -> int:
        return self.now_ts

    def get_region(self, key: bytes) -> Region:
        first, second = (region_form(record_key(373, n)) for n in (0, 100))
        id_, start, end = (2233, first, second) if key < second else (1044, second, region_form(record_key(373, 1000)))
        context = self.regions[id_]
        return Region(
            id=id_,
            conf_ver=context.region_epoch.conf_ver,
            version=context.region_epoch.version,
            start=start,
            end=end,
            leader_store_id=1,
            leader_peer_id=context.peer.id,
        )

    def unary_unary(self, method: str) -> Callable[..., bytes]:
        name = method.rpartition("/")[2]
        kind = REQUESTS[name][0]

        def ask(request: bytes, timeout: float) -> bytes:
            sent_request = plain(kind, request)
            for line in (each for each in self.lines if each["method"] == name):
                recorded = plain(kind, bytes.fromhex(line["req_hex"]))
                if name == "KvScanLock":  # of another limit and moment
                    recorded.limit, recorded.max_version = sent_request.limit, sent_request.max_version
                if name == "KvCheckTxnStatus":
                    recorded.current_ts = sent_request.current_ts
                if recorded == sent_request and "before" not in line["label"]:
                    self.asked.append((line["label"], request))
                    return bytes.fromhex(line["resp_hex"])
            raise StoreUnavailable(f"nobody asked for this: {sent_request}")

        return ask


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("A", ["secondaries in the second region", "commit the first region", "commit the second region"]),
        ("B", ["secondaries in the second region", "roll back the first region", "roll back the second region"]),
    ],
)
def test_the_resolver_asks_and_ends_what_a_living_cluster_was_asked(name: str, labels: list[str]) -> None:
    lines = [each for each in scenarios()[name] if each["dir"] == "kv"]
    start_ts = int(scenarios()[name][0]["start_ts"])
    stores = Replayed(lines, start_ts + ts.compose(30_000))
    resolver = LockResolver(stores)  # type: ignore[arg-type]
    resolver._stores = stores  # type: ignore[assignment]
    first = KeyRange(record_key(373, 0), record_key(373, 100))
    resolver.check([HeldBack(region_id=2233, range=first, resolved_ts=start_ts - 1)])
    assert resolver.problems == ()
    labels_asked = [label for label, _ in stores.asked]
    assert labels_asked[:2] == [
        "locks of the first region",
        "primary, after its time to live: an async lock is returned, not rolled back",
    ]
    assert list(dict.fromkeys(labels_asked[2:])) == labels


def test_the_model_answers_as_the_living_cluster() -> None:
    compared = 0
    for lines in scenarios().values():
        cluster = cluster_of([], floor_ts=1, regions=1)
        whole = cluster.regions()[0].region_id
        cluster.split(whole, [record_key(373, 100)], [101])
        reads = KvReads(cluster)
        of = {2233: cluster.region_of(record_key(373, 0)), 1044: cluster.region_of(record_key(373, 100))}
        recorded = [each for each in lines if each["dir"] == "kv"]
        for line in recorded:
            for lock in _locks_in(line):
                if cluster.lock(lock.key) is None and not cluster.versions(lock.key) and not reads.refused:
                    _write(cluster, reads, lock)
        for line in recorded:
            kind, answer = REQUESTS[line["method"]]
            request: Any = parse(kind, bytes.fromhex(line["req_hex"]))
            region = of[line["region"]]
            request.context.region_id, request.context.peer.store_id = region.region_id, region.store_id
            request.context.region_epoch.version = region.version
            if line["method"] == "KvCheckTxnStatus" and not reads.primaries:  # C was not listed before
                key = request.primary_key
                _write(cluster, reads, wire.LockInfo(key=key, primary_lock=key, lock_version=request.lock_ts))
            ask = {
                "KvScanLock": reads.scan_lock,
                "KvCheckTxnStatus": reads.check_txn,
                "KvCheckSecondaryLocks": reads.check_secondaries,
                "KvResolveLock": reads.resolve_lock,
            }[line["method"]]
            ours = plain(answer, ask(region.store_id, request.SerializeToString()))
            theirs = plain(answer, bytes.fromhex(line["resp_hex"]))
            _forget_ttl(ours)
            _forget_ttl(theirs)
            assert ours == theirs, line["label"]
            compared += 1
    assert compared == 24


def _locks_in(line: dict[str, Any]) -> list[wire.LockInfo]:
    if line["method"] != "KvScanLock":
        return []
    return list(parse(wire.ScanLockResponse, bytes.fromhex(line["resp_hex"])).locks)


def _write(cluster: Cluster, reads: KvReads, lock: wire.LockInfo) -> None:
    cluster.prewrite(lock.key, Lock(lock.lock_version, Op.PUT, b"new", None))
    reads.primaries[lock.key] = lock.primary_lock
    if lock.use_async_commit:
        said = AsyncLock(min_commit_ts=lock.min_commit_ts, secondaries=tuple(lock.secondaries))
        reads.asynchronous[lock.key, lock.lock_version] = said


def _forget_ttl(answer: Any) -> None:
    """The model's locks live for three seconds each."""
    with suppress(ValueError, AttributeError):
        answer.lock_ttl = min(answer.lock_ttl, 1)
        answer.lock_info.lock_ttl = 0 if not answer.HasField("lock_info") else 1
        if answer.lock_info.key == b"":
            answer.ClearField("lock_info")
    for lock in getattr(answer, "locks", ()):
        lock.lock_ttl = 1
