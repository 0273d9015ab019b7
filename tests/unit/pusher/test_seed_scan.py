"""A seed under faults: each row is read once, history is protected to the end, and nothing is visible earlier."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path

import orjson
import pytest

from pusher.control import TableRead, WantedSeed
from pusher.seed_scan import SeedScan
from pusher.tikv.history import GcBarrier
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_control import MemoryControl
from tistream.codec.seed_file import manifest_key, read_manifest
from tistream.codec.table_key import record_key, record_range
from tistream.errors import StoreUnavailable, TsExpired
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.objectstore.memory import MemoryStore
from tistream.tikv.core.kv_messages import Page

SCHEMA = (Path(str(files("simulator") / "recording")) / "schema_snapshot.json").read_bytes()
S = int(orjson.loads(SCHEMA)["ts"])
PAGES = 60


class Pd:
    """Fails each third time, and reports collected history on request."""

    newest_tso = S + 1000

    def __init__(self) -> None:
        self.asked = 0
        self.gone = False
        self.gone_upto = 0  #: history up to here is collected
        self.held: list[int] = []

    def tso(self) -> int:
        self.asked += 1
        if self.asked % 3 == 0:
            raise StoreUnavailable("PD does not answer")
        return self.newest_tso

    def hold_history(self, name: str, ts: int, ttl_s: int) -> None:
        self.held.append(ts)
        if self.gone or ts <= self.gone_upto:
            raise TsExpired("PD has collected history above the timestamp")

    def release_history(self, name: str) -> None: ...


class Reader:
    """The rows of one table, in many pages."""

    problem = ""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.rows = 0

    def read(self, part: KeyRange, ts: int) -> Iterator[Page]:
        table_id = int.from_bytes(part.start[1:9], "big") - (1 << 63)
        for n in range(PAGES if part == record_range(FIRST) else 0):
            self.clock.advance(61.0)  # the barrier is renewed with each page
            keys = [record_key(table_id, 10 * n + i) for i in range(10)]
            self.rows += 10
            yield Page(keys=keys, values=[random.Random(n).randbytes(2000) for _ in keys], commit_ts=[0] * 10)

    def close(self) -> None: ...


class FaultyStore(MemoryStore):
    """Fails each fifth time, for longer than a store's own retries."""

    puts = 0

    def put(self, key: str, data: bytes | memoryview) -> None:
        self.puts += 1
        if self.puts % 5 == 0:
            raise StoreUnavailable("503 SlowDown", key=key, determinate=False)
        super().put(key, data)


class Control(MemoryControl):
    """Stops the scan when it has asked so often for tables that need a seed."""

    def __init__(self, stop: threading.Event) -> None:
        super().__init__(Tenant(1, 2))
        self.stop, self.rounds = stop, 0

    def wanted_seeds(self) -> Sequence[WantedSeed]:
        if not self.rounds:
            self.stop.set()
        self.rounds -= 1
        return super().wanted_seeds()


class Rig:
    def __init__(self) -> None:
        self.clock, self.pd, self.store, self.stop = ManualClock(), Pd(), FaultyStore(), threading.Event()
        self.control, self.reader = Control(self.stop), Reader(self.clock)
        self.control.fail_next = 3
        barrier = GcBarrier(self.pd, "seed", clock=self.clock)
        self.scan = SeedScan(
            self.reader,  # type: ignore[arg-type]
            self.control,
            self.store,
            SCHEMA,
            barrier,
            stop=self.stop,
            clock=self.clock,
        )


FIRST = Rig().scan._first.physical_ids[0]


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr("pusher.seed_scan._PIECE_BYTES", 20_000)
    monkeypatch.setattr("tistream.codec.seed_file.COMMITTED_FILE_BYTES_TARGET", 10_000)
    return Rig()


def test_transient_faults_repeat_a_request_and_not_the_seed(rig: Rig) -> None:
    rig.scan.start()
    rig.scan.join()
    assert rig.scan.done
    assert rig.control.seeds == {(S, 0)}
    assert rig.reader.rows == 10 * PAGES
    assert rig.store.puts > 10  # of which each fifth failed
    assert rig.scan.problem == ""


def test_a_seed_whose_history_was_collected_meanwhile_is_never_visible(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine was suspended: no renewal seemed to be due before the end."""
    monkeypatch.setattr("pusher.seed_scan._RENEW_S", 1e9)
    plain = rig.store.put

    def put(key: str, data: bytes | memoryview) -> None:
        rig.pd.gone = True
        plain(key, data)

    monkeypatch.setattr(rig.store, "put", put)
    rig.scan.start()
    rig.scan.join()
    assert not rig.scan.done
    assert not rig.control.seeds
    assert "PD has collected history" in rig.scan.problem


def test_a_stopped_seed_ends_without_a_problem(rig: Rig) -> None:
    rig.control.away = True
    rig.scan.start()
    rig.stop.set()
    rig.scan.join()
    assert not rig.scan.done


def rewritten(table_id: int = FIRST) -> WantedSeed:
    reads = tuple(TableRead(ts=ts, physical_ids=(table_id,)) for ts in (S + 11, S + 50))
    return WantedSeed(table_id=table_id, name="shop.orders", reads=reads)


def seeded_rows(rig: Rig, ts: int) -> int:
    name = str(manifest_key(Tenant(1, 2), ts, FIRST))
    return read_manifest(name, rig.store.get(name), Tenant(1, 2), ts, FIRST).rows


def test_a_table_that_a_column_change_rewrote_is_read_just_above_it(rig: Rig) -> None:
    rig.control.rounds, rig.control.wanted = 3, [rewritten()]
    rig.scan.start()
    rig.scan.join()
    assert rig.control.seeds == {(S, 0), (S + 11, FIRST)}
    assert seeded_rows(rig, S + 11) == 10 * PAGES
    assert rig.reader.rows == 2 * 10 * PAGES, "read once, though it is asked each minute"
    assert set(rig.pd.held) == {S, S + 11}, "its history is protected while it is read"
    assert rig.scan.problem == ""


def test_where_that_history_was_collected_it_is_read_at_a_newer_timestamp(rig: Rig) -> None:
    rig.control.rounds, rig.control.wanted = 1, [rewritten()]
    rig.control.seeds.add((S, 0))
    rig.pd.gone_upto = S + 11
    rig.scan.start()
    rig.scan.join()
    assert rig.control.seeds == {(S, 0), (S + 50, FIRST)}
    assert rig.scan.problem == ""


def test_a_table_that_cannot_be_read_is_named_and_tried_again(rig: Rig) -> None:
    rig.control.rounds, rig.control.wanted = 1, [rewritten()]
    rig.pd.gone = True
    rig.scan.start()
    rig.scan.join()
    assert not rig.control.seeds
    assert [text.split(" at ")[0] for text in rig.scan._failed.values()] == ["the tenant", "shop.orders"]
    rig.stop.clear()
    rig.control.rounds, rig.pd.gone = 1, False
    rig.scan._seed_rewritten()
    assert rig.control.seeds == {(S + 11, FIRST)}
    assert [text.split(" at ")[0] for text in rig.scan._failed.values()] == ["the tenant"]
