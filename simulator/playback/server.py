"""gRPC around the stage: one server for PD, one for each store, and the thread that plays the lines.

    with PlaybackCluster(directory) as cluster:
        PdClient([cluster.pd_address]) ...
        cluster.wait_until_played(60)

Relations:

- one lock guards the stage; its holder never waits for a client;
- a message of the stage is queued for its stream, in order; the clock waits while a stream has more than
  `_UNREAD_BYTES_MAX` queued, and for a while when the next line lacks a listener (`waiting_for`);
- a stream whose store was cut ends with UNAVAILABLE, and so does every new one until the store is back.
"""

from __future__ import annotations

from pathlib import Path

from simulator.loopback.cluster import LoopbackCluster
from simulator.loopback.core.feed_wire import KV_API_TIDB, Request
from simulator.playback.core.pd import PlaybackPd
from simulator.playback.core.stage import Stage
from simulator.playback.recording import read_recording
from tistream.clock import Clock
from tistream.codec.protobuf import parse
from tistream.errors import InvalidInput
from tistream.keyrange import KeyRange
from tistream.tikv.core import wire

_UNREAD_BYTES_MAX = 4 << 20
_LINES_AT_ONCE = 50
_WAIT_S = 0.2
_PATIENCE_S = 10.0


class PlaybackCluster(LoopbackCluster):
    """A recorded cluster on the loopback interface. `close` it, or use it as a context.

    `speed`: None = as fast as its clients read, N = N times the recorded speed. `only`: see Stage. `kv_api`, `wanted`:
    see read_recording."""

    def __init__(
        self,
        directory: Path,
        *,
        speed: float | None = None,
        only: KeyRange | None = None,
        kv_api: int = KV_API_TIDB,
        wanted: KeyRange | None = None,
        clock: Clock | None = None,
    ) -> None:
        if speed is not None and speed <= 0:
            raise InvalidInput("the speed must be positive", speed=speed)
        self._recording = read_recording(directory, kv_api=kv_api, wanted=wanted)
        self._stage = Stage(self._recording, only)
        answers = (parse(wire.GetAllStoresResponse, answer) for _, answer in self._recording.stores)
        super().__init__(sorted({store.id for answer in answers for store in answer.stores}), clock)
        self._speed = speed
        self._blocked: tuple[str, float] | None = None  # the region that the next line waits for, since when
        self._paced_from: tuple[float, int] | None = None  # (monotonic seconds, recorded ms)
        self._start(PlaybackPd(self._recording, self._stage, self.pd_address, self._addresses))

    @property
    def start_ts(self) -> int:
        """The recorder's first checkpoint: history begins above it."""
        return self._recording.start_ts

    @property
    def lines(self) -> tuple[int, int]:
        """How many lines have been played, and of how many."""
        return self._stage.line, len(self._recording.lines)

    @property
    def promised_ts(self) -> int:
        """The watermark of every region that is followed now."""
        with self._lock:
            return self._stage.promised_ts

    @property
    def at_ms(self) -> int:
        """The recorded time, in Unix milliseconds."""
        return self._stage.at_ms

    @property
    def played(self) -> bool:
        """Whether everything was played and handed to the clients' streams. Raises the error that ended the playback
        early."""
        with self._lock:
            if self._fault is not None:
                raise self._fault
            return self._stage.at_end and not self.streams.unread_bytes

    @property
    def waiting_for(self) -> tuple[str, float]:
        """The unregistered region that the recording waits for, and for how many seconds; ("", 0.0) while it plays."""
        blocked = self._blocked
        return (blocked[0], self._clock.monotonic() - blocked[1]) if blocked else ("", 0.0)

    def wait_until_played(self, timeout_s: float) -> bool:
        """Wait until `played`; False when it did not come so far in time."""
        until = self._clock.monotonic() + timeout_s
        while not self.played:
            if self._clock.monotonic() >= until or self._clock.wait(self._closed, _WAIT_S / 4):
                return self.played
        return True

    # -- the lines -------------------------------------------------------------------------------------------------

    def _play(self) -> None:
        while not self._closed.is_set():
            with self._lock:
                pause_s = self._advance()
                if pause_s:
                    self._lock.wait(pause_s)

    def _advance(self) -> float:
        """Play some lines; how long to wait then, in seconds, unless something happens."""
        if self._stage.at_end:
            return _WAIT_S
        for _ in range(_LINES_AT_ONCE):
            if self._stage.at_end:
                break
            if self.streams.unread_bytes > _UNREAD_BYTES_MAX:
                return _WAIT_S
            if (lacking := self._stage.blocked()) and self._waits_for(str(lacking)):
                return _WAIT_S
            self._blocked = None
            if early_s := self._early_s():
                return min(early_s, _WAIT_S)
            self._stage.step()
            self._hand_out()
        return 0.0

    def _waits_for(self, region: str) -> bool:
        """Whether to wait on for a listener of this region. Others may follow a newer version of it, which had no part
        in the recorded feed: after a while the line is played, and who registers later gets its rows by a scan."""
        if self._blocked is None:
            self._blocked = (region, self._clock.monotonic())
        return not self._stage.is_followed or self._clock.monotonic() - self._blocked[1] < _PATIENCE_S

    def _early_s(self) -> float:
        """How much too early it is for the next line."""
        if self._speed is None or not self.streams:
            return 0.0
        due_ms = self._recording.at_ms[self._stage.line]
        if self._paced_from is None:
            self._paced_from = (self._clock.monotonic(), due_ms)
        began, first_ms = self._paced_from
        return max(0.0, began + (due_ms - first_ms) / 1000 / self._speed - self._clock.monotonic())

    def _hand_out(self) -> None:
        messages, cut = self._stage.take_output()
        for number, data in messages:
            self.streams.put(number, data)
        for store_id in cut:
            self.streams.cut_store(store_id)

    # -- clients ---------------------------------------------------------------------------------------------------

    def is_away(self, store_id: int) -> bool:
        return store_id in self._stage.away or self._closed.is_set() or self._fault is not None

    def requested(self, stream: int, store_id: int, request: Request) -> None:
        self._stage.register(stream, store_id, request)
        self._hand_out()

    def stream_over(self, stream: int) -> None:
        self._stage.drop_stream(stream)
