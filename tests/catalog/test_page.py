"""Pages of the committed log, their cost, and superseded objects."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text

from tests.kit.catalog_cases import START, T, activate, advance, flush, segment, snapshot, together
from tistream.catalog.database import tables
from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.committed import find_segments
from tistream.catalog.log.objects import superseded_objects, tombstone
from tistream.catalog.log.schema_versions import add_schema_version, latest_schema_version
from tistream.ts import TS_MAX

Span = tuple[int, int]


class TestPages:
    @pytest.mark.parametrize("seed", range(3))
    def test_a_page_is_the_first_segments_that_reach_into_the_interval(self, catalog: Catalog, seed: int) -> None:
        rnd = random.Random(seed)
        spans: list[Span] = []
        for _ in range(120):
            lo = START + 1 + rnd.randrange(1 << rnd.choice([3, 12, 40]))
            spans.append((lo, lo + rnd.choice([0, 1, 15, 16, 17, 255, 256, 1 << rnd.randrange(45)])))
        fill(catalog, activate(catalog)[0], START, spans)
        edges = [edge + by for span in spans for edge in span for by in (-1, 0, 1)]
        for _ in range(60):
            after, upto, limit = rnd.choice(edges), rnd.choice([TS_MAX, rnd.choice(edges)]), rnd.choice([1, 7, 500])
            every = sorted((lo, hi, n) for n, (lo, hi) in enumerate(spans) if hi > after and lo <= upto)
            segments = find_segments(catalog, T, after_ts=after, upto_ts=upto, limit=limit)
            assert [(s.lo_ts, s.hi_ts, s.number) for s in segments] == every[:limit]

    def test_a_page_costs_the_same_in_a_log_of_any_length(self, catalog: Catalog, low: int) -> None:
        durable_ts, costs = START, []
        for first, count in ((0, 400), (400, 6000)):
            spans = [(START + 1 + 100 * n, START + 90 + 100 * n) for n in range(first, count)]
            durable_ts = fill(catalog, low, durable_ts, spans, first)
            middle = count // 2
            read = partial(find_segments, catalog, T, after_ts=START + 50 + 100 * middle, upto_ts=TS_MAX, limit=20)
            assert [s.number for s in read()] == list(range(middle, middle + 20))
            costs.append(work(catalog, read))
        assert 0 < costs[1] < 3 * costs[0], costs

    def test_a_history_that_several_save_at_once_is_saved_once(self, catalog: Catalog) -> None:
        activate(catalog)
        for ts in range(START + 1, START + 21):
            together(4, lambda _, ts=ts: add_schema_version(catalog, T, ts, f"schemas/{ts}", 5))  # type: ignore[misc]
        assert latest_schema_version(catalog, T) == (START + 20, f"schemas/{START + 20}")

    def test_superseded_objects_are_listed_after_their_grace(self, catalog: Catalog, low: int) -> None:
        for n in (1, 2, 3):
            assert snapshot(catalog, low, n, {})
        assert superseded_objects(catalog, T, grace_ms=3_600_000, limit=10) == []
        with catalog.transaction() as conn:
            of = tables.objects.c.object_key == f"snapshots/{low}/0-1"
            conn.execute(tables.objects.update().where(of).values(changed_ms=now_ms() - 3_600_000))
        assert superseded_objects(catalog, T, grace_ms=3_600_000, limit=10) == [f"snapshots/{low}/0-1"]
        assert tombstone(catalog, T, f"snapshots/{low}/0-1")
        assert superseded_objects(catalog, T, grace_ms=0, limit=10) == [f"snapshots/{low}/0-2"]


def fill(catalog: Catalog, task_id: int, seen: int, spans: Sequence[Span], first: int = 0) -> int:
    """One flush with these segments, numbered from `first`. Returns the task's durable watermark."""
    new = max(hi for _, hi in spans)
    segments = tuple(segment(first + n, lo=lo, hi=hi) for n, (lo, hi) in enumerate(spans))
    assert flush(catalog, f"committed/{first}", advance(task_id, seen, new, *segments)) == {task_id}
    return new


def work(catalog: Catalog, act: Callable[[], object]) -> int:
    """What an act costs the database: steps of SQLite's machine, or rows that the server's engine reads."""
    with catalog._reader.connect() as conn:  # the pool's only connection: the act gets it as well
        driver: Any = conn.connection.driver_connection
    if conn.dialect.name != "sqlite":
        before = rows_read(catalog)
        act()
        return rows_read(catalog) - before
    steps: list[None] = []
    driver.set_progress_handler(lambda: steps.append(None), 1)
    act()
    driver.set_progress_handler(None, 1)
    return len(steps)


def rows_read(catalog: Catalog) -> int:
    """By the whole server until now."""
    with catalog.reading() as conn:
        return sum(int(row[1]) for row in conn.execute(text("SHOW GLOBAL STATUS LIKE 'Handler_read%'")))
