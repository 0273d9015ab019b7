"""Size bounds of the services, drawn small for some seeds, so that a few small rows reach the code at each bound.

A bound is a constant of the module that defines it. Its small values are legal: they change the number of pieces, not
what a run writes. Each run draws which bounds are small, because two of them can hide each other: a group that may hold
one row never takes two segments.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

#: module -> its bounds -> small values
BOUNDS: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "sorter.rows.run": {
        "YOUNG_BYTES": (0, 200),
        "RUN_ROWS": (8, 32),
        "SEGMENT_BYTES": (8, 20, 100),
        "ARRAY_BYTES_MIN": (0, 100),
        "FAN_IN": (2, 3),
        "SMALL_ROWS": (2, 8),
    },
    "sorter.state.saving": {"GROUP_BYTES": (8, 20, 100), "OBJECT_BYTES": (300, 3000), "OBJECTS_MAX": (2, 4)},
    "sorter.state.snapshot": {"SEGMENT_BYTES": (100, 1000)},
    "sorter.core.sort_buffer": {"FLUSH_BYTES_MAX": (30, 200)},
    "sorter.rows.output": {"PIECE_ROWS": (1, 2), "PIECE_BYTES": (8, 100)},
    "sorter.core.decision_queue": {"DECIDE_ROWS": (1, 3)},
    "sorter.core.prewrite_buffer": {"COPY_BYTES_MAX": (1, 300)},
    "sorter.core.eviction": {"SPILL_BYTES_MIN": (0,), "FILE_BYTES": (200,)},
    "sorter.worker.publisher": {"FILE_BYTES_TARGET": (150, 1000)},
    "sorter.worker.runner": {
        "BACKLOG_BYTES_MAX": (200, 2000),
        "FEW_BATCHES": (1, 2),
        "PASSED_MAX": (1, 2),
        "PASSED_MAX_MANY": (2,),
    },
    "sorter.rows.batch_rows": {"ARROW_BYTES_MAX": (100,)},
    "sorter.core.watermark": {"EXPLAINED_MAX": (1, 3)},
    "sorter.core.stall_detector": {"REASONS_MAX": (1,)},
    "sorter.core.reporting": {
        "TASKS_REPORTED_MAX": (1,),
        "SPLITS_REPORTED_MAX": (1,),
        "PROBLEMS_REPORTED_MAX": (1,),
        "EXPLAINED_AT_ONCE": (1,),
    },
    "sorter.worker.fair_schedule": {"IDLE_AT_ONCE": (1, 2)},
    "sorter.worker.owned": {"MANY_TASKS": (1, 2)},
    "sorter.rows.payload": {"HASH_MASK": (1, 15)},
    "dispatcher.worker": {"FRUITLESS_MAX": (1, 2)},
    "dispatcher.reporting": {"PROBLEMS_REPORTED_MAX": (1,)},
    "dispatcher.reclaim": {"_DELETES_AT_ONCE": (1, 2)},
    "dispatcher.gather": {"_RUN_ROWS_MIN": (1, 1000)},
    "metaserver.collect": {"_KEYS_AT_ONCE": (1, 3)},
    "metaserver.inventory": {"MANY_ROWS": (1, 2), "CHUNK": (1, 2), "LOGGED_MAX": (1,)},
    "metaserver.core.balance": {"PLACED_MAX": (1, 3)},
    "tistream.limits": {
        "SEGMENT_OWN_BYTES_MIN": (60, 300),
        "SEGMENT_SHARED_BYTES_TARGET": (60, 300),
        "SEGMENT_BYTES_TARGET": (60, 300),
        "COMMITTED_FILE_BYTES_TARGET": (300,),
        "COMPACTED_FILE_BYTES_TARGET": (600,),
        "COMPACTED_GROUP_BYTES_TARGET": (200,),
        "PREFETCH_FILES_MAX": (1, 2),
        "FEED_QUEUE_BATCHES_MAX": (1, 2),
        "INBOX_BYTES_MAX": (1, 1000),
    },
    "tistream.catalog.log.committed": {"_TABLE_IDS_MAX": (1, 2)},
    "tistream.catalog.log.objects": {"KEYS_AT_ONCE": (1, 3)},
    "tistream.catalog.work.stores": {"_TENANTS_NAMED_MAX": (1,)},
    "tistream.catalog.work.tasks": {"_TENANTS_NAMED_MAX": (1,)},
    "tistream.catalog.work.reports": {"_DECODED_MAX": (1, 2)},
    "tistream.catalog.rows.reports": {"STUCK_MAX": (1,)},
    "tistream.catalog.database.events": {"SINGLE_EVENTS_MAX": (1,)},
    "reading.log.reader": {
        "_SEGMENTS_PER_QUERY": (1, 3),
        "_REQUESTS_IN_FLIGHT_MAX": (1,),
        "_CACHE_BYTES_MAX": (1, 1000),
        "_PAGE_BYTES_MAX": (1, 300),
        "_PAGE_STORED_BYTES_MAX": (1, 3000),
    },
    "reading.served.cache": {"_SEGMENTS_MAX": (1, 3), "_STEPS_KEPT": (1, 2), "_SCOPES_KEPT": (1,)},
    "schemas.registry.schema_registry": {"_SEGMENTS_ASKED": (1, 3)},
    "schemas.queried": {"_SNAPSHOTS_KEPT": (1, 2)},
    "schemas.registry.history_store": {"_INCREMENTS_MAX": (1, 2)},
}
#: bounds that are equal where they are defined, and stay so in half of the draws: two sides of one boundary
EQUAL = (("sorter.state.saving.GROUP_BYTES", "sorter.rows.run.SEGMENT_BYTES"),)
ROOMS = ("tistream", "schemas", "reading", "dispatcher", "sorter", "compactor", "apiserver", "metaserver", "pusher")
#: with the first one small, a run only settles in time if the second one is small, too
TOGETHER = {
    "sorter.worker.owned.MANY_TASKS": ("sorter.worker.runner.PASSED_MAX_MANY", 2)
}  # where tasks are many, idle ones are saved rarely
_SHARE = 0.5  # of the bounds that are small in a seed with small bounds
_EVERY = 4  # one of this many seeds has small bounds

_places: dict[str, list[tuple[ModuleType, str]]] = {}
_loaded = 0


def drawn(seed: int, profile: str) -> dict[str, int]:
    """The bounds of a seed, by full name: none for most seeds."""
    rand = random.Random(f"{seed}/{profile}/bounds")
    limits = small(rand) if rand.randrange(_EVERY) == 0 else {}
    if profile == "lost_keys":  # after a restore many incarnations' rows are written again: too many for small flushes
        limits.pop("sorter.core.sort_buffer.FLUSH_BYTES_MAX", None)
    return limits


def small(rand: random.Random) -> dict[str, int]:
    """Some of the bounds, small."""
    limits = {
        f"{module}.{name}": rand.choice(values)
        for module, bounds in BOUNDS.items()
        for name, values in bounds.items()
        if rand.random() < _SHARE
    }
    for one, other in EQUAL:
        if other in limits and rand.random() < 0.5:
            limits[one] = limits[other]
    for one, (other, value) in TOGETHER.items():
        if one in limits:
            limits[other] = value
    return limits


@contextmanager
def lowered(bounds: Mapping[str, int]) -> Iterator[None]:
    """Put these values in place of the bounds, in every loaded module of ours that has them."""
    with patched((module, name, value) for full, value in bounds.items() for module, name in _places_of(full)):
        yield


@contextmanager
def patched(values: Iterable[tuple[ModuleType, str, Any]]) -> Iterator[None]:
    """Modules have these values under these names."""
    before: list[tuple[ModuleType, str, Any]] = []
    try:
        for module, name, value in values:
            before.append((module, name, vars(module)[name]))
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in reversed(before):
            setattr(module, name, value)


def _places_of(full: str) -> list[tuple[ModuleType, str]]:
    """The module that defines a bound, and those that took it from there by name."""
    global _loaded
    home, _, name = full.rpartition(".")
    value = vars(import_module(home))[name]  # AttributeError and KeyError alike: the bound has another name now
    if _loaded != len(sys.modules):
        _places.clear()
        _loaded = len(sys.modules)
    if full not in _places:
        _places[full] = [
            (module, name)
            for module in map(sys.modules.get, sorted(sys.modules))
            if module is not None and _takes(module, home, name, value)
        ]
    return _places[full]


def _takes(module: ModuleType, home: str, name: str, value: int) -> bool:
    if module.__name__ == home:
        return True
    room = module.__name__.partition(".")[0]
    if room not in ROOMS or (not home.startswith("tistream.") and not home.startswith(f"{room}.")):
        return False
    return name not in BOUNDS.get(module.__name__, {}) and vars(module).get(name) == value
