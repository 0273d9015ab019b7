"""A process that requests splits and merges at random, as a meta server or an operator would, but without their
reasons.

It uses the catalog's functions with state it has read a moment ago; half of the time in the leader's name. Any request
may fail, arrive late, or be its last.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING

from simulator.dst.database import SimCatalog
from simulator.dst.running import TENANT, Running
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.rows.tenants import TaskKind
from tistream.catalog.work import reshape
from tistream.catalog.work.leader import get_leader
from tistream.catalog.work.tasks import list_tasks
from tistream.errors import ErrorKind, TiStreamError

if TYPE_CHECKING:
    from simulator.dst.world import World

TASKS_MAX = 6


def shape(world: World, running: Running) -> None:
    """Makes requests until the run settles."""
    while not running.stopping.wait(world.profile.shape_s * (0.3 + running.rand.random())):
        if world.resting:
            continue
        try:
            _request(world, running.catalog, running.rand)
        except TiStreamError as e:
            if e.kind not in (ErrorKind.RETRY, ErrorKind.NOT_FOUND):
                raise


def _request(world: World, catalog: SimCatalog, rand: random.Random) -> None:
    rows = sorted((row for row in list_tasks(catalog, TENANT) if row.kind is TaskKind.DATA), key=lambda row: row.range)
    leader = get_leader(catalog)
    elected = leader.epoch if leader is not None and rand.random() < 0.5 else None
    if not rows:
        return
    if rand.random() < 0.55 and len(rows) < TASKS_MAX:
        _split(world, catalog, rand.choice(rows), elected, rand)
    elif len(rows) > 1:
        left, right = rand.choice(list(pairwise(rows)))
        if left.error is not None or right.error is not None:
            return
        if rand.random() < 0.05:
            reshape.cancel_merge(catalog, left.task_id, seen_epoch=left.epoch, leader_epoch=elected)
        else:
            epochs = left.epoch, right.epoch
            reshape.request_merge(catalog, left.task_id, right.task_id, seen_epochs=epochs, leader_epoch=elected)


def _split(world: World, catalog: SimCatalog, row: TaskRow, elected: int | None, rand: random.Random) -> None:
    """A key that has rows, in the middle of recent commits."""
    inside = [r.key for r in world.oracle.committed[-60:] if r.key in row.range and r.key != row.range.start]
    if inside:
        reshape.split_task(catalog, row.task_id, rand.choice(inside), seen_epoch=row.epoch, leader_epoch=elected)
