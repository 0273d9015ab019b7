from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson
import pytest
import zstandard

from simulator.capture import EVENTS, META, SCHEMA, SNAPSHOT, Capture, CapturePlayer
from simulator.core.cluster import Subscription
from simulator.core.mvcc import RowColumns
from tests.kit.oracle import expected_changes
from tistream.errors import CorruptObject, NotFound, TiStreamError

RECORDING = Path(str(files("simulator") / "recording"))


class Subscriber:
    """Registers every region at the start's checkpoint, again whenever its subscription ended, and keeps all rows."""

    def __init__(self, player: CapturePlayer) -> None:
        self.player = player
        self.checkpoint_ts = player.cluster.floor_ts
        self.open: dict[int, Subscription] = {}
        self.largest: dict[int, int] = {}  # region -> largest resolved ts of its subscription
        self.rows: list[RowColumns] = []

    def follow(self) -> None:
        for region_id, feed in list(self.open.items()):
            if len(feed.rows):
                self.rows.append(feed.take_rows())
            if feed.ended:
                del self.open[region_id], self.largest[region_id]
        for region in self.player.cluster.regions():
            if region.region_id not in self.open:
                cluster = self.player.cluster
                self.open[region.region_id] = cluster.register(region.region_id, region.version, self.checkpoint_ts)
                self.largest[region.region_id] = 0

    def tick(self, now_ts: int) -> None:
        self.player.cluster.tick(now_ts)
        for region_id, feed in self.open.items():
            self.largest[region_id] = max(self.largest[region_id], feed.resolved_ts)


def recorded_ticks() -> Iterator[dict[str, Any]]:
    return (e for _, e in Capture(RECORDING).events() if e["t"] == "TICK")


def played() -> Iterator[tuple[Subscriber, dict[str, Any]]]:
    """The subscriber behind each tick of the recording, and the recorded tick."""
    player = CapturePlayer(Capture(RECORDING))
    subscriber, ticks = Subscriber(player), recorded_ticks()
    subscriber.follow()
    while (step := player.step()) is not None:
        subscriber.follow()
        if step.tick_ts:
            subscriber.tick(step.tick_ts)
            yield subscriber, next(ticks)
    subscriber.follow()
    yield subscriber, {}


def test_resolved_ts_and_topology_are_the_recorded_ones_at_every_tick() -> None:
    ticks = held_ticks = lists = 0
    for subscriber, tick in played():
        if not tick:
            continue
        ticks += 1
        now_ts = int(tick["now_ts"])
        ahead = {int(h["region"]): int(h["resolved_ts"]) for h in tick["held"]}
        held_ticks += bool(ahead)
        assert {r: ts for r, ts in subscriber.largest.items() if ts != now_ts} == ahead
        if "regions" in tick:
            lists += 1
            recorded = [
                tuple(int(r[n]) for n in ("region", "version", "store"))
                + tuple(bytes.fromhex(r[n]) for n in ("start_key", "end_key"))
                for r in tick["regions"]
            ]
            regions = [
                (r.region_id, r.version, r.store_id, r.range.start, r.range.end)
                for r in subscriber.player.cluster.regions()
            ]
            assert sorted(recorded) == sorted(regions)
    assert (ticks, held_ticks > 10, lists > 10) == (Capture(RECORDING).meta.ticks, True, True)


def test_a_subscriber_gets_every_committed_version_and_no_lossy_one() -> None:
    *_, (subscriber, _) = played()
    events = [e for _, e in Capture(RECORDING).events()]
    expected = set(expected_changes(events))
    lossy = {
        (bytes.fromhex(e["key"]), int(e["commit_ts"]))
        for e in events
        if "commit_ts" in e and int(e.get("txn_source", 0)) & 0xFF00
    }
    received = {(k, c) for rows in subscriber.rows for k, c in zip(rows.key, rows.commit_ts, strict=True) if c}
    assert received == expected
    assert lossy
    assert not received & lossy


def test_last_promise_is_the_last_tick() -> None:
    capture = Capture(RECORDING)
    player = CapturePlayer(capture)
    assert player.skip_to(1 << 63) == 0
    assert player.last_tick_ts == capture.meta.last_resolved_ts
    assert player.step() is None


def test_skip_to_stops_at_the_first_tick_not_below() -> None:
    ticks = [int(t["now_ts"]) for t in recorded_ticks()]
    assert CapturePlayer(Capture(RECORDING)).skip_to(ticks[5]) == ticks[5]
    assert CapturePlayer(Capture(RECORDING)).skip_to(ticks[5] + 1) == ticks[6]


# -- damaged recordings: a small one, made by hand ---------------------------------------------------------------------

REGION = {"region": "1", "version": "1", "store": "1", "start_key": "", "end_key": ""}
ROW = {"store": "1", "region": "1", "region_version": "1", "key": "61", "start_ts": "110", "op": "PUT"}
LINES: list[dict[str, Any]] = [
    {"t": "START", "ts": "100", "workload": "w"},
    {"t": "TOPOLOGY", "kind": "initial", "regions": [REGION]},
    {"t": "PREWRITE", **ROW, "value": "78"},
    {"t": "COMMIT", **ROW, "commit_ts": "120"},
    {"t": "TICK", "now_ts": "130", "held": []},
    {"t": "ROLLBACK", **ROW, "op": "UNKNOWN", "start_ts": "125", "no_prewrite": True},
    {"t": "END", "ts": "131", "last_resolved_ts": "130"},
]


def write(directory: Path, lines: list[dict[str, Any]]) -> Path:
    text = b"".join(orjson.dumps({"seq": n, **line}) + b"\n" for n, line in enumerate(lines, 1))
    (directory / EVENTS).write_bytes(zstandard.compress(text))
    key = {"key": "62", "value": "79", "start_ts": "90", "commit_ts": "95"}
    (directory / SNAPSHOT).write_bytes(zstandard.compress(orjson.dumps(key) + b"\n"))
    (directory / SCHEMA).write_bytes(orjson.dumps({"ts": "100", "dbs": [], "tables": []}))
    meta = {"workload": "w", "start_ts": "100", "last_resolved_ts": "130", "stores": [{"id": "1"}]}
    (directory / META).write_bytes(orjson.dumps({**meta, "counts": {"TICK": 1}}))
    return directory


def play(directory: Path) -> None:
    capture = Capture(directory)
    capture.schema_snapshot()
    player = CapturePlayer(capture)
    while player.step() is not None:
        pass


def changed(at: int, **fields: Any) -> list[dict[str, Any]]:
    return [{**line, **fields} if n == at else line for n, line in enumerate(LINES, 1)]


def test_the_small_recording_is_whole(tmp_path: Path) -> None:
    play(write(tmp_path, LINES))


@pytest.mark.parametrize("name", [META, EVENTS, SNAPSHOT, SCHEMA])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    shutil.rmtree(tmp_path / name, ignore_errors=True)
    write(tmp_path, LINES)
    (tmp_path / name).unlink()
    with pytest.raises(NotFound, match=name):
        play(tmp_path)


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        (changed(1, ts="101"), 1),
        (LINES[1:], 1),
        ([LINES[0], *LINES[2:]], 2),
        (changed(3, region="2"), 3),
        (changed(3, store="2"), 3),
        (changed(3, value=None), 3),
        (changed(3, key="zz"), 3),
        (changed(3, op="MAYBE"), 3),
        (changed(3, t="SOMETHING"), 3),
        (changed(4, start_ts="111"), 4),
        (changed(4, seq=9), 4),
        (changed(5, now_ts="119"), 5),
        (changed(5, now_ts="x"), 5),
        (LINES[:-1], 6),
        (changed(5, now_ts="129"), 7),
        (changed(5, t="TOPOLOGY", kind="leader", regions=[{**REGION, "version": "2", "store": "2"}]), 5),
        (changed(5, t="TOPOLOGY", kind="spin", regions=[]), 5),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, lines: list[dict[str, Any]], line: int) -> None:
    write(tmp_path, lines)
    with pytest.raises(CorruptObject) as caught:
        play(tmp_path)
    assert caught.value.facts["line"] == line
    assert str(caught.value.facts["file"]).endswith(EVENTS)


def cut(data: bytes) -> bytes:
    return data[:-5]


def flip(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


@pytest.mark.parametrize("name", [META, EVENTS, SNAPSHOT, SCHEMA])
@pytest.mark.parametrize("damage", [cut, flip, lambda _: b""])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, damage: Callable[[bytes], bytes]) -> None:
    path = write(tmp_path, LINES) / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(TiStreamError) as caught:
        play(tmp_path)
    assert isinstance(caught.value, CorruptObject)
    assert caught.value.facts["file"] == str(path)


def test_a_schema_snapshot_of_another_moment_is_refused(tmp_path: Path) -> None:
    (write(tmp_path, LINES) / SCHEMA).write_bytes(orjson.dumps({"ts": "99"}))
    with pytest.raises(CorruptObject, match="another timestamp"):
        Capture(tmp_path).schema_snapshot()
