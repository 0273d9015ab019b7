"""Upstreams of single scenarios; those of several are in `simulator.profiles`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator import profiles as upstream


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTiming:
    """Of the stores. As shares of the time between two ticks."""

    apart: float = 0.0  #: by which the ticks of store n + 1 come after those of store n
    fetched: float = 0.0  #: before a tick, at which the timestamp of its resolved ts is fetched
    resolved: float = 0.0  #: before a tick, at which the locks are looked at and the resolved ts is sent; <= fetched
    before_ready: bool = False  #: a resolved ts is sent during the opening scan: it does not count yet
    scan_s: float = 0.0  #: seconds, not a share: between two pieces of the opening scans of a store
    flush_into_scans: bool = False  #: pipelined transactions write again what an opening scan is about to send
    coarse_tso: bool = False  #: two ticks have one timestamp unless one was allocated in between

    @property
    def plain(self) -> bool:
        """Whether timestamp, locks and tick are always taken together."""
        return not self.fetched and not self.before_ready


#: some transactions that take a while, and rollbacks that overlap commits
SPREAD = replace(
    upstream.TINY,
    stores=3,
    tables=2,
    rows=4,
    open_max=8,
    patience=10,
    rollbacks=0.2,
    actions=tuple((name, 12 if name == "roll_back_committed" else weight) for name, weight in upstream.TINY.actions),
)


#: transactions of many keys, which commit together
LARGE = replace(
    upstream.TINY,
    tables=2,
    rows=12,
    open_max=3,
    keys_max=14,
    patience=3,
    interactive=0.1,
    rollbacks=0.1,
    transactions=upstream.weights("optimistic 6, async 3, one_phase 1, pipelined 1"),
)


def with_moves(weight: int) -> upstream.Weights:
    """Actions in which leaders move with this weight."""
    return upstream.weights(f"begin 14, advance 60, rewrite_lock 4, split 1, merge 2, move_leader {weight}")


#: pipelined transactions that write a few long values again and again, while leaders move
SCANS = replace(
    upstream.PIPELINED,
    stores=3,
    tables=1,
    rows=3,
    open_max=5,
    keys_max=2,
    patience=2,
    interactive=0.0,
    rollbacks=0.05,
    deletes=0.1,
    long_values=0.9,
    generations=0.0,
    fakes=False,
    transactions=upstream.weights("pipelined 10, optimistic 2, one_phase 2"),
    actions=with_moves(1),
)


#: short transactions of several rows of a few tables, whose changes a changefeed writes
SINK = replace(
    upstream.TINY,
    tables=3,
    rows=6,
    open_max=6,
    keys_max=4,
    patience=1,
    interactive=0.0,
    rollbacks=0.0,
    transactions=upstream.weights("optimistic 4, async 4, one_phase 4"),
    actions=upstream.weights("begin 30, advance 80, move_leader 1"),
)
