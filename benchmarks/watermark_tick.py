"""One second of watermarks: 100,000 regions on three stores, each store's file naming all of its regions.

The slots are compared with the form one would write first: a dict from region id to version, checkpoint_ts and W, with
the same steps for each row (is it ready, may it raise W, the maximum) and the lowest of all at the end. The dict
compares no keys, because it takes (id, version) for the range; the slots compare every key with those of the previous
file. Each call is a new second in which every region advances.

The two shares are of a second: the cost of one tick of all stores, and the same when 1,000 regions have split.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.harness import Result, compare
from sorter.core.watermark import RangeWatermarkMap
from tests.kit.plain_watermark import PlainWatermarkMap
from tistream.keyrange import KeyRange
from tistream.model.change import REGIONS

REGION_COUNT = 100_000
STORES = 3
SPLITS = 1000
START_TS = 450_000_000_000_000_000
TICK = np.uint64(1000)
RUNS = 11

_Columns = dict[str, pa.Array]


class Regions:
    """The regions of a cluster."""

    def __init__(self, count: int) -> None:
        self._random = np.random.default_rng(7)
        self._splits = 0
        handles = np.sort(self._random.choice(1 << 40, count - 1, replace=False))
        self.starts = [b"", *(b"t\x80\0\0\0\0\0\0\x65_r\x80" + int(h).to_bytes(7, "big") for h in handles)]
        self.ids = self._random.permutation(count) + 1
        self.versions = np.full(count, 5)
        self.leaders = self._random.integers(0, STORES, count)

    def split(self, count: int) -> None:
        """Some regions split; both halves stay on their store."""
        at = np.sort(self._random.choice(len(self.ids), count, replace=False))
        for i in reversed(at.tolist()):
            self.starts.insert(i + 1, self.starts[i] + bytes([255 - self._splits]))
        self._splits += 1
        self.versions[at] += 1
        self.versions = np.insert(self.versions, at, self.versions[at])
        self.ids = np.insert(self.ids, at, self.ids.max() + 1 + np.arange(count))
        self.leaders = np.insert(self.leaders, at, self.leaders[at])

    def lists(self) -> list[_Columns]:
        """Each store's region list, in separate memory."""
        return [self._list(np.flatnonzero(self.leaders == store)) for store in range(STORES)]

    def _list(self, at: npt.NDArray[np.int64]) -> _Columns:
        ends = [*self.starts[1:], b""]
        return {
            "region_id": pa.array(self.ids[at], pa.uint64()),
            "version": pa.array(self.versions[at], pa.uint64()),
            "start_key": pa.array([self.starts[i] for i in at], pa.binary()),
            "end_key": pa.array([ends[i] for i in at], pa.binary()),
            "tenure_open_ts": pa.array(np.ones(len(at), np.uint64)),
            "tenure_ready_ts": pa.array(np.ones(len(at), np.uint64)),
            "checkpoint_ts": pa.array(np.full(len(at), START_TS, np.uint64)),
            "row_offset": pa.array(np.zeros(len(at), np.uint64)),
            "row_count": pa.array(np.zeros(len(at), np.uint64)),
        }


class Ticks:
    """Files second by second, lists of regions in turn. Timestamps move in place, so a file costs next to nothing."""

    def __init__(self, *lists: list[_Columns]) -> None:
        self._turns: list[list[tuple[npt.NDArray[np.uint64], pa.RecordBatch]]] = []
        for stores in lists:
            turn = []
            for columns in stores:
                resolved = START_TS + columns["region_id"].to_numpy() * np.uint64(7919) % np.uint64(900)
                given = {**columns, "resolved_ts": pa.array(resolved)}
                turn.append((resolved, pa.RecordBatch.from_arrays([given[n] for n in REGIONS.names], schema=REGIONS)))
            self._turns.append(turn)
        self._now = 0

    def next(self) -> list[pa.RecordBatch]:
        """The next second's files, one for each store."""
        turn = self._turns[self._now % len(self._turns)]
        self._now += 1
        for resolved, _ in turn:
            resolved += TICK * np.uint64(min(self._now, len(self._turns)))
        return [batch for _, batch in turn]


class DictMap:
    """Region id -> [version, checkpoint_ts, W]."""

    def __init__(self) -> None:
        self.regions: dict[int, list[int]] = {}

    def apply(self, file: pa.RecordBatch) -> None:
        """Take a store's rows."""
        names = ("region_id", "version", "checkpoint_ts", "tenure_ready_ts", "resolved_ts")
        columns = (file.column(name).to_numpy().tolist() for name in names)
        regions = self.regions
        for region_id, version, checkpoint, ready, resolved in zip(*columns, strict=True):
            known = regions.get(region_id)
            if known is None or known[0] != version:
                regions[region_id] = known = [version, checkpoint, START_TS]
            if ready and known[1] <= known[2] and resolved > known[2]:
                known[2] = resolved

    def watermark(self) -> int:
        """The lowest."""
        return min([known[2] for known in self.regions.values()])


def run() -> Iterator[Result]:
    """One ratio and two shares of a second."""
    _prove_equal()
    regions = Regions(REGION_COUNT)
    slots, plain = RangeWatermarkMap(KeyRange(), START_TS), DictMap()
    lists = [regions.lists(), regions.lists()]
    for_slots, for_dict = Ticks(*lists), Ticks(*lists)

    def tick_slots() -> int | None:
        return _tick(slots, for_slots.next())

    def tick_dict() -> int:
        for file in for_dict.next():
            plain.apply(file)
        return plain.watermark()

    def same(a: int | None, b: int) -> bool:
        return a == b and _agree(slots, plain, regions)

    yield compare("watermark-tick/100k-regions-vs-dict", tick_slots, tick_dict, proof=same, target=15, runs=RUNS)
    yield Result.of(
        "watermark-tick/100k-regions-share-of-a-second", [_seconds(tick_slots) for _ in range(RUNS)], 0.01, "lower"
    )
    took = []
    for _ in range(RUNS):
        regions.split(SPLITS)
        files = Ticks(regions.lists()).next()
        took.append(_seconds(lambda files=files: _tick(slots, files)))  # type: ignore[misc]
    yield Result.of("watermark-tick/1000-splits-share-of-a-second", took, 0.2, "lower")


def _tick(slots: RangeWatermarkMap, files: list[pa.RecordBatch]) -> int | None:
    for store, file in enumerate(files, 1):
        slots.apply(file, store, 1, 1)
    return slots.watermark()


def _agree(slots: RangeWatermarkMap, plain: DictMap, regions: Regions) -> bool:
    """Whether each region has the same W on both sides."""
    found = slots.w_of(pa.array(regions.starts, pa.binary())).tolist()
    return found == [plain.regions[i][2] for i in regions.ids.tolist()]


def _prove_equal() -> None:
    """Steady seconds, splits and steady seconds again: the slots agree with the map that checks every row."""
    regions = Regions(2000)
    slots, plain = RangeWatermarkMap(KeyRange(), START_TS), PlainWatermarkMap(KeyRange(), START_TS)
    for _ in range(3):
        ticks = Ticks(regions.lists(), regions.lists())
        for _ in range(3):
            for store, file in enumerate(ticks.next(), 1):
                if slots.apply(file, store, 1, 1) != plain.apply(file, store, 1, 1):
                    raise ValueError("only one of the maps moved")
        if list(slots.slices()) != list(plain.slices()):
            raise ValueError("the maps differ")
        regions.split(100)


def _seconds(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start
