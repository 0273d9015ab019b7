"""The election of the leader against a dict, with the database's clock in the hand of the test.

Callers die, come back under a new name, stay silent, and go on with an epoch that somebody else has ended. The
database's clock runs, stands still and jumps back.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from sqlalchemy import event

from tests.kit.assignments import assign_task
from tests.kit.catalog_cases import activate
from tistream.catalog.database.engine import Catalog
from tistream.catalog.work.leader import acquire_leadership, get_leader, renew_leadership
from tistream.catalog.work.tasks import get_task, list_tasks
from tistream.catalog.work.workers import register_worker
from tistream.errors import Fenced
from tistream.limits import HEARTBEAT_MS, LEADER_LEASE_MS

_UNIX_EPOCH_JULIAN_DAY = 2440587.5
_MS_PER_DAY = 86_400_000

names = st.sampled_from(["meta-1", "meta-2", "meta-3"])
AROUND_MS = (LEADER_LEASE_MS - 1, LEADER_LEASE_MS, LEADER_LEASE_MS + 1)
steps_ms = st.sampled_from([0, 1, HEARTBEAT_MS, *AROUND_MS, 10 * LEADER_LEASE_MS])


@functools.cache
def migrated() -> Path:
    """A database with a tenant's tasks and a worker, from which each example starts."""
    path = Path(tempfile.mkdtemp()) / "catalog.db"
    catalog = Catalog(f"sqlite:///{path}")
    catalog.migrate()
    activate(catalog)
    register_worker(catalog, "sorter-1", "sorter", "a")
    catalog.close()
    atexit.register(shutil.rmtree, path.parent)
    return path


class OwnerMachine(RuleBasedStateMachine):
    """The model is three values: who was elected last, in which epoch, when it was heard last."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_700_000_000_000
        self.folder = Path(tempfile.mkdtemp())
        shutil.copy(migrated(), self.folder / "catalog.db")
        self.catalog = Catalog(f"sqlite:///{self.folder / 'catalog.db'}")
        event.listen(self.catalog._engine, "connect", self._take_clock)
        (self.task_id, *_) = (task.task_id for task in list_tasks(self.catalog))
        self.model: dict[str, Any] = {"leader": None, "epoch": 0, "heartbeat_ms": self.now_ms}
        self.epochs: dict[str, int] = {}  #: what each caller believes
        self.ruled: set[int] = set()  #: epochs that somebody was elected in
        self.task_epoch = 0

    def _take_clock(self, connection: sqlite3.Connection, _record: object) -> None:
        connection.create_function("julianday", 1, lambda _: self.now_ms / _MS_PER_DAY + _UNIX_EPOCH_JULIAN_DAY)

    @rule(ms=steps_ms)
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @rule(ms=st.sampled_from([1, LEADER_LEASE_MS, 3 * LEADER_LEASE_MS]))
    def the_clock_jumps_back(self, ms: int) -> None:
        self.now_ms -= ms

    @rule(me=names, starts=st.booleans())
    def acquire(self, me: str, starts: bool = False) -> None:
        replaces = starts and self.model["leader"] == me
        free = self.model["epoch"] == 0 or abs(self.now_ms - self.model["heartbeat_ms"]) > LEADER_LEASE_MS
        epoch = acquire_leadership(self.catalog, me, starts=starts)
        if not replaces and not free:
            assert epoch is None
            return
        self.model.update(leader=me, epoch=self.model["epoch"] + 1, heartbeat_ms=self.now_ms)
        assert epoch is not None
        assert epoch == self.model["epoch"]
        assert epoch not in self.ruled, "an epoch was given twice"
        self.ruled.add(epoch)
        self.epochs[me] = epoch

    @rule(me=names, ms=st.sampled_from(AROUND_MS))
    def challenge(self, me: str, ms: int) -> None:
        """Somebody asks when the leader has been silent for this long."""
        self.now_ms = self.model["heartbeat_ms"] + ms
        self.acquire(me)

    @rule(me=names, older=st.sampled_from([0, 0, 1, 2]))
    def renew(self, me: str, older: int) -> None:
        """With the epoch that the caller believes in, or with one of an earlier life."""
        epoch = self.epochs.get(me, 0) - older
        if (me, epoch) == (self.model["leader"], self.model["epoch"]):
            renew_leadership(self.catalog, me, epoch)
            self.model["heartbeat_ms"] = self.now_ms
        else:
            with pytest.raises(Fenced):
                renew_leadership(self.catalog, me, epoch)

    @rule(me=names)
    def assign(self, me: str) -> None:
        """Only the present epoch may assign, whatever the lease says."""
        epoch = self.epochs.get(me, 0)
        wins = epoch == self.model["epoch"] != 0
        granted = assign_task(
            self.catalog, self.task_id, worker_id="sorter-1", seen_epoch=self.task_epoch, leader_epoch=epoch
        )
        assert granted == (self.task_epoch + 1 if wins else None)
        self.task_epoch += wins

    @rule()
    def another_process_reads(self) -> None:
        """What is known must be in the database, not in the connection."""
        self.catalog.close()

    @invariant()
    def the_row_is_the_model(self) -> None:
        row = get_leader(self.catalog)
        seen = (row.name, row.epoch, row.heartbeat_age_ms) if row else (None, 0, None)
        age = abs(self.now_ms - self.model["heartbeat_ms"]) if self.model["epoch"] else None
        assert seen == (self.model["leader"], self.model["epoch"], age)
        assert get_task(self.catalog, self.task_id).epoch == self.task_epoch

    def teardown(self) -> None:
        self.catalog.close()
        shutil.rmtree(self.folder)


TestOwnerMachine = OwnerMachine.TestCase
TestOwnerMachine.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
