"""An object store with the faults of S3, and a few more.

    a PUT or DELETE travels independently: it arrives even if the process dies meanwhile
    put_refused       503 or 409: certainly did not happen
    put_lost          it arrives, the reply does not
    put_late          no reply; it arrives much later, after retries, deletions and restarts
    put_nowhere       neither arrives
    get_refused, get_torn, list_refused, delete_refused, delete_late

A listing is read in pages: a change between two pages may be seen or not. A deletion against the rules (a live object,
an object without a tombstone, a batch file above `reclaimed_seq`) is a violation at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from zlib import crc32

from simulator.dst.boundaries import LATE_S, Boundaries, Point, Side
from simulator.dst.faults import Dice
from simulator.dst.harm import Harms
from simulator.dst.scheduler import Scheduler
from tistream.errors import ErrorKind, ObjectNotFound, StoreUnavailable, TiStreamError
from tistream.objectstore.keys import check_key, check_prefix, check_range, settle, too_short
from tistream.objectstore.protocol import Admit, ObjectInfo, ObjectStore

_SOON_S = 0.2
PAGE = 3  # entries of a listing's page


class Bucket:
    """The objects and the requests under way."""

    def __init__(
        self, scheduler: Scheduler, dice: Dice, unix_ms: Callable[[], int], tell: Callable[[str], None]
    ) -> None:
        self.scheduler, self.dice = scheduler, dice
        self.unix_ms = unix_ms
        self.tell = tell
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.all_there_at = 0.0  #: when the last late request will have arrived
        self.on_delete: Callable[[str], None] = lambda _: None
        self.puts = self.gets = 0
        self.boundaries = Boundaries(scheduler)
        self.harms = Harms()

    def send(self, delay_s: float, arrive: Callable[[], None]) -> None:
        """Let a request arrive after a delay, whatever becomes of its sender."""
        at = self.scheduler.now + delay_s
        self.all_there_at = max(self.all_there_at, at) if delay_s > _SOON_S else self.all_there_at
        self.scheduler.call_at(at, arrive)

    def strike(self, point: Point, arrive: Callable[[], None]) -> None:
        """The sender of a request dies at this point. Does not return."""
        if point.side is Side.AFTER:
            arrive()
        elif point.side is Side.LATE:
            self.send(LATE_S, arrive)
        self.boundaries.strike(point)


class SimStore:
    """One process's way to the bucket; an ObjectStore."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def put(self, key: str, data: bytes | memoryview) -> None:
        check_key(key)
        b, s, copy = self._bucket, self._bucket.scheduler, bytes(data)
        s.point(f"put {key} {crc32(copy):08x}")
        b.puts += 1
        point = b.boundaries.reach(f"PUT {key}")
        fault = b.dice.roll("put_refused", "put_lost", "put_late", "put_nowhere")
        takes = b.dice.latency()
        if fault == "put_refused":
            s.sleep(takes)
            raise StoreUnavailable("503: the store is busy", key=key, determinate=True)
        met: list[bytes] = []

        def arrive() -> None:
            there, _ = b.objects.setdefault(key, (copy, b.unix_ms()))
            met.append(there)
            if fault:
                b.tell(f"{fault}: {key} arrives now")

        if point is not None:
            b.strike(point, arrive)
        if fault == "put_late":
            b.send(takes + 0.2 + b.dice.rand.random() ** 3 * 20.0, arrive)
        elif fault != "put_nowhere":
            b.send(takes * 0.6, arrive)
        s.sleep(takes)
        s.point(f"put done {key}")
        if fault:
            b.tell(f"{fault}: {key}")
            raise StoreUnavailable("no reply", key=key, determinate=False)
        settle(key, met[0], copy)

    def get(self, key: str, admit: Admit | None = None) -> bytes:
        check_key(key)
        b, s = self._bucket, self._bucket.scheduler
        s.point(f"get {key}")
        b.gets += 1
        fault = b.dice.roll("get_refused", "get_torn")
        takes = b.dice.latency()
        s.sleep(takes / 2)
        stored = b.objects.get(key)
        s.sleep(takes / 2)
        if fault == "get_refused":
            raise StoreUnavailable("503: the store is busy", key=key, determinate=True)
        if stored is None:
            raise ObjectNotFound(key=key)
        data = b.harms.read(key, stored[0], b.objects)
        if fault == "get_torn":
            b.tell(f"get_torn: {key}")
            return data[: b.dice.rand.randrange(len(stored[0]))]
        return data

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        check_range(key, offset, length)
        data = self.get(key)
        if offset + length > len(data):
            raise too_short(key, offset, length, len(data))
        return data[offset : offset + length]

    def size(self, key: str) -> int:
        return len(self.get(key))

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        b, s = self._bucket, self._bucket.scheduler
        while True:
            s.point(f"list {prefix} {after}")
            s.sleep(b.dice.latency())
            if b.dice.roll("list_refused"):
                raise StoreUnavailable("503: the store is busy", prefix=prefix, determinate=True)
            keys = sorted(k for k in b.objects if k.startswith(prefix) and k > after and not b.harms.hides(k))
            page = [(key, b.objects[key]) for key in keys[:PAGE]]
            for key, (data, modified_ms) in page:
                yield ObjectInfo(key=key, size=len(data), modified_ms=modified_ms)
            if len(keys) <= PAGE:
                return
            after = page[-1][0]

    def delete(self, key: str) -> None:
        check_key(key)
        b, s = self._bucket, self._bucket.scheduler
        s.point(f"delete {key}")
        b.harms.check_delete(key)
        point = b.boundaries.reach(f"DELETE {key}")
        fault = b.dice.roll("delete_refused", "delete_late")
        takes = b.dice.latency()
        if fault == "delete_refused":
            s.sleep(takes)
            raise StoreUnavailable("503: the store is busy", key=key, determinate=True)

        def arrive() -> None:
            if key in b.objects:
                b.on_delete(key)
                del b.objects[key]

        if point is not None:
            b.strike(point, arrive)
        b.send(takes + b.dice.rand.random() * 5.0 if fault else takes * 0.6, arrive)
        s.sleep(takes)
        s.point(f"delete done {key}")
        if fault:
            raise StoreUnavailable("no reply", key=key, determinate=False)


class FarStore(SimStore):
    """The bucket as a reader has it: its requests take `slow_s` longer, at most."""

    def __init__(self, bucket: Bucket, slow_s: float, rand: random.Random) -> None:
        super().__init__(bucket)
        self._slow_s, self._rand = slow_s, rand

    def get(self, key: str, admit: Admit | None = None) -> bytes:
        if self._slow_s:
            self._bucket.scheduler.sleep(self._slow_s * self._rand.random())
        return super().get(key, admit)


def put_at_last(store: ObjectStore, key: str, data: bytes) -> bool:
    """Put an object; False when it may not be there and the PUT must be repeated."""
    try:
        store.put(key, data)
    except TiStreamError as e:
        if e.kind is not ErrorKind.RETRY:
            raise
        return False
    return True
