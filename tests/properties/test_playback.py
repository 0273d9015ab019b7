"""Damaged recordings and requests that nobody sends: refused, never a crash, a hang or a made-up change."""

from __future__ import annotations

import contextlib
import json
import random
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.loopback.core import feed_wire as wire
from simulator.loopback.core.feed_wire import Request
from simulator.playback.core.pd import PlaybackPd
from simulator.playback.core.stage import Stage
from simulator.playback.recording import STREAM, Recording, read_recording
from tests.kit.real_tikv import lines, stored_versions
from tistream.codec.protobuf import message, octets, uint
from tistream.errors import TiStreamError
from tistream.keyrange import KeyRange
from tistream.model.change import RowKind

QUIET = Path(__file__).parents[1] / "data" / "real_tikv" / "txn_quiet"
UNOWNED = KeyRange(b"a", b"b")


@cache
def quiet_lines() -> list[dict[str, Any]]:
    return list(lines(QUIET / STREAM))


@cache
def quiet() -> Recording:
    return read_recording(QUIET)


def play(recording: Recording) -> Stage:
    stage = Stage(recording, UNOWNED)
    while not stage.at_end:
        assert stage.blocked() is None
        stage.step()
    return stage


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_recording_is_refused_or_played(data: st.DataObject) -> None:
    damaged = [dict(line) for line in quiet_lines()]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        what = data.draw(st.sampled_from(["drop", "twice", "bytes", "field"]))
        line = damaged[at]
        name = next((n for n in ("msg_hex", "resp_hex", "start") if line.get(n)), "dir")
        if what == "drop":
            del damaged[at]
        elif what == "twice":
            damaged.insert(at, line)
        elif what == "field":
            del line[data.draw(st.sampled_from(sorted(line)))]
        else:
            text = line[name]
            place = data.draw(st.integers(0, len(text) - 1))
            line[name] = text[:place] + data.draw(st.sampled_from("0123456789abcdefx")) + text[place + 1 :]
    with tempfile.TemporaryDirectory() as folder:
        text = "".join(json.dumps(line) + "\n" for line in damaged)
        Path(folder, STREAM).write_bytes(zstandard.ZstdCompressor().compress(text.encode()))
        with contextlib.suppress(TiStreamError):
            play(read_recording(Path(folder)))


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([wire.read_request, wire.read_message, lambda b: list(wire.read_rows(b))]), st.binary(max_size=80)
)
def test_any_bytes_are_read_or_refused(read: Any, data: bytes) -> None:
    with contextlib.suppress(TiStreamError):
        read(data)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(
        ["GetRegion", "ScanRegions", "BatchScanRegions", "UpdateServiceGCSafePoint", "SetGCBarrier", "Tso"]
    ),
    st.binary(max_size=60),
)
def test_pd_answers_or_refuses_any_request(method: str, data: bytes) -> None:
    recording = quiet()
    pd = PlaybackPd(recording, Stage(recording, UNOWNED), "127.0.0.1:1", dict.fromkeys((1, 4, 5), "127.0.0.1:2"))
    for request in (data, message(1, uint(1, recording.cluster_id)) + data):
        with contextlib.suppress(TiStreamError):
            pd.timestamps(request) if method == "Tso" else pd.answer(f"/pdpb.PD/{method}", request)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32))
def test_whenever_a_client_registers_it_hears_what_it_is_promised(seed: int) -> None:
    """At any line, any range, any checkpoint, any number of times: each registration keeps its promise by itself."""
    rand = random.Random(seed)
    recording = quiet()
    table = recording.ranges[0]
    everything = quiet_versions()
    stage = Stage(recording, UNOWNED)
    living: tuple[int, KeyRange, int] | None = None  # request, range, checkpoint
    received: set[tuple[bytes, int]] = set()  # by it
    locks: set[tuple[bytes, int]] = set()
    initialized = False
    for number in range(len(recording.lines)):
        if living is None and rand.randint(0, 3) == 0:
            middle = table.start + b"_r\x80\x00\x00\x00\x00\x01" + bytes([rand.randint(0x2C, 0x2D), 0])
            asked_range = rand.choice([table, KeyRange(table.start, middle), KeyRange()])
            tile = next(stage.plan.tiles(stage.line, table.start, table.end))
            checkpoints = [recording.start_ts, *(ts - rand.randint(0, 1) for _, ts in everything)]
            living, received = (number + 1, asked_range, rand.choice(checkpoints)), set()
            locks, initialized = set(), False
            stage.register(1, tile.store_id, request_of(recording, tile.region.region_id, tile.region.version, living))
        elif living is not None and rand.randint(0, 30) == 0:
            stage.drop_stream(1)
            living = None
        if rand.random() < 0.5:
            stage.step()
        elif living is not None and rand.randint(0, 20) == 0:
            request = request_of(recording, tile.region.region_id, tile.region.version, living, deregister=True)
            stage.register(1, tile.store_id, request)
        messages, cut = stage.take_output()
        for stream, raw in messages:
            assert stream == 1
            assert living is not None
            events, resolved = wire.read_message(raw)
            for event in events:
                if event.error is not None:
                    living = None
                    break
                rows = list(wire.read_rows(event.entries or b""))
                assert all(r.key in living[1] for r in rows if r.key)
                for row in rows:
                    initialized |= row.kind == wire.INITIALIZED
                    if row.kind == RowKind.PREWRITE:
                        locks.add((row.key, row.start_ts))
                    assert not (initialized and row.kind == RowKind.COMMIT) or (row.key, row.start_ts) in locks
                received |= {(r.key, r.commit_ts) for r in rows if r.commit_ts}
            for said in resolved:
                assert living is not None
                assert initialized
                _, key_range, checkpoint_ts = living
                promised = {v for v in everything if v[0] in key_range and checkpoint_ts < v[1] <= said.ts}
                assert promised <= received
        living = None if cut else living
        assert received <= everything


@cache
def quiet_versions() -> frozenset[tuple[bytes, int]]:
    """What the store itself says that it holds."""
    return frozenset(stored_versions(QUIET))


def request_of(
    recording: Recording, region_id: int, version: int, living: tuple[int, KeyRange, int], *, deregister: bool = False
) -> Request:
    return Request(
        cluster_id=recording.cluster_id,
        region_id=region_id,
        version=version,
        request_id=living[0],
        range=living[1],
        checkpoint_ts=living[2],
        kv_api=0,
        deregister=deregister,
    )


def test_octets_and_numbers_are_left_out_when_they_are_nothing() -> None:
    assert (uint(1, 0), octets(2, b""), message(3, b"")) == (b"", b"", b"\x1a\x00")
    assert uint(3, -1) == bytes.fromhex("18ffffffffffffffffff01")  # as a real PD's client wrote it
