"""After a restore: numbers that were given since the export are never given again.

Epochs and incarnations rise by EPOCH_STRIDE for each generation since the export, ids by ID_STRIDE: more than a service
uses between two exports. What
names folders of the bucket also rises above those that are there. Nothing has an owner, so the leader assigns
everything anew.

Epochs and incarnations are six digits in object keys, which sort as text; a restore that would exceed them is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Table, func, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.tables import (
    consumer_members,
    consumer_partitions,
    consumers,
    counters,
    destinations,
    ensure_row,
    jobs,
    lanes,
    leader,
    store_incarnations,
    stores,
    tasks,
    workers,
)
from tistream.catalog.rows.workers import WorkerKind, WorkerState
from tistream.catalog.work.core.lane_scope import KeyScope, parse_scope
from tistream.errors import StateForbids
from tistream.ids import Tenant
from tistream.limits import LANE_LEASE_MS

EPOCH_STRIDE = 1_000
ID_STRIDE = 1_000_000
STORE_STRIDE = 16  #: incarnations of pushers that may have registered and put no file
SIX_DIGITS = 999_999
_NO_NUMBERS = ("job bytes", "job requests saved", "export wanted")  # counters that issue none

_EPOCHS: tuple[tuple[Table, str], ...] = (
    (tasks, "epoch"),
    (stores, "dispatcher_epoch"),
    (lanes, "epoch"),
    (destinations, "epoch"),
    (jobs, "epoch"),
    (consumers, "last_epoch"),
    (consumer_partitions, "epoch"),
    (leader, "epoch"),
    (workers, "incarnation"),
)
_IN_OBJECT_KEYS = (tasks, workers)


def raise_numbers(conn: Connection, *, now_ts: int, generations: int = 1) -> None:
    """Raise every counter and epoch, and take everything from its owner. `now_ts` is above all that was written;
    `generations`: since the export. Those between may have come so far with the same export that they gave out numbers.

    StateForbids when an epoch would need a seventh digit."""
    numbers = counters.update().where(counters.c.name.not_in(_NO_NUMBERS))
    conn.execute(numbers.values(value=counters.c.value + ID_STRIDE * generations))
    for table, name in _EPOCHS:
        column = table.c[name]
        conn.execute(table.update().values({name: column + EPOCH_STRIDE * generations}))
        highest = conn.execute(select(func.coalesce(func.max(column), 0))).scalar_one()
        if table in _IN_OBJECT_KEYS and highest > SIX_DIGITS:
            raise StateForbids(f"{table.name}.{name} would be {highest}: it has six digits in object keys.")
    conn.execute(tasks.update().values(owner=None))
    conn.execute(stores.update().values(dispatcher=None))
    attempted = {"attempted_ts": now_ts, "catch_up_ts": now_ts}  # an owner since the export may have come so far
    conn.execute(lanes.update().values(owner=None, writable_ms=now_ms() + LANE_LEASE_MS, **attempted))
    _lower_key_lanes(conn)
    conn.execute(destinations.update().values(attempted_ts=now_ts))  # and a changefeed that is gone
    conn.execute(consumer_partitions.update().values(member=None))
    conn.execute(consumer_members.delete())
    conn.execute(workers.update().values(state=WorkerState.GONE, report=None))


def _lower_key_lanes(conn: Connection) -> None:
    """Let lanes of keys continue where the lowest of their changefeed does. Since the export it may have been cut anew:
    then its keys were written again from there on, and may show older versions than a lane of the export knows of."""
    of_feed = (lanes.c.cluster_id, lanes.c.tenant_id, lanes.c.changefeed_id)
    lowest: dict[tuple[Any, ...], int] = {}
    for *feed, scope, checkpoint_ts in conn.execute(select(*of_feed, lanes.c.scope, lanes.c.checkpoint_ts)):
        if isinstance(parse_scope(scope), KeyScope):
            lowest[tuple(feed)] = min(checkpoint_ts, lowest.get(tuple(feed), checkpoint_ts))
    for of, checkpoint_ts in lowest.items():
        ahead = [column == value for column, value in zip(of_feed, of, strict=True)]
        lower = lanes.update().where(*ahead, lanes.c.checkpoint_ts > checkpoint_ts)
        conn.execute(lower.values(checkpoint_ts=checkpoint_ts, record="", record_ts=0))


def adopt_writers(conn: Connection, incarnations: Mapping[str, int]) -> None:
    """Processes whose folders are in the bucket: name -> the highest incarnation there."""
    for name, incarnation in sorted(incarnations.items()):
        row: dict[str, Any] = {"kind": WorkerKind.SORTER, "address": "", "release_no": 0, "state": WorkerState.GONE}
        ensure_row(conn, workers, worker_id=name, **row, incarnation=0, heartbeat_ms=0)
        below = workers.update().where(workers.c.worker_id == name, workers.c.incarnation <= incarnation)
        conn.execute(below.values(incarnation=incarnation + 1))


def adopt_stores(conn: Connection, tenant: Tenant, highest: Mapping[int, int], generations: int = 1) -> None:
    """The stores of a tenant: store -> the highest incarnation in the bucket.

    All incarnations up to there are known afterwards, and some more, of pushers that had put no file yet. Every pusher
    that lives learns that it was replaced, and begins again above them. The stream of a store that has ended has no
    pusher, and stays as it is."""
    of = [stores.c.cluster_id == tenant.cluster_id, stores.c.tenant_id == tenant.tenant_id]
    ended = set(conn.execute(select(stores.c.store_id).where(*of, stores.c.end_ts != 0)).scalars())
    known = dict(conn.execute(select(stores.c.store_id, stores.c.incarnation).where(*of)).all())
    for store_id in sorted({*known, *highest} - ended):
        ids = {"cluster_id": tenant.cluster_id, "tenant_id": tenant.tenant_id, "store_id": store_id}
        ensure_row(conn, stores, **ids, incarnation=0, max_cut_ts=0, dispatcher=None, dispatcher_epoch=0)
        newest = max(known.get(store_id, 0), highest.get(store_id, 0)) + STORE_STRIDE * generations
        numbers = range(known.get(store_id, 0) + 1, newest + 1)
        conn.execute(store_incarnations.insert(), [{**ids, "incarnation": n, "reclaimed_seq": 0} for n in numbers])
        conn.execute(stores.update().where(*of, stores.c.store_id == store_id).values(incarnation=newest))
