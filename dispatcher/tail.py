"""Follows the batch files of one store, incarnation by incarnation, and reads ahead.

`seq` is dense, so the next file is requested by GET; a miss means "not yet" and is retried soon. LIST only explains
misses: when a file of the *newest* incarnation has been missing for a while and a later one exists, that is a gap,
shown as FeedGap with the missing file. A gap is never skipped.

    poll(incarnation, seq) -> Found     the file
                              Pending   being read; listeners are woken when it is done
                              Absent    does not exist; `final` = confirmed after a newer incarnation was known
                              Failed    corrupt, ahead of time, store unavailable, gap or reclaimed; retried at `until`

Relations:

- a file is read once at a time, however many subscribers wait for it;
- at most PREFETCH_FILES_MAX files are read ahead per subscriber, and none when the cache has no room for them;
- times are the Clock's monotonic seconds;
- a file with a timestamp ahead of the service's time is held: it is not handed out, and read again once its time has
  come. Files behind it wait with it, and `max_cut_ts` takes no account of it.
- a notification (`hint`) makes the awaited file due at once, and is never taken as content. While the files of an idle
  store are announced, it is polled and listed less often; the first file found without one ends this.

A superseded incarnation ends at its last contiguous file, and any contiguous end is safe, even while a late file is on
its way: a watermark row counts only with all files of its incarnation up to it, so the ignored files have promised
nothing; and the subscriptions of the newer incarnation start at or below `durable_ts`, so they send the same changes
again. Two subscribers may even end the same incarnation at different files.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dispatcher.admission import LargeFiles
from dispatcher.cache import DecodedFile, FileCache
from dispatcher.core.ack import EVERYTHING
from dispatcher.core.router import directory
from tistream import ts
from tistream.clock import Clock
from tistream.codec.batch_file import decode_batch_file
from tistream.errors import AheadOfTime, FeedGap, ObjectNotFound, TiStreamError
from tistream.feed.protocol import Wake
from tistream.ids import Tenant
from tistream.objectstore.layout import BatchKey, incarnation_prefix, parse
from tistream.objectstore.protocol import ObjectStore
from tistream.runtime import metrics
from tistream.runtime.service import stops_item
from tistream.runtime.service_time import ServiceTime

TICK_SHARE = 0.6  #: busy stores flush early

_FETCHED, _FILE_AGE = metrics.STAGE.labels("fetch"), metrics.FILE_AGE.labels("fetched")
_ANNOUNCED, _POLLED = metrics.AWAITED_FILES.labels("announced"), metrics.AWAITED_FILES.labels("polled")
_ROWS_IN, _BYTES_IN = metrics.ROWS.labels("dispatcher", "in"), metrics.BYTES.labels("dispatcher", "in")


@dataclass(frozen=True, slots=True, kw_only=True)
class TailTiming:
    poll_s: float = 0.1  #: between looks for a due file
    poll_max_s: float = 1.0  #: its limit: it grows to a tenth of the time waited
    idle_after_s: float = 5.0  #: a store with a longer interval between its last two files is idle ...
    idle_poll_max_s: float = 5.0  #: ... and polled at most this rarely: the pause grows with the time waited
    announced_poll_max_s: float = 30.0  #: ... or this rarely while its files are announced, ...
    announced_list_max_s: float = 600.0  #: ... and its folder listed this rarely
    tick_s: float = 0.0  #: minimum time after an arrival, or TICK_SHARE of the last interval if less
    gap_after_s: float = 3.0  #: missing for this long: list the folder
    list_every_s: float = 15.0  #: ... and again after this long, or the time waited so far, ...
    list_every_max_s: float = 60.0  #: ... at most
    retry_s: float = 1.0  #: after a corrupt file, one ahead of time or a store error


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    file: DecodedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """The file is being read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    until: float
    final: bool  #: confirmed missing after a newer incarnation was known
    later: str = ""  #: with `final`: a file behind the missing one


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    error: TiStreamError
    until: float
    tries: int


Outcome = Found | Pending | Absent | Failed


@dataclass(slots=True)
class _Slot:
    """State of a file that is not in the cache."""

    probe_at: float
    looked_at: float = -math.inf  #: when it was last requested
    hinted: bool = False  #: announced since
    by_hint: bool = False  #: a notification has caused the last request
    asked_at: float | None = None  #: since when a subscriber waits; None = only read ahead
    loading: bool = False
    tries: int = 0  #: consecutive failures
    missed: bool = False  #: missing at least once
    error: TiStreamError | None = None
    held_ts: int = 0  #: of a file that was read: its largest timestamp, ahead of the service's time
    final: bool = False
    listed_at: float = -math.inf
    list_at: float = 0.0
    later: str = ""  #: a later file that exists
    later_at: float = 0.0  #: since when it is known
    ended: bool = False  #: its incarnation was ended before it while it was being read


class Threads(Protocol):
    """Where files are read."""

    def submit(self, run: Callable[..., object], /, *args: object) -> object: ...


class Tail:
    """One store of one tenant. Thread-safe; shared by the store's subscribers."""

    def __init__(
        self,
        tenant: Tenant,
        store_id: int,
        *,
        store: ObjectStore,
        cache: FileCache,
        pool: Threads,
        clock: Clock,
        time: ServiceTime,
        timing: TailTiming,
        large: LargeFiles,
    ) -> None:
        self.tenant, self.store_id = tenant, store_id
        self._store, self._cache = store, cache
        self._pool, self._clock, self._time, self._timing, self._large = pool, clock, time, timing, large
        self._lock = threading.Lock()
        self._slots: dict[tuple[int, int], _Slot] = {}
        self._arrived: dict[int, tuple[int, float]] = {}  # incarnation -> the last awaited file, and when it came
        self._apart_s: dict[int, float] = {}  # incarnation -> interval to it, if both files were waited for
        self._empty: dict[int, int] = {}  # incarnation -> the last awaited file, if it had no rows
        self._hinted: dict[int, tuple[int, float]] = {}  # incarnation -> newest file named by a notification, and when
        self._announced: set[int] = set()  # incarnations whose last awaited file was found because of one
        self._listeners: dict[Wake, None] = {}  # in the order in which they came
        self._reclaimed: dict[int, int] = {}
        self._oldest = 1  # earlier incarnations are forgotten
        self.newest = 0  #: the newest incarnation in the catalog
        self.max_cut_ts = 0  #: the largest cut_ts read so far
        self.files_read = self.bytes_read = 0
        self.newest_file = (0, 0)  #: incarnation and seq of the newest file read
        self.newest_at_s = clock.monotonic()  #: when

    def listen(self, wake: Wake) -> None:
        """Set `wake` whenever the state of a file changes."""
        with self._lock:
            self._listeners[wake] = None

    def leave(self, wake: Wake) -> None:
        """Undo `listen`. When the last listener leaves, cached files are dropped."""
        with self._lock:
            self._listeners.pop(wake, None)
            if self._listeners:
                return
            self._slots = {at: slot for at, slot in self._slots.items() if slot.loading}
        self._cache.forget(self.tenant, self.store_id)

    @property
    def has_listeners(self) -> bool:
        return bool(self._listeners)

    def set_newest(self, incarnation: int) -> None:
        """Set the catalog's newest incarnation. Older ones end after one more look for their next file."""
        with self._lock:
            if incarnation <= self.newest:
                return
            self.newest = incarnation
            stale = [at for at, slot in self._slots.items() if at[0] < incarnation and not slot.loading]
            for at in stale:
                del self._slots[at]
        self._wake()

    def set_reclaimed(self, incarnation: int, seq: int) -> None:
        """Files at or below `seq` may be deleted."""
        with self._lock:
            self._reclaimed[incarnation] = max(seq, self._reclaimed.get(incarnation, 0))

    def set_oldest(self, incarnation: int) -> None:
        """Earlier incarnations are forgotten: every task has ended them, and their files are deleted."""
        with self._lock:
            self._oldest = max(incarnation, self._oldest)
            for forgotten in [old for old in self._reclaimed if old < self._oldest]:
                for of in (self._reclaimed, self._arrived, self._apart_s, self._empty, self._hinted):
                    of.pop(forgotten, None)
                self._announced.discard(forgotten)

    def hint(self, incarnation: int, seq: int) -> None:
        """A notification names this file: look for the awaited one now. At most one request per `poll_s` follows,
        whatever is named, and one LIST per `list_every_s`."""
        now, timing, earlier = self._clock.monotonic(), self._timing, False
        with self._lock:
            if not self._oldest <= incarnation <= self.newest:
                return
            known = self._recently_hinted(incarnation, now)
            self._hinted[incarnation] = max(seq, known), now
            for (of, awaited), slot in self._slots.items():
                if of == incarnation and awaited <= seq and slot.error is None and not slot.hinted:
                    earlier = slot.hinted = True
                    slot.probe_at = min(slot.probe_at, max(now, slot.looked_at + timing.poll_s))
                    slot.list_at = min(slot.list_at, max(now, slot.listed_at + timing.list_every_s))
        if earlier:
            self._wake()

    def poll(self, incarnation: int, seq: int, ahead: int = 0) -> Outcome:
        """The state of a file now; starts reading it, and `ahead` files after it, when due."""
        now = self._clock.monotonic()
        if reclaimed_error := self._reclaimed_error(incarnation, seq):
            return Failed(error=reclaimed_error, until=now + self._timing.retry_s, tries=1)
        key = self._key(incarnation, seq)
        file = self._cache.take(key)
        if file is None:
            self._look(incarnation, seq, now)
            file = self._cache.take(key)  # an executor may run it synchronously
        if file is not None:
            for later in range(seq + 1, seq + 1 + ahead):
                if self._cache.room_ahead() and not self._cache.holds(self._key(incarnation, later)):
                    self._look(incarnation, later, now, ahead=True)
            return Found(file=file)
        with self._lock:
            slot = self._slots.get((incarnation, seq))
            if slot is None or (slot.loading and slot.error is None):
                return Pending()
            if slot.error is not None:
                return Failed(error=slot.error, until=math.inf if slot.loading else slot.probe_at, tries=slot.tries)
            return Absent(until=slot.probe_at, final=slot.final, later=slot.later)

    def end(self, incarnation: int, seq: int) -> None:
        """An incarnation was ended at `seq`: drop the files read ahead behind it, and their errors, which delay no
        subscriber any more; one that waits for them still asks for them again."""
        with self._lock:
            behind = [at for at in self._slots if at[0] == incarnation and at[1] > seq]
            for at in behind:
                if self._slots[at].loading:
                    self._slots[at].ended = True
                else:
                    del self._slots[at]
        self._cache.forget(self.tenant, self.store_id, incarnation, seq)

    def errors(self) -> list[TiStreamError]:
        """Errors that delay subscribers now."""
        with self._lock:
            delayed = [(at, slot.error, slot.held_ts) for at, slot in self._slots.items() if slot.error is not None]
        return [(held_ts and self._ahead(self._key(*at), held_ts)) or error for at, error, held_ts in delayed]

    @property
    def held(self) -> int:
        """Files that were read and whose time has not come."""
        with self._lock:
            return sum(slot.held_ts > 0 for slot in self._slots.values())

    def _reclaimed_error(self, incarnation: int, seq: int) -> FeedGap | None:
        with self._lock:
            reclaimed = EVERYTHING if incarnation < self._oldest else self._reclaimed.get(incarnation, 0)
        if seq > reclaimed:
            return None
        return FeedGap(
            "the requested file was reclaimed after all tasks had consumed it durably; "
            "the subscriber has lost its snapshot",
            object=str(self._key(incarnation, seq)),
            seq=seq,
            reclaimed_seq=reclaimed,
        )

    def _look(self, incarnation: int, seq: int, now: float, *, ahead: bool = False) -> None:
        """Start to read the file if it is due and not being read."""
        with self._lock:
            slot = self._slots.get((incarnation, seq))
            if slot is None:
                slot = self._slots[incarnation, seq] = _Slot(probe_at=self._first_look(incarnation, seq, now))
            if not ahead and slot.asked_at is None:
                slot.asked_at = now
            if slot.loading or now < slot.probe_at:
                return
            if slot.held_ts and self._time.wait_s(slot.held_ts):
                slot.probe_at = now + self._timing.retry_s
                return
            slot.loading, slot.by_hint, slot.hinted, slot.looked_at = True, slot.hinted, False, now
            superseded = incarnation < self.newest
        self._pool.submit(self._load, self._key(incarnation, seq), slot, superseded)

    def _first_look(self, incarnation: int, seq: int, now: float) -> float:
        """Not before the pusher's next tick, if the last one is known and the file is not announced yet."""
        seen = self._arrived.get(incarnation)
        if seen is None or seen[0] != seq - 1 or seq <= self._recently_hinted(incarnation, now):
            return now
        apart_s = self._apart_s.get(incarnation, 0.0) or math.inf
        if self._timing.idle_after_s < apart_s < math.inf:
            if incarnation in self._announced:
                return max(now, seen[1] + self._timing.announced_poll_max_s)
            if seq - 1 == self._empty.get(incarnation):
                return max(now, seen[1] + self._timing.idle_poll_max_s)
        return max(now, seen[1] + min(self._timing.tick_s, TICK_SHARE * apart_s))

    def _recently_hinted(self, incarnation: int, now: float) -> int:
        """The newest file named; an old notification may have been forged, and counts no longer."""
        seq, at = self._hinted.get(incarnation, (0, -math.inf))
        return seq if now - at < self._timing.announced_poll_max_s else 0

    def _load(self, key: BatchKey, slot: _Slot, superseded: bool) -> None:
        """Read one file and record the result. Runs in the pool."""
        error: TiStreamError | None = None
        try:
            file = self._read(key)
            if file is None and self._explain(key, slot, superseded):
                file = self._read(key)  # it may have arrived during the listing
        except TiStreamError as e:
            file, error = None, e
        except BaseException as e:  # a defect in codec or store must not be silent
            if not stops_item(e):
                raise
            file, error = None, TiStreamError(f"{type(e).__name__}: {e}", object=str(key))
        with self._lock:
            if file is not None:
                self._arrive(file, slot)
            else:
                self._miss(key, slot, error, superseded)
                if slot.ended:
                    self._slots.pop((key.incarnation, key.seq), None)
        self._wake()

    def _read(self, key: BatchKey) -> DecodedFile | None:
        """The file; None when it is missing. AheadOfTime when its time has not come."""
        began = self._clock.monotonic()
        with self._large.reading(str(key)) as admit:
            try:
                data = self._store.get(str(key), admit)
            except ObjectNotFound:
                return None
            batch_file = decode_batch_file(key, data, admit)
        if held := self._ahead(key, batch_file.latest_ts):
            raise held
        _FETCHED.observe(self._clock.monotonic() - began)
        _FILE_AGE.observe(max(0.0, (self._clock.unix_ms() - ts.physical_ms(batch_file.cut_ts)) / 1000))
        _ROWS_IN.inc(batch_file.rows.num_rows)
        _BYTES_IN.inc(len(data))
        size = batch_file.rows.nbytes + batch_file.regions.nbytes
        return DecodedFile(
            key=key, cut_ts=batch_file.cut_ts, directory=directory(batch_file.rows, batch_file.regions), bytes=size
        )

    def _ahead(self, key: BatchKey, ts: int) -> AheadOfTime | None:
        return self._time.ahead(ts, "batch file", object=str(key), tenant=str(key.tenant), store=key.store_id)

    def _explain(self, key: BatchKey, slot: _Slot, superseded: bool) -> bool:
        """After a miss: list the folder if due. Whether a later file was seen for the first time."""
        now = self._clock.monotonic()
        gap_after_s = max(self._timing.gap_after_s, 2 * self._apart_s.get(key.incarnation, 0.0))
        overdue = slot.asked_at is not None and now - slot.asked_at >= gap_after_s
        if slot.later or not (superseded or (overdue and now >= slot.list_at)):
            return False
        waited_s = now - slot.asked_at if slot.asked_at is not None else 0.0
        slot.listed_at = now
        announced = key.incarnation in self._announced
        every_max_s = self._timing.announced_list_max_s if announced else self._timing.list_every_max_s
        slot.list_at = now + max(self._timing.list_every_s, min(waited_s, every_max_s))
        prefix = incarnation_prefix(self.tenant, self.store_id, key.incarnation)
        for info in self._store.list(prefix, after=str(key)):
            file = parse(info.key)
            if isinstance(file, BatchKey) and file.seq > key.seq:
                slot.later, slot.later_at = info.key, now
                return True
        return False

    def _arrive(self, file: DecodedFile, slot: _Slot) -> None:
        """Record a file that was read. Holds the lock."""
        key = file.key
        announced = slot.by_hint or slot.hinted
        if slot.asked_at is not None and (slot.missed or announced):
            now = self._clock.monotonic()
            before = self._arrived.get(key.incarnation, (0, now))
            self._apart_s[key.incarnation] = now - before[1] if before[0] == key.seq - 1 else 0.0
            self._arrived[key.incarnation] = key.seq, now
            self._empty[key.incarnation] = key.seq if file.directory.rows.num_rows == 0 else -1
            (self._announced.add if announced else self._announced.discard)(key.incarnation)
            (_ANNOUNCED if announced else _POLLED).inc()
        else:
            self._apart_s.pop(key.incarnation, None)  # it existed before it was requested
        self.max_cut_ts = max(self.max_cut_ts, file.cut_ts)
        self.files_read, self.bytes_read = self.files_read + 1, self.bytes_read + file.bytes
        if (key.incarnation, key.seq) > self.newest_file:
            self.newest_file, self.newest_at_s = (key.incarnation, key.seq), self._clock.monotonic()
        if self._listeners:
            self._cache.put(file)
        self._slots.pop((key.incarnation, key.seq), None)

    def _miss(self, key: BatchKey, slot: _Slot, error: TiStreamError | None, superseded: bool) -> None:
        """Record a missing or unusable file. Holds the lock."""
        now, timing = self._clock.monotonic(), self._timing
        slot.loading, slot.final = False, superseded
        slot.held_ts = error.ts if isinstance(error, AheadOfTime) else 0
        if error is not None:
            slot.error, slot.tries, slot.probe_at = error, slot.tries + 1, now + timing.retry_s
            return
        waited_s = now - slot.asked_at if slot.asked_at is not None else 0.0
        if self._apart_s.get(key.incarnation, 0.0) > timing.idle_after_s:
            pause_s = min(max(waited_s, 5 * timing.poll_s), timing.idle_poll_max_s)
            if key.incarnation in self._announced and self._recently_hinted(key.incarnation, now) <= key.seq:
                pause_s = timing.announced_poll_max_s  # else a later file may exist: is this one lost?
            slot.probe_at = now + pause_s
        else:
            slot.probe_at = now + min(max(waited_s / 10, timing.poll_s), timing.poll_max_s)
        if slot.hinted:  # announced while it was being read
            slot.probe_at = min(slot.probe_at, now + timing.poll_s)
        slot.error, slot.tries, slot.missed = None, 0, True
        if slot.later and not superseded:
            slot.probe_at = now + timing.poll_s
            if now - slot.later_at >= timing.retry_s:
                slot.error = FeedGap(missing=str(key), later=slot.later, store=self.store_id, seq=key.seq)

    def _key(self, incarnation: int, seq: int) -> BatchKey:
        return BatchKey(tenant=self.tenant, store_id=self.store_id, incarnation=incarnation, seq=seq)

    def _wake(self) -> None:
        with self._lock:
            listeners = tuple(self._listeners)
        for wake in listeners:
            wake.set()
