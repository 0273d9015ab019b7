"""A replica is compared with its source while a changefeed writes it: what it promises is no difference, and a key that
breaks the promise is one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from random import Random

import pyarrow as pa
import pytest

from backup.core.compare import FOUND, Comparison, Fault
from backup.core.pairs import PAIRS
from backup.replica import PATIENCE_S, VERSIONS, Sides, verify_replica
from tests.kit.manual_clock import ManualClock
from tistream.keyrange import KeyRange

NOW_S = 1_900_000_000
KEYS = [b"k%03d" % n for n in range(60)]
HOT = KEYS[:20]
Version = tuple[int, bytes | None, int]  #: timestamp, value, expiry


class Pair:
    """A source whose keys are written all the time, and a changefeed that writes them to a replica.

    Each page that is scanned lets time pass. Each key of the replica shows some version between its newest at the
    checkpoint and its newest at what was attempted.
    """

    def __init__(self, seed: int, *, runs: bool = True) -> None:
        self.dice, self.runs, self.now_ts = Random(seed), runs, 100
        self.log: dict[bytes, list[Version]] = defaultdict(list)
        self.shown: dict[bytes, Version] = {}
        self.broken: dict[bytes, bytes | None] = {}
        self.checkpoint_ts = self.attempted_ts = 0
        for key in KEYS:
            self.write(key)
        self.attempted_ts = self.checkpoint_ts = self.now_ts
        self.show()

    def write(self, key: bytes) -> None:
        self.now_ts += 1
        draw = self.dice.random()
        value = None if draw < 0.2 else b"%d" % self.now_ts
        ended = draw > 0.8  # it has just ended, there and here
        self.log[key].append((self.now_ts, value, NOW_S - 1 if ended else 0))

    def step(self) -> None:
        """Some writes, which the changefeed passes on in part."""
        for _ in range(self.dice.randrange(30)):
            self.write(self.dice.choice(HOT))
        if self.runs:
            self.checkpoint_ts = self.dice.randint(self.checkpoint_ts, self.attempted_ts)
            self.attempted_ts = self.dice.randint(self.attempted_ts, self.now_ts)
            self.show()

    def show(self) -> None:
        for key, versions in self.log.items():
            oldest = max((v[0] for v in versions if v[0] <= self.checkpoint_ts), default=0)
            before = self.shown.get(key, (0, None, 0))[0]
            may = [v for v in versions if max(oldest, before) <= v[0] <= self.attempted_ts]
            if may:
                self.shown[key] = self.dice.choice(may)

    def source(self, as_of: int, part: KeyRange) -> Iterator[pa.Table]:
        newest = {k: [v for v in versions if v[0] <= as_of][-1:] for k, versions in self.log.items()}
        rows = [(k, value, ends) for k, each in sorted(newest.items()) for _, value, ends in each]
        yield from pages(self, [row for row in rows if row[1] is not None], part, PAIRS)

    def destination(self, part: KeyRange) -> Iterator[pa.Table]:
        for at in range(0, len(KEYS), 7):
            self.step()
            rows = []
            for key in KEYS[at : at + 7]:
                _, value, ends = self.shown.get(key, (0, None, 0))
                value = self.broken.get(key, None if ends else value)
                if value is not None:
                    rows.append((key, value, None))
            yield from pages(self, rows, part, FOUND)

    def versions(self, above: int, upto: int, part: KeyRange) -> Iterator[pa.Table]:
        assert upto <= self.now_ts
        rows = [(k, v, e) for k, each in self.log.items() for ts, v, e in each if above < ts <= upto]
        yield from pages(self, rows, part, VERSIONS)

    def verify(self, clock: ManualClock | None = None) -> Comparison:
        sides = Sides(
            source=self.source,
            versions=self.versions,
            destination=self.destination,
            bounds=self.bounds,
            now_s=lambda: NOW_S,
        )
        _, comparison = verify_replica(sides, KeyRange(b"", b""), clock=clock or ManualClock())
        return comparison

    def bounds(self) -> tuple[int, int]:
        self.step()
        return self.checkpoint_ts, self.attempted_ts


def pages(
    pair: Pair, rows: Sequence[tuple[bytes, bytes | None, int | None]], part: KeyRange, schema: pa.Schema
) -> Iterator[pa.Table]:
    inside = [row for row in rows if row[0] in part]
    columns = [pa.array([row[i] for row in inside], field.type) for i, field in enumerate(schema)]
    yield pa.Table.from_arrays(columns, schema=schema)


@pytest.mark.parametrize("seed", range(30))
def test_what_a_changefeed_promises_is_no_difference(seed: int) -> None:
    comparison = Pair(seed).verify()
    assert (comparison.differences, comparison.equal) == ([], True)


def test_hot_keys_did_differ_from_the_checkpoint() -> None:
    """Else the test above would compare two sides at rest."""
    assert any(Pair(seed).verify().differing_ranges for seed in range(5))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("key", [HOT[3], KEYS[40]])
def test_a_key_that_breaks_the_promise_is_a_difference(seed: int, key: bytes) -> None:
    pair = Pair(seed)
    pair.broken[key] = b"never written"
    comparison = pair.verify()
    assert [each.key for each in comparison.differences] == [key]
    assert sum(comparison.faults.values()) == 1
    assert not comparison.equal


def test_an_older_version_than_the_newest_at_the_checkpoint_is_a_difference() -> None:
    pair = Pair(3)
    key = next(k for k in KEYS if k not in HOT and pair.log[k][-1][1] is not None and not pair.log[k][-1][2])
    pair.log[key].insert(0, (1, b"older", 0))
    pair.broken[key] = b"older"
    assert [(each.key, each.fault) for each in pair.verify().differences] == [(key, Fault.CHANGED)]


def test_a_changefeed_that_does_not_move_is_not_waited_for_without_end() -> None:
    pair, clock = Pair(4, runs=False), ManualClock()
    pair.write(HOT[0])
    pair.attempted_ts = pair.now_ts
    pair.broken[KEYS[30]] = b"never written"
    assert [each.key for each in pair.verify(clock).differences] == [KEYS[30]]
    assert PATIENCE_S <= clock.monotonic() < PATIENCE_S + 1
