"""The recorder's own requests, made again at the lines where it made them: it is told what it was told then."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from simulator.loopback.core import feed_wire as wire
from simulator.loopback.core.feed_wire import Request
from simulator.playback.core.stage import Stage
from simulator.playback.recording import Begun, Message, Recording, Registration, StreamEnded, read_recording
from tistream import ts
from tistream.keyrange import KeyRange
from tistream.model.change import RowKind

DATA = Path(__file__).parents[1] / "data" / "real_tikv"


@dataclass(slots=True)
class Told:
    """What a registration heard."""

    entries: bytearray = field(default_factory=bytearray)
    resolved: list[int] = field(default_factory=list)
    error: bytes | None = None


def request_of(recording: Recording, registration: Registration, request_id: int) -> Request:
    return Request(
        cluster_id=recording.cluster_id,
        region_id=registration.region_id,
        version=registration.version,
        request_id=request_id,
        range=registration.range,
        checkpoint_ts=registration.checkpoint_ts,
        kv_api=0,
        deregister=False,
    )


def recorded(recording: Recording) -> dict[Registration, Told]:
    """What the recorder heard, from the lines themselves."""
    out: dict[Registration, Told] = {}
    for number, line in enumerate(recording.lines):
        if isinstance(line, Begun):
            out[line.registration] = Told()
        if not isinstance(line, Message):
            continue
        events, resolved = wire.read_message(line.data)
        for event in events:
            who = recording.living(number, line.stream, event.request_id, event.region_id)
            if who is not None and not event.is_duplicate_request:
                hear(out[who], event.entries, event.error)
        for said in resolved:
            for region_id in said.regions:
                who = recording.living(number, line.stream, said.request_id, region_id)
                if who is not None:
                    out[who].resolved.append(said.ts)
    return out


def hear(stream: Told, entries: bytes | None, error: bytes | None) -> None:
    if entries is not None:
        stream.entries += entries
    if error is not None:
        stream.error = error


def replayed(recording: Recording) -> tuple[dict[Registration, Told], Stage]:
    """What the recorder would be told, were it to register just when it did."""
    stage = Stage(recording)
    out: dict[Registration, Told] = {}
    who: dict[tuple[int, int], Registration] = {}
    while not stage.at_end:
        assert stage.blocked() is None
        line = recording.lines[stage.line]
        stage.step()
        if isinstance(line, Begun) and line.registration.serves:
            registration = line.registration
            request_id = len(who) + 1
            who[request_id, registration.region_id] = registration
            out[registration] = Told()
            stage.register(
                registration.store_id, registration.store_id, request_of(recording, registration, request_id)
            )
        messages, cut = stage.take_output()
        assert bool(cut) == isinstance(line, StreamEnded)
        for stream, data in messages:
            events, resolved = wire.read_message(data)
            for event in events:
                assert who[event.request_id, event.region_id].store_id == stream
                hear(out[who[event.request_id, event.region_id]], event.entries, event.error)
            for said in resolved:
                for region_id in said.regions:
                    out[who[said.request_id, region_id]].resolved.append(said.ts)
    return out, stage


@pytest.mark.parametrize("name", ["txn_quiet", pytest.param("txn_dev", marks=pytest.mark.slow)])
def test_the_recorder_is_told_what_it_was_told(name: str) -> None:
    recording = read_recording(DATA / name)
    then = {r: stream for r, stream in recorded(recording).items() if r.serves}
    now, stage = replayed(recording)
    assert now.keys() == then.keys()
    more = 0
    for registration, was in then.items():
        stream = now[registration]
        assert stream.error == was.error
        assert stream.resolved == was.resolved
        assert stream.entries.endswith(was.entries), str(registration)
        ahead = len(stream.entries) - len(was.entries)
        for row in wire.read_rows(bytes(stream.entries[:ahead])):  # composed: what earlier registrations had shown
            assert row.kind == RowKind.COMMITTED
            assert row.commit_ts > registration.checkpoint_ts
            assert row.key in registration.range
        more += ahead
    assert 0 <= more < sum(len(stream.entries) for stream in now.values()) / 2
    assert stage.history.count == {"txn_quiet": 30, "txn_dev": 94326}[name]  # distinct versions of the whole recording


def test_timestamps_stay_between_the_recorded_ones() -> None:
    recording = read_recording(DATA / "txn_quiet")
    stage = Stage(recording, KeyRange(b"a", b"b"))
    rand = random.Random(5)
    last = 0
    while not stage.at_end:
        for _ in range(rand.randrange(3)):
            count = rand.randrange(1, 20)
            stamp = stage.tso(count)
            assert stamp - count >= last
            last = stamp
            before = [t for line, t in recording.timestamps if line < stage.line]
            after = [t for line, t in recording.timestamps if line >= stage.line]
            assert not before or stamp > before[-1]
            assert not after or not before or ts.physical_ms(stamp) <= ts.physical_ms(after[0])
        stage.step()
    assert stage.tso(1) > recording.timestamps[-1][1]
