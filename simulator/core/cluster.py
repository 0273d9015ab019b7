"""A model of the stores of a TiKV cluster: versions, locks, regions, leaders, and the change feed that they emit.

The model is driven by explicit commands (`prewrite`, `commit`, `commit_one_phase`, `rollback`, `split`, `move_leader`,
`merge`, `tick`), in one thread, and is deterministic: the same commands give the same feed. A recording and a random
workload drive the same model.

A subscriber registers a region at a `checkpoint_ts` and gets what TiKV's change feed gives:

    opening scan      for each key, in key order: the lock as PREWRITE, then the versions with
                      commit_ts > checkpoint_ts, newest first, as COMMITTED with value and old value
    INITIALIZED       `Subscription.initialized`
    live rows         PREWRITE, COMMIT (with its value only where asked for), COMMITTED, ROLLBACK, in the order of
                      application
    resolved ts       at each tick: min(now_ts, smallest start_ts of the region's open locks)

A RawKV subscription (`register(is_raw=True)`) gets the keys that begin with `r`, all others the rest. Its scan sends
the newest version of each key only, and its resolved ts come from `raw_resolved`.

The scan takes no time, or it comes in pieces (`register(at_once=False)`, then `scan` until it says that it is done).
Live rows are sent from the registration on, the scan reads the state at the first call of `scan`, and its rows come
after whatever was sent live before them. So one commit may come as COMMITTED and as COMMIT, a COMMIT before its
PREWRITE, and a lock as it was after the same lock as it is.

Relations:

- regions tile the key space: each key belongs to exactly one region, each region has exactly one leader;
- a leader move, a split and a merge end the subscriptions of the regions concerned, whatever the subscriber does;
- a store that dies leads nothing: other stores lead its regions, and what it had not handed out is lost;
- a lock is there from its prewrite to its commit or rollback; one key has at most one;
- writes with `txn_source & 0xff00` (lossy reorganisation of a column's type) change keys, hold locks and are never
  sent, neither live nor in a scan;
- `now_ts` is the largest timestamp seen and never falls: what is stamped with it happened in that order.

What it does not do: conflict checks of transactions (a command that cannot be is an error of the driver), pessimistic
locks, raft.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sortedcontainers import SortedDict

from simulator.core.mvcc import LOSSY_TXN_SOURCE, RAW_MODE, SHORT_VALUE_BYTES, Lock, RowColumns, Version
from tistream.errors import InvalidInput, invariant
from tistream.keyrange import KeyRange
from tistream.model.change import Op


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A region as its leader knows it. `version` is the epoch's version: same id and version, same range."""

    region_id: int
    version: int
    store_id: int  #: of the leader
    range: KeyRange


class Subscription:
    """A registered region: rows pile up here until the subscriber takes them. Ended ones get nothing any more."""

    def __init__(self, region: Region, checkpoint_ts: int, open_ts: int, *, is_raw: bool = False) -> None:
        self.region, self.is_raw = region, is_raw
        self.checkpoint_ts = checkpoint_ts
        self.open_ts = open_ts  #: `Cluster.now_ts` when it was registered
        self.initialized = False  #: the opening scan is complete
        self.resolved_ts = 0  #: the last one sent; 0 = none yet
        self.ended = ""  #: why it ended; empty while it is open
        self.unscanned: deque[tuple[bytes, Lock | Version]] | None = None  #: left of the scan; None before it began
        self._rows = RowColumns()

    @property
    def rows(self) -> RowColumns:
        """The rows sent and not yet taken."""
        return self._rows

    def take_rows(self) -> RowColumns:
        """The rows since the last call, in order of arrival."""
        taken, self._rows = self._rows, RowColumns()
        return taken


@dataclass(slots=True)
class _Key:
    versions: list[Version] = field(default_factory=list)  #: oldest first
    lock: Lock | None = None


class Cluster:
    """All stores of one cluster. `floor_ts`: nothing below it is known; a checkpoint_ts below it is refused."""

    def __init__(self, regions: Iterable[Region], *, floor_ts: int) -> None:
        self.floor_ts = floor_ts
        self.now_ts = floor_ts
        self.ticked_ts = floor_ts  #: no resolved ts and no read is above
        self.raw_resolved: Callable[[int], int | None] = lambda region_id: None  #: of a region's RawKV writes
        self._dead: set[int] = set()
        self.removed_stores: set[int] = set()  #: dead ones that never come back
        self._keys: SortedDict = SortedDict()  # key -> _Key
        self._locked: dict[bytes, int] = {}  # key -> start_ts of its lock
        self._starts: SortedDict = SortedDict()  # start_key -> region id
        self._regions: dict[int, Region] = {}
        self._subscriptions: dict[int, list[Subscription]] = {}  # region id -> open ones
        #: sent something, or ended; only kept while a consumer empties it
        self.touched: dict[Subscription, None] | None = None
        for region in regions:
            self._put_region(region)
        self._check_tiling()

    # -- keys and values -------------------------------------------------------------------------------------------

    def load(self, key: bytes, version: Version) -> None:
        """Put a version that existed before the feed starts (`commit_ts <= floor_ts`). Nothing is sent."""
        if version.commit_ts > self.floor_ts:
            raise InvalidInput("a loaded version lies above the floor", key=key, commit_ts=version.commit_ts)
        self._key(key).versions.append(version)

    def read(self, key: bytes, ts: int) -> bytes | None:
        """The value visible at `ts`, or None where the key does not exist then."""
        entry = self._keys.get(key)
        for version in reversed(entry.versions if entry else ()):
            if version.commit_ts <= ts:
                return version.value  # type: ignore[no-any-return]
        return None

    def vanish(self, wanted: KeyRange) -> None:
        """Remove keys as RawDeleteRange does: no subscriber is sent anything."""
        for key in list(self._keys.irange(wanted.start, wanted.end or None, inclusive=(True, False))):
            del self._keys[key]

    def forget(self, ts: int) -> None:
        """Collect what no reader at or above `ts` sees: `ts` is the new floor."""
        invariant(self.floor_ts <= ts <= self.now_ts, "the floor only rises", floor_ts=self.floor_ts, ts=ts)
        self.floor_ts = ts
        for key in list(self._keys):
            entry = self._keys[key]
            seen = max((i for i, v in enumerate(entry.versions) if v.commit_ts <= ts), default=0)
            del entry.versions[:seen]
            if entry.lock is None and [v.op for v in entry.versions if v.commit_ts <= ts] == [Op.DELETE]:
                del entry.versions[0]
            if not entry.versions and entry.lock is None:
                del self._keys[key]

    def snapshot(self, wanted: KeyRange, ts: int) -> Iterator[tuple[bytes, bytes | Lock]]:
        """The state for a reader at `ts`, in key order: for each key its value, or the lock that the reader waits for
        because its transaction may still commit at or below `ts`."""
        for key in self._keys.irange(wanted.start, wanted.end or None, inclusive=(True, False)):
            lock = self._keys[key].lock
            if lock is not None and lock.start_ts <= ts:
                yield key, lock
            elif (value := self.read(key, ts)) is not None:
                yield key, value

    def versions(self, key: bytes) -> Sequence[Version]:
        """All versions of a key, oldest first."""
        entry = self._keys.get(key)
        return tuple(entry.versions) if entry else ()

    def lock(self, key: bytes) -> Lock | None:
        """The lock on a key."""
        entry = self._keys.get(key)
        return entry.lock if entry else None

    def prewrite(self, key: bytes, lock: Lock) -> None:
        """Lock a key. The same transaction may prewrite it again (a later flush of a pipelined one): the last wins."""
        entry = self._key(key)
        held = entry.lock
        if held is not None and held.start_ts != lock.start_ts:
            raise InvalidInput(
                "the key is locked by another transaction", key=key, start_ts=lock.start_ts, held=held.start_ts
            )
        entry.lock = lock
        self._locked[key] = lock.start_ts
        self._saw(lock.start_ts)
        if lock.is_sent:
            for subscription in self._subscribers(key):
                subscription.rows.add_prewrite(key, lock)

    def rewrite_lock(self, key: bytes, *, fake: bool = False) -> bool:
        """Write the lock's record again with the same change, as a heartbeat or a reader that pushes it does. For a
        short value, or none, the PREWRITE is sent again. For a long value nothing is sent, except by older stores:
        `fake`, a PUT with an empty value and the old value."""
        entry = self._keys.get(key)
        lock = entry.lock if entry else None
        if lock is None:
            raise InvalidInput("there is no lock to write again", key=key)
        is_long = lock.value is not None and len(lock.value) > SHORT_VALUE_BYTES
        said = replace(lock, value=b"") if is_long else lock
        if not lock.is_sent or (is_long and not fake):
            return False
        for subscription in self._subscribers(key):
            subscription.rows.add_prewrite(key, said)
        return True

    def commit(self, key: bytes, *, start_ts: int, commit_ts: int, with_value: bool = False) -> None:
        """Turn the lock of `start_ts` into a version. `with_value`: the COMMIT carries its value if that is short."""
        entry = self._key(key)
        lock = entry.lock
        if lock is None or lock.start_ts != start_ts:
            raise InvalidInput("a commit without its lock", key=key, start_ts=start_ts, commit_ts=commit_ts)
        entry.lock = None
        del self._locked[key]
        version = Version(start_ts, commit_ts, lock.op, lock.value, lock.old_value, lock.txn_source)
        self._append(key, entry, version)
        if lock.is_sent:
            said = lock.value if with_value and len(lock.value or b"") <= SHORT_VALUE_BYTES else None
            for subscription in self._subscribers(key):
                subscription.rows.add_commit(key, lock.op, start_ts, commit_ts, said, lock.txn_source)

    def commit_one_phase(self, key: bytes, version: Version) -> None:
        """Write a version that never had a lock (1PC)."""
        entry = self._key(key)
        if entry.lock is not None:
            raise InvalidInput("the key is locked by another transaction", key=key, held=entry.lock.start_ts)
        self._append(key, entry, version)
        if version.is_sent:
            for subscription in self._subscribers(key):
                subscription.rows.add_committed(key, version)

    def locks(self, wanted: KeyRange, max_ts: int) -> list[tuple[bytes, Lock]]:
        """The locks of a range with a start_ts up to `max_ts`, in key order."""
        keys = sorted(key for key, start_ts in self._locked.items() if start_ts <= max_ts and key in wanted)
        return [(key, lock) for key in keys if (lock := self.lock(key)) is not None]

    def rollback(self, key: bytes, *, start_ts: int, txn_source: int = 0) -> None:
        """Undo `start_ts` on a key: drop its lock, if it has one. Also of a key that was never prewritten, and of one
        with a version whose commit_ts is that `start_ts` (an overlapped rollback: the version stays)."""
        entry = self._keys.get(key)
        if entry is not None and entry.lock is not None and entry.lock.start_ts == start_ts:
            entry.lock = None
            del self._locked[key]
        self._saw(start_ts)
        if not txn_source & LOSSY_TXN_SOURCE:
            for subscription in self._subscribers(key):
                subscription.rows.add_rollback(key, start_ts, txn_source)

    # -- regions ---------------------------------------------------------------------------------------------------

    def regions(self, store_id: int | None = None) -> list[Region]:
        """The regions, of one leader or all, in key order."""
        every = (self._regions[i] for i in self._starts.values())
        return [r for r in every if store_id is None or r.store_id == store_id]

    def region_of(self, key: bytes) -> Region:
        """The region that holds a key."""
        at = self._starts.bisect_right(key) - 1
        return self._regions[self._starts.peekitem(at)[1]]

    def region(self, region_id: int) -> Region:
        region = self._regions.get(region_id)
        if region is None:
            raise InvalidInput("there is no such region", region_id=region_id)
        return region

    def has_region(self, region_id: int) -> bool:
        return region_id in self._regions

    def regions_touching(self, wanted: KeyRange) -> Iterator[Region]:
        """Those with a key of the range, in key order."""
        for start in self._starts.islice(self._starts.bisect_right(wanted.start) - 1):
            region = self._regions[self._starts[start]]
            if region.range.intersect(wanted) is None:
                return
            yield region

    def region_before(self, region: Region) -> Region | None:
        """The left neighbour."""
        at = self._starts.bisect_left(region.range.start) - 1
        return self._regions[self._starts.peekitem(at)[1]] if at >= 0 else None

    def split(self, parent_id: int, keys: Sequence[bytes], new_ids: Sequence[int]) -> list[Region]:
        """Cut a region at `keys`. The parent's id stays with the right-most part; versions rise by the new regions."""
        parent = self.region(parent_id)
        bounds = [parent.range.start, *keys, parent.range.end]
        inside = all(key in parent.range and key > parent.range.start for key in keys)
        if not keys or len(keys) != len(new_ids) or sorted(set(keys)) != list(keys) or not inside:
            raise InvalidInput("a region cannot be split there", region_id=parent_id)
        parts = [
            Region(
                region_id=region_id,
                version=parent.version + len(new_ids),
                store_id=parent.store_id,
                range=KeyRange(bounds[i], bounds[i + 1]),
            )
            for i, region_id in enumerate([*new_ids, parent_id])
        ]
        self._end(parent_id, "split")
        self._drop_region(parent)
        for part in parts:
            self._put_region(part)
        return parts

    def move_leader(self, region_id: int, to_store: int) -> Region:
        """Another store leads the region; its version stays."""
        old = self.region(region_id)
        if to_store in self._dead:
            raise InvalidInput("a dead store cannot lead", region_id=region_id, store_id=to_store)
        self._end(region_id, "leader moved")
        new = Region(region_id=region_id, version=old.version, store_id=to_store, range=old.range)
        self._regions[region_id] = new
        return new

    def merge(self, source_id: int, target_id: int) -> Region:
        """The right neighbour takes over the range of the left one. Both must have the same leader."""
        source, target = self.region(source_id), self.region(target_id)
        if not source.range.end or source.range.end != target.range.start or source.store_id != target.store_id:
            raise InvalidInput("the regions cannot be merged", source=source_id, target=target_id)
        self._end(source_id, "merged")
        self._end(target_id, "merged")
        self._drop_region(source)
        self._drop_region(target)
        merged = Region(
            region_id=target_id,
            version=max(source.version + 1, target.version) + 1,
            store_id=target.store_id,
            range=KeyRange(source.range.start, target.range.end),
        )
        self._put_region(merged)
        return merged

    @property
    def dead_stores(self) -> frozenset[int]:
        """Stores that died and have not come back."""
        return frozenset(self._dead)

    def kill_store(self, store_id: int, heirs: Mapping[int, int]) -> None:
        """The store dies; `heirs` has the new leader of each region that it led. Rows that its subscribers had not
        taken are lost."""
        led = {r.region_id for r in self.regions(store_id)}
        unfit = self._dead | {store_id}
        if led != set(heirs) or unfit & set(heirs.values()):
            raise InvalidInput("a dying store's regions need living heirs", store_id=store_id, regions=sorted(led))
        for region_id, heir in heirs.items():
            lost = self._subscriptions.get(region_id, ())
            self.move_leader(region_id, heir)
            for subscription in lost:
                subscription.take_rows()
                subscription.ended = "store died"
        self._dead.add(store_id)

    def start_store(self, store_id: int) -> None:
        """A dead store comes back, without leading a region."""
        if store_id in self.removed_stores:
            raise InvalidInput("a removed store does not come back", store_id=store_id)
        self._dead.discard(store_id)

    def start_stores(self) -> None:
        """Every dead store comes back that was not removed."""
        self._dead &= self.removed_stores

    def remove_store(self, store_id: int) -> None:
        """A dead store never comes back."""
        if store_id not in self._dead:
            raise InvalidInput("a living store cannot be removed", store_id=store_id)
        self.removed_stores.add(store_id)

    # -- the feed --------------------------------------------------------------------------------------------------

    def register(
        self, region_id: int, version: int, checkpoint_ts: int, *, at_once: bool = True, is_raw: bool = False
    ) -> Subscription:
        """Subscribe to a region: on return the opening scan is in `rows` and the subscription is initialised. With
        `at_once` False only live rows are sent until `scan` is called. InvalidInput when the region does not exist in
        this version, or the checkpoint is below the history that is kept."""
        region = self.region(region_id)
        if region.version != version:
            raise InvalidInput("the epoch does not match", region_id=region_id, version=region.version, asked=version)
        if checkpoint_ts < self.floor_ts and not is_raw:
            raise InvalidInput(
                "the checkpoint lies below what is kept",
                region_id=region_id,
                checkpoint_ts=checkpoint_ts,
                floor_ts=self.floor_ts,
            )
        subscription = Subscription(region, checkpoint_ts, self.now_ts, is_raw=is_raw)
        self._subscriptions.setdefault(region_id, []).append(subscription)
        if at_once:
            self.scan(subscription)
        return subscription

    def scan(self, subscription: Subscription, rows_max: int | None = None) -> bool:
        """Send the next rows of the opening scan, all or up to `rows_max`; the first call fixes its snapshot. Whether
        the scan is complete; never once the subscription has ended."""
        if subscription.initialized or subscription.ended:
            return subscription.initialized
        if subscription.unscanned is None:
            subscription.unscanned = deque(self._scanned(subscription))
        left, rows = subscription.unscanned, subscription.rows
        for _ in range(len(left) if rows_max is None else min(rows_max, len(left))):
            key, what = left.popleft()
            if isinstance(what, Lock):
                rows.add_prewrite(key, what, scan=True)
            else:
                rows.add_committed(key, what, scan=True)
        subscription.initialized = not left
        return subscription.initialized

    def subscribed(self, region_id: int) -> bool:
        """Whether the region has a subscription."""
        return bool(self._subscriptions.get(region_id))

    def unregister(self, subscription: Subscription) -> None:
        """End a subscription on the subscriber's request; does nothing when it has ended."""
        if not subscription.ended:
            self._subscriptions[subscription.region.region_id].remove(subscription)
            subscription.ended = "unregistered"

    def tick(self, now_ts: int, *, store_id: int | None = None) -> None:
        """A fresh timestamp was fetched: every initialised subscription gets its resolved ts, or those of one store."""
        invariant(now_ts >= self.now_ts, "a tick lies before what has happened", now_ts=now_ts, seen=self.now_ts)
        self.now_ts = self.ticked_ts = now_ts
        held = self.held()
        for region_id, subscriptions in self._subscriptions.items():
            if store_id is not None and self._regions[region_id].store_id != store_id:
                continue
            resolved_ts = min(now_ts, held.get(region_id, now_ts))
            for subscription in subscriptions:
                if subscription.initialized:
                    known_ts = self.raw_resolved(region_id) if subscription.is_raw else resolved_ts
                    subscription.resolved_ts = subscription.resolved_ts if known_ts is None else min(now_ts, known_ts)

    def protect(self, ts: int) -> None:
        """A read at `ts`: no later commit is at or below it (also for `ticked_ts`)."""
        self.ticked_ts = max(self.ticked_ts, ts)

    def held(self) -> dict[int, int]:
        """Smallest start_ts of the open locks, for each region that has one."""
        out: dict[int, int] = {}
        for key, start_ts in self._locked.items():
            region_id = self.region_of(key).region_id
            out[region_id] = min(start_ts, out.get(region_id, start_ts))
        return out

    # -- inside ----------------------------------------------------------------------------------------------------

    def _scanned(self, subscription: Subscription) -> Iterator[tuple[bytes, Lock | Version]]:
        """The rows of a subscription's opening scan."""
        whole = subscription.region.range
        for key in self._keys.irange(whole.start, whole.end or None, inclusive=(True, False)):
            entry = self._keys[key]
            if key.startswith(RAW_MODE) is not subscription.is_raw:
                continue
            if entry.lock is not None and entry.lock.is_sent:
                yield key, entry.lock
            for version in reversed([v for v in entry.versions if v.commit_ts > subscription.checkpoint_ts]):
                if version.is_sent:
                    yield key, version
                if subscription.is_raw:
                    break

    def _key(self, key: bytes) -> _Key:
        entry = self._keys.get(key)
        if entry is None:
            entry = self._keys[key] = _Key()
        return entry  # type: ignore[no-any-return]

    def _append(self, key: bytes, entry: _Key, version: Version) -> None:
        if entry.versions and entry.versions[-1].commit_ts >= version.commit_ts:
            raise InvalidInput("a version below the key's newest one", key=key, commit_ts=version.commit_ts)
        entry.versions.append(version)
        self._saw(version.commit_ts)

    def _saw(self, ts: int) -> None:
        self.now_ts = max(self.now_ts, ts)

    def _subscribers(self, key: bytes) -> Sequence[Subscription]:
        subscriptions = self._subscriptions.get(self.region_of(key).region_id, ()) if self._subscriptions else ()
        is_raw = key.startswith(RAW_MODE)
        subscriptions = [subscription for subscription in subscriptions if subscription.is_raw is is_raw]
        self._touch(subscriptions)
        return subscriptions

    def _touch(self, subscriptions: Sequence[Subscription]) -> None:
        if self.touched is not None:
            self.touched.update(dict.fromkeys(subscriptions))

    def _end(self, region_id: int, why: str) -> None:
        ended = self._subscriptions.pop(region_id, ())
        for subscription in ended:
            subscription.ended = why
        self._touch(ended)

    def _put_region(self, region: Region) -> None:
        taken = region.region_id in self._regions or region.range.start in self._starts
        invariant(not taken, "a region is there twice", region_id=region.region_id)
        self._regions[region.region_id] = region
        self._starts[region.range.start] = region.region_id

    def _drop_region(self, region: Region) -> None:
        del self._regions[region.region_id]
        del self._starts[region.range.start]

    def _check_tiling(self) -> None:
        regions = self.regions()
        ends = [r.range.end for r in regions]
        if not regions or [r.range.start for r in regions] != [b"", *ends[:-1]] or ends[-1]:
            raise InvalidInput("the regions do not tile the key space", regions=len(regions))
