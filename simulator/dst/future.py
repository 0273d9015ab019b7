"""Timestamps of the future: an upstream whose clock runs ahead at times, and a store that writes what it wants.

    clock     at times the upstream's timestamps are ahead of the database's clock, by less or by more than is allowed
    store     one more store of the judged tenant, which leads nothing. Each of its incarnations writes a sound file, a
              bad one, and a sound one. The bad one is ahead of time, by seconds or forever, or its resolved ts is
              above its cut_ts

Nothing may be published before its time, what is allowed may not wait, and in the end all is served: what the upstream
wrote ahead of time, and what the other stores wrote meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from simulator.dst.aspect import Aspect
from simulator.dst.running import TENANT, Running
from simulator.dst.store import put_at_last
from tistream import ts as tso
from tistream.catalog.work.stores import issue_incarnation
from tistream.codec.segment_file import SegmentFileWriter
from tistream.model.change import REGIONS, ROWS
from tistream.objectstore.layout import BatchKey

if TYPE_CHECKING:
    from simulator.dst.world import World

STORE = 90
_TICK_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ahead:
    """How far the upstream is ahead of the database's clock, from one second of the run on."""

    from_s: float
    ms: int


class Future(Aspect):
    """The clock and the store of one run."""

    stores = (STORE,)

    def __init__(self, world: World) -> None:
        self._world = world
        profile = world.profile
        rand = random.Random(f"{world.seed}/future")
        self._ahead = _plan(rand, profile.skew_ms, world.actions * profile.action_s)

    def ahead_ms(self) -> int:
        """How far the upstream's clock is ahead now."""
        if self._world.resting:
            return 0
        return next((part.ms for part in reversed(self._ahead) if part.from_s <= self._world.scheduler.now), 0)

    def roles(self) -> Mapping[str, Callable[[Running], None]]:
        return {"future": self._push}

    def start(self) -> None:
        self._world.start("future", "future-1")

    def _push(self, running: Running) -> None:
        """One incarnation of the store."""
        rand, stopping, now_ms = running.rand, running.stopping, self._world.unix_ms()
        incarnation, _ = issue_incarnation(running.catalog, TENANT, STORE)
        now, hour = tso.compose(now_ms), tso.compose(now_ms + 3_600_000)
        soon = tso.compose(now_ms + rand.randrange(4000, 8000))
        name, cut_ts, resolved_ts = rand.choice(
            (
                ("the end of all time", tso.TSO_END - 1, tso.TSO_END - 1),
                ("an hour ahead", hour, hour),
                ("a resolved ts above its cut", now, hour),
                ("seconds ahead, without a region", soon, 0),
            )
        )
        self._world.tell(f"store {STORE} writes a file with {name}")
        for seq, timestamps in enumerate(((now, 0), (cut_ts, resolved_ts), (now, 0)), start=1):
            key = BatchKey(tenant=TENANT, store_id=STORE, incarnation=incarnation, seq=seq)
            data = _file(key, *timestamps)
            while not put_at_last(running.store, str(key), data):
                if stopping.wait(_TICK_S):
                    return
            if stopping.wait(_TICK_S):
                return
        stopping.wait(1.0 + 5.0 * rand.random())


def _plan(rand: random.Random, skew_ms: int, until_s: float) -> list[_Ahead]:
    """Sometimes on time, sometimes ahead by half of what is allowed, sometimes by a few seconds more than that."""
    parts: list[_Ahead] = []
    at = 1.0 + rand.random()
    while at < until_s:
        ms = rand.choice((0, skew_ms // 2, skew_ms + rand.randrange(500, 4000)))
        parts.append(_Ahead(from_s=at, ms=ms))
        at += 1.0 + 2.0 * rand.random()
    return parts


def _file(key: BatchKey, cut_ts: int, resolved_ts: int) -> bytes:
    """A file without rows, written past the checks of the codec. With a resolved ts it promises it of every key."""
    head = {"file": "batch", "cluster": key.tenant.cluster_id, "tenant": key.tenant.tenant_id, "store": key.store_id}
    head |= {"incarnation": key.incarnation, "seq": key.seq, "cut_ts": cut_ts, "write_id": "by hand"}
    mark = dict.fromkeys(REGIONS.names, 0) | {"start_key": b"", "end_key": b"", "resolved_ts": resolved_ts}
    mark |= {"region_id": 1, "version": 1, "subscription_open_ts": 1, "subscription_ready_ts": 1}
    writer = SegmentFileWriter(head)
    writer.add("rows", pa.RecordBatch.from_pylist([], schema=ROWS))
    writer.add("regions", pa.RecordBatch.from_pylist([mark] if resolved_ts else [], schema=REGIONS))
    return writer.finish()
