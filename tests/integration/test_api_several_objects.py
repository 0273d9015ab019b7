"""Transactions that lie in several objects, read through the API: whole, in order, once, wherever pages end."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa
import pytest

from reading.rows.scope import Scope
from reading.served import position
from tests.kit.api_world import ONE_PAGE, ApiWorld, api_world, arrow_of, events_of, next_cursor
from tests.kit.log_builder import TENANT
from tistream.catalog.log.committed import find_segments
from tistream.catalog.rows.segments import SegmentRow

ROWS_PER_OBJECT = 5
TS_MAX = (1 << 63) - 1


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    with api_world(tmp_path_factory.mktemp("whole")) as new_world:
        new_world.log.build(6, upto=new_world.log.cuts(5)[0])
        yield new_world


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    """The same log; a flush lies in as many objects as it has five rows."""
    with api_world(tmp_path_factory.mktemp("cut")) as new_world:
        new_world.log.rows_per_object = ROWS_PER_OBJECT
        new_world.log.build(6, upto=new_world.log.cuts(5)[0])
        yield new_world


def segments(world: ApiWorld) -> list[SegmentRow]:
    return find_segments(world.catalog, TENANT, after_ts=0, upto_ts=TS_MAX, limit=100_000)


def shared_ts(world: ApiWorld) -> list[int]:
    """commit timestamps that begin or end in more than one object of one task."""
    seen: dict[tuple[int, int], set[str]] = {}
    for s in segments(world):
        for ts in {s.lo_ts, s.hi_ts}:
            seen.setdefault((s.task_id, ts), set()).add(s.object_key)
    return sorted({ts for (_, ts), keys in seen.items() if len(keys) > 1})


def test_transactions_do_lie_in_several_objects(whole: ApiWorld, cut: ApiWorld) -> None:
    assert len(shared_ts(cut)) > 10
    assert sum(s.rows for s in segments(cut)) == sum(s.rows for s in segments(whole))
    assert max(s.rows for s in segments(cut)) <= ROWS_PER_OBJECT


@pytest.mark.parametrize("limit", [ONE_PAGE, 300])
def test_the_pages_are_those_of_a_log_that_was_not_cut(whole: ApiWorld, cut: ApiWorld, limit: int) -> None:
    assert cut.events(limit=limit) == whole.events(limit=limit)


def test_another_format_too(whole: ApiWorld, cut: ApiWorld) -> None:
    lines = [b"".join(page.content for page in w.pages(limit=900, format="canal-json")) for w in (whole, cut)]
    assert lines[0].count(b"\n") > 1000
    assert lines[0] == lines[1]


def test_undecoded_rows_are_the_same_once_each(whole: ApiWorld, cut: ApiWorld) -> None:
    by = [("commit_ts", "ascending"), ("table_id", "ascending"), ("start_ts", "ascending"), ("key", "ascending")]
    tables = [
        pa.concat_tables([arrow_of(page) for page in world.pages(limit=700, format="raw-arrow")]).combine_chunks()
        for world in (whole, cut)
    ]
    assert tables[0]["commit_ts"].to_pylist() == tables[1]["commit_ts"].to_pylist()
    assert tables[0].sort_by(by).equals(tables[1].sort_by(by))


def test_a_page_that_is_full_in_the_middle_of_a_transaction_ends_behind_it(whole: ApiWorld, cut: ApiWorld) -> None:
    """A cursor stands between two commit timestamps, also where the rows of one lie in many objects."""
    stops = [position.decode_cursor(next_cursor(page), Scope(tenant=TENANT)) for page in cut.pages(limit=60)]
    assert all(a < b for a, b in pairwise(stops))
    in_order = [e for e in whole.events(limit=ONE_PAGE) if "commit_ts" in e]
    for ts in random.Random(1).sample(shared_ts(cut), 5):
        before = position.encode_cursor(Scope(tenant=TENANT), ts - 1)
        page = cut.ok(cursor=before, limit=1, format="ndjson")
        stop = position.decode_cursor(next_cursor(page), Scope(tenant=TENANT))
        want = [e for e in in_order if ts <= int(e["commit_ts"]) <= stop]
        assert [e for e in events_of(page) if "commit_ts" in e] == want
        behind = cut.ok(cursor=position.encode_cursor(Scope(tenant=TENANT), ts), limit=1, format="ndjson")
        assert all(int(e["commit_ts"]) > ts for e in events_of(behind) if "commit_ts" in e)
