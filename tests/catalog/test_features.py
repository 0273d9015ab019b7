"""A feature that older releases cannot read is used only when no older process lives, and none comes afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from metaserver.loop import MetaOptions, MetaWorker
from tests.kit.catalog_cases import elected, shift
from tistream.catalog.database import tables
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import EventKind, list_events
from tistream.catalog.work.features import FEATURES, LIVING_MS, Feature, switch_on, switched_on
from tistream.catalog.work.leader import acquire_leadership
from tistream.catalog.work.workers import heartbeat, register_worker, retire_worker
from tistream.clock import SystemClock
from tistream.errors import Fenced
from tistream.objectstore.memory import MemoryStore
from tistream.release import THIS_RELEASE, Release, ReleaseTooOld

NEXT, LATER = Release(9, 0, 0), Release(9, 1, 0)
PARCELS = Feature(name="parcels", since=NEXT, changes="files are written as parcels")
CRATES = Feature(name="crates", since=LATER, changes="parcels are put into crates")


@contextmanager
def running(catalog: Catalog, release: Release) -> Iterator[None]:
    """What is done in the block is done by a process of another release."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "release", release)
        yield


def of_release(catalog: Catalog, name: str, release: Release) -> int:
    with running(catalog, release):
        return register_worker(catalog, name, "sorter", "")


def switch(catalog: Catalog, *features: Feature) -> frozenset[str]:
    """By a leader of the newest release."""
    with running(catalog, LATER):
        return switch_on(catalog, features, leader_epoch=elected(catalog))


def slept(catalog: Catalog, name: str, ms: int) -> None:
    shift(catalog, tables.workers.c.heartbeat_ms, -ms, tables.workers.c.worker_id == name)


def test_the_first_release_has_none() -> None:
    assert FEATURES == () or min(feature.since for feature in FEATURES) > Release(0, 1, 0)


class TestFeatures:
    def test_an_older_process_holds_it_back_until_it_is_gone(self, catalog: Catalog) -> None:
        old, new = of_release(catalog, "s1", THIS_RELEASE), of_release(catalog, "s2", NEXT)
        assert switch(catalog, PARCELS) == switched_on(catalog) == frozenset()
        heartbeat(catalog, "s1", old)
        retire_worker(catalog, "s1", old)
        assert switch(catalog, PARCELS) == switched_on(catalog) == {"parcels"}
        with running(catalog, NEXT):
            heartbeat(catalog, "s2", new)

    def test_an_older_process_that_is_only_silent_holds_it_back(self, catalog: Catalog) -> None:
        old = of_release(catalog, "s1", THIS_RELEASE)
        slept(catalog, "s1", LIVING_MS - 5_000)
        assert switch(catalog, PARCELS) == frozenset()
        slept(catalog, "s1", LIVING_MS)
        assert switch(catalog, PARCELS) == {"parcels"}
        with pytest.raises(ReleaseTooOld):
            heartbeat(catalog, "s1", old)

    def test_an_older_process_is_refused_afterwards(self, catalog: Catalog) -> None:
        switch(catalog, PARCELS)
        with pytest.raises(ReleaseTooOld, match=f"This is TiStream {THIS_RELEASE}.*Start {NEXT} or later"):
            register_worker(catalog, "s1", "sorter", "")
        with pytest.raises(ReleaseTooOld):
            catalog.migrate()
        assert acquire_leadership(catalog, "meta-1", starts=True) is None
        assert of_release(catalog, "s1", NEXT) == 1

    def test_each_waits_for_its_own_release(self, catalog: Catalog) -> None:
        of_release(catalog, "s1", NEXT)
        assert switch(catalog, PARCELS, CRATES) == {"parcels"}
        of_release(catalog, "s1", LATER)
        assert switch(catalog, PARCELS, CRATES) == {"parcels", "crates"}
        with pytest.raises(ReleaseTooOld, match=f"Start {LATER} or later"):
            of_release(catalog, "s2", NEXT)
        events = [event for event in list_events(catalog, limit=10) if event.kind == EventKind.FEATURE_ON]
        assert [(event.subject, event.detail["since"]) for event in events] == [
            ("crates", str(LATER)),
            ("parcels", str(NEXT)),
        ]

    def test_a_leader_that_was_replaced_switches_nothing_on(self, catalog: Catalog) -> None:
        old = elected(catalog)
        assert acquire_leadership(catalog, "meta-1", starts=True) == old + 1
        with running(catalog, LATER), pytest.raises(Fenced):
            switch_on(catalog, [PARCELS], leader_epoch=old)
        assert switched_on(catalog) == frozenset()

    def test_the_leading_meta_server_does_it(self, catalog: Catalog) -> None:
        old = of_release(catalog, "s1", THIS_RELEASE)
        with running(catalog, LATER):
            meta = MetaWorker(catalog, MemoryStore(), SystemClock(), "meta-1", MetaOptions(features=[PARCELS]))
            meta.assign()
            assert switched_on(catalog) == frozenset()
            retire_worker(catalog, "s1", old)
            meta = MetaWorker(catalog, MemoryStore(), SystemClock(), "meta-1", MetaOptions(features=[PARCELS]))
            meta.assign()
            assert meta.problems() == []
        assert switched_on(catalog) == {"parcels"}
