"""Installs simulated threads, randomness and leases in the services' modules for the time of a run."""

from __future__ import annotations

import concurrent.futures
import queue
import random
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType, SimpleNamespace
from typing import Any

from dispatcher.core.router import directory
from simulator.dst import threads
from simulator.dst.bounds import patched
from tistream.codec.batch_file import decode_batch_file

ROOMS = (
    "apiserver",
    "backfill",
    "compactor",
    "dispatcher",
    "metaserver",
    "schemas",
    "sorter",
    "pusher",
    "reading",
    "replicator",
    "tistream.catalog",
    "tistream.exports",
    "tistream.sealing",
)
SINGLE = (
    *("tistream.runtime.service", "tistream.clock", "tistream.log.committed_log", "tistream.catalog.work.drain"),
    *("tistream.feed.flight", "tistream.feed.exchange", "tistream.runtime.ready_queue"),
    *("tistream.objectstore.generations", "tistream.http.auth.issue"),
)

_THREADING = SimpleNamespace(
    Thread=threads.Thread,
    Lock=threads.Lock,
    Event=threads.Event,
    Condition=threads.Condition,
    Semaphore=threads.Semaphore,
    current_thread=threads.current_thread,
)
#: replaced wherever a module of the services has it
_REPLACED = (threading, queue, concurrent.futures.ThreadPoolExecutor, random, secrets, decode_batch_file, directory)
#: of the services, as short as a run needs them
_SHORTENED: Mapping[str, float] = {
    "LEASE_MS": 3000,
    "LEADER_LEASE_MS": 3000,
    "HEARTBEAT_MS": 700,
    "SWEEP_S": 4.0,
    "READ_LEASE_TTL_MS": 2400,
    "LANE_LEASE_MS": 1500,
    "BUILD_LEASE_MS": 3000,
    "BUILD_RENEW_MS": 700,
    "ROOT_LIFE_S": 0.8,
    "ROOT_REFRESH_S": 0.5,
    "ROOT_PAUSE_FIRST_S": 0.05,
    "ROOT_PAUSE_MAX_S": 0.4,
    "SILENT_S": 3.0,  #: of a peer of the feed until it is considered dead
}
#: bounds of the sorter that a scenario may lower
LIMITS = (
    *("DECIDE_ROWS", "COPY_BYTES_MAX", "PIECE_ROWS", "FILE_BYTES_TARGET", "SPILL_BYTES_MIN", "ARRAY_BYTES_MIN"),
    *("PATIENCE_S", "FIRST_PAUSE_S", "BACKLOG_BYTES_MAX"),
)
_QUEUE = SimpleNamespace(Queue=threads.Queue, SimpleQueue=threads.Queue, Full=queue.Full, Empty=queue.Empty)


@contextmanager
def installed(rand: random.Random, limits: Mapping[str, int]) -> Iterator[None]:
    """Replace what the modules took from the standard library, shorten leases and sweeps, and lower some of LIMITS."""
    constants = {**_SHORTENED, **limits}
    chance = SimpleNamespace(Random=lambda seed=None: random.Random(rand.random() if seed is None else seed))
    hidden = SimpleNamespace(
        token_hex=lambda n=16: rand.randbytes(n).hex(),
        token_bytes=lambda n=16: rand.randbytes(n),
        randbits=rand.getrandbits,
    )
    instead = dict(
        zip(
            map(id, _REPLACED),
            (
                _THREADING,
                _QUEUE,
                threads.ThreadPoolExecutor,
                chance,
                hidden,
                _remembering(decode_batch_file, lambda key, data, _admit=None: (key, data)),
                _remembering(directory, lambda rows, regions: (id(rows), id(regions))),
            ),
            strict=True,
        )
    )
    values = ((module, name, vars(module)[name]) for module, name in _places(len(sys.modules)))
    with patched((m, name, constants[name] if name in constants else instead.get(id(v), v)) for m, name, v in values):
        yield


def _remembering(function: Callable[..., Any], key_of: Callable[..., Any]) -> Callable[..., Any]:
    """Cache a pure function that every process of a run calls with the same arguments. Arguments are kept, so that
    their ids stay theirs. Errors are not cached."""
    known: dict[Any, tuple[Any, Any]] = {}

    def remembered(*given: Any) -> Any:
        key = key_of(*given)
        value = known.get(key)
        if value is None:
            value = known[key] = function(*given), given
        return value[0]

    return remembered


@lru_cache(maxsize=1)
def _places(_loaded: int) -> list[tuple[ModuleType, str]]:
    """Modules and names to replace; searched again when a module was loaded."""
    replaced = set(map(id, _REPLACED))
    return [
        (module, name)
        for module in _modules()
        for name, value in vars(module).items()
        if name in _SHORTENED or name in LIMITS or id(value) in replaced
    ]


def _modules() -> list[ModuleType]:
    def ours(name: str) -> bool:
        return name in SINGLE or any(name == room or name.startswith(f"{room}.") for room in ROOMS)

    return [module for name, module in sorted(sys.modules.items()) if module is not None and ours(name)]
