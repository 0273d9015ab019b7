"""A tenant whose store contradicts its promise with a row that is a commit, and the tenant connected in its place.

    before   its store sends a row below what it has promised, and is quarantined: it is served up to `good_ts`
    after    an operator registers it: a schema snapshot, a seed with all rows of that moment, and a store that
             subscribes from there. Once it is read, the tenant before is deleted

The operator asks for the replacement again and again, from the registration on, until it is accepted. The tenant before
has a reader that follows. It gets each commit up to its cursor, nothing above `good_ts` once the store is held, and at
last the error of a replaced tenant, which names the one after and where to begin: its seed is there by then. The reader
of the tenant after takes the rows of the seed and of the log above it, then follows: it has the upstream's rows at each
of its cursors, and gets each commit above.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import zstandard

from pusher.seed_push import push_seed
from reading.asof.source import TableSource
from reading.pages.pull import pull
from reading.pages.request import PullRequest
from reading.rows.scope import Scope
from reading.served import position
from reading.served.services import Services
from schemas.bases import Base
from simulator.ddl import MYSQL_ID
from simulator.dst.aspect import Aspect
from simulator.dst.database import SimCatalog
from simulator.dst.other_tenants import Row, file_of
from simulator.dst.running import Running
from simulator.dst.store import put_at_last
from tistream.catalog.database.service_time import service_time
from tistream.catalog.log.seeds import list_seeds
from tistream.catalog.rows.seeds import SeedRow
from tistream.catalog.rows.tenants import TaskKind
from tistream.catalog.tenancy.tenants import GIVEN_UP, look_up_tenant, register_tenant
from tistream.catalog.work.deletion import replace_tenant
from tistream.catalog.work.quarantines import open_quarantines
from tistream.catalog.work.stores import issue_incarnation
from tistream.catalog.work.tasks import list_tasks, served_watermark
from tistream.codec.seed_file import SEED
from tistream.errors import BeyondQuarantine, ErrorKind, StateForbids, TenantDeleted, TiStreamError
from tistream.ids import Tenant
from tistream.log.published_seeds import publish
from tistream.objectstore.layout import BatchKey, SchemaSnapKey

if TYPE_CHECKING:
    from simulator.dst.world import World

BEFORE, AFTER = Tenant(1, 4), Tenant(1, 5)
STORE = 8
TICK_S = 0.5
PROCESSES = ("anew-store-before", "anew-store-after", "anew-reader-before", "anew-reader-after", "anew-operator")
_COMMIT_S = 0.2
_KEYS = 7  # of each table, written again and again
_COLUMNS = ("commit_ts", "start_ts", "key", "value")
_WAITED_FOR = (ErrorKind.RETRY, ErrorKind.CORRUPT, ErrorKind.NOT_FOUND)


class Anew(Aspect):
    """The two tenants of a run, and their upstream."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rand = random.Random(f"{world.seed}/anew")
        self._committed: list[Row] = []
        self._late: Row | None = None  # what the store of the tenant before sends below its promise
        self._is_sent = False
        self._start_ts = 0  # of the tenant after
        self._is_registered = False  # the tenant after
        self._is_deleted = False  # the tenant before
        self._has_ended = False  # its reader
        self._reached = 0  # by the reader of the tenant after

    # -- hooks

    def roles(self) -> Mapping[str, Callable[[Running], None]]:
        return {"anew": self._run}

    def begin(self, catalog: SimCatalog) -> None:
        """The tenant before is registered."""
        self._register(catalog, BEFORE, self._world.start_ts)

    def start(self) -> None:
        for name in PROCESSES:
            self._world.start("anew", name)
        self._commit_on()

    def settle(self) -> None:
        """Readers move to the tenant after, and get everything."""
        self._world.until(
            lambda: self._has_ended and self._reached >= self._committed[-1][0], "anew: readers have not moved"
        )

    # -- the upstream

    def _commit_on(self) -> None:
        """A transaction of one row, again and again; at rest until the tenant before has ended."""
        scheduler = self._world.scheduler
        if not (self._world.resting and self._has_ended):
            self._commit()
            scheduler.call_at(scheduler.now + _COMMIT_S, self._commit_on)

    def _commit(self) -> None:
        start_ts = self._world.tso()
        table_id = self._rand.choice(self._table_ids())
        handle = (1 << 63) + self._rand.randrange(_KEYS)
        key = b"t" + ((1 << 63) + table_id).to_bytes(8, "big") + b"_r" + handle.to_bytes(8, "big")
        self._committed.append((self._world.tso(), start_ts, key, b"%d" % len(self._committed)))

    def _table_ids(self) -> list[int]:
        tables = self._world.workload.schema_snapshot()["tables"]
        mine = [table["info"] for table in tables if table["db_id"] != MYSQL_ID]
        parts = [(info.get("partition") or {}).get("definitions") or [info] for info in mine]
        return [part["id"] for of_table in parts for part in of_table]

    def _rows_at(self, ts: int) -> dict[bytes, Row]:
        """The upstream's rows at a timestamp, by key."""
        return {row[2]: row for row in sorted(self._committed) if row[0] <= ts}

    def _register(self, catalog: SimCatalog, tenant: Tenant, ts: int) -> None:
        data = zstandard.compress(json.dumps({**self._world.workload.schema_snapshot(), "ts": ts}).encode())
        bucket = self._world.bucket
        bucket.objects[str(SchemaSnapKey(tenant=tenant, ts=ts))] = (data, bucket.unix_ms())
        register_tenant(catalog, tenant)

    # -- its processes

    def _run(self, running: Running) -> None:
        """The process of this name."""
        match running.name:
            case "anew-store-before":
                self._push(BEFORE, running)
            case "anew-store-after":
                self._push(AFTER, running)
            case "anew-reader-before":
                self._follow(running)
            case "anew-reader-after":
                self._rebuild(running)
            case _:
                self._decide(running)

    def _push(self, tenant: Tenant, running: Running) -> None:
        """One subscription of the whole tenant, from its frontier on. The store of the tenant before keeps a row back
        once, and sends it some files later."""
        catalog, stopping = running.catalog, running.stopping
        checkpoint = self._frontier(tenant, catalog, stopping)
        if checkpoint is None:
            return
        incarnation, _ = issue_incarnation(catalog, tenant, STORE)
        open_ts, at, seq, keeps_for = self._world.tso(), 0, 0, self._rand.randint(2, 4)
        while not stopping.wait(TICK_S):
            cut_ts = self._world.tso()
            rows, at = [row for row in self._committed[at:] if row[0] > checkpoint], len(self._committed)
            seq += 1
            if tenant == BEFORE and seq > 4 and rows and self._late is None:
                self._late = rows.pop(self._rand.randrange(len(rows)))
            elif tenant == BEFORE and self._late is not None and not self._is_sent:
                keeps_for -= 1
                if not keeps_for:
                    rows, self._is_sent = [*rows, self._late], True
                    self._world.tell(f"a store of tenant {tenant} sends {self._late[0]} late")
            key = BatchKey(tenant=tenant, store_id=STORE, incarnation=incarnation, seq=seq)
            data = file_of(key, rows, checkpoint, open_ts, cut_ts)
            while not put_at_last(running.store, str(key), data):
                if stopping.wait(TICK_S):
                    return

    def _frontier(self, tenant: Tenant, catalog: SimCatalog, stopping: Any) -> int | None:
        """The lowest `durable_ts` of the tenant, once it has begun."""
        while not stopping.wait(TICK_S):
            try:
                tasks = list_tasks(catalog, tenant)
            except TiStreamError as e:
                self._wait_for(e)
                continue
            if any(task.kind is TaskKind.DATA for task in tasks):
                return min(task.durable_ts for task in tasks)
        return None

    def _follow(self, running: Running) -> None:
        """The reader of the tenant before, from its beginning."""
        services = Services.create(running.catalog, running.store, running.clock)
        scope = Scope(tenant=BEFORE)
        cursor: str | None = None
        while not running.stopping.wait(0.3):
            good_ts, was_deleted = self._good_ts(), self._is_deleted
            try:
                row = look_up_tenant(running.catalog, BEFORE)
                if not row.start_ts:
                    continue
                after = row.start_ts if cursor is None else position.decode_cursor(cursor, scope)
                cursor, upto, rows = _page(services, scope, cursor, "earliest")
            except BeyondQuarantine:
                continue  # it waits until an operator has decided
            except TenantDeleted as e:
                self._has_ended = True
                named = (str(AFTER), str(self._start_ts))
                if (e.facts.get("successor"), e.facts.get("successor_start_ts")) != named:
                    self._world.oracle.violated(f"anew: a reader of {BEFORE} learns {e.facts}, not {named}")
                if not self._world.database.query("SELECT 1 FROM seeds WHERE tenant_id = ?", AFTER.tenant_id):
                    self._world.oracle.violated(f"anew: {BEFORE} is replaced, and {AFTER} has no rows to begin with")
                continue
            except TiStreamError as e:
                self._wait_for(e)
                continue
            if was_deleted:
                self._world.oracle.violated(f"anew: tenant {BEFORE} is deleted, and a reader got {upto}")
            if good_ts is not None and upto > good_ts and self._good_ts() is not None:  # else deleted meanwhile
                self._world.oracle.violated(f"anew: a reader got {upto}, only {good_ts} is known to be good")
            self._compare(
                BEFORE, rows, [row for row in self._committed if after < row[0] <= upto and row != self._late]
            )

    def _good_ts(self) -> int | None:
        ((good_ts,),) = self._world.database.query(
            "SELECT min(good_ts) FROM quarantines WHERE tenant_id = ?", BEFORE.tenant_id
        )
        return None if good_ts is None else int(good_ts)

    def _rebuild(self, running: Running) -> None:
        """The reader of the tenant after: the rows at a timestamp, then the changes; again from the rows at times."""
        services = Services.create(running.catalog, running.store, running.clock)
        scope = Scope(tenant=AFTER)
        cursor: str | None = None
        while not running.stopping.wait(0.4):
            try:
                seeds = list_seeds(running.catalog, AFTER)
                if not seeds:
                    continue
                if cursor is None or self._rand.random() < 0.1:
                    upto = served_watermark(running.catalog, AFTER)
                    if upto < seeds[0].ts:
                        continue
                    rebuilt = self._rows_of(services, seeds[0], upto)
                    cursor = position.encode_cursor(scope, upto)
                    self._compare_rows(rebuilt, upto)
                    continue
                after = position.decode_cursor(cursor, scope)
                cursor, upto, rows = _page(services, scope, cursor, None)
            except TiStreamError as e:
                self._wait_for(e)
                continue
            self._compare(AFTER, rows, [row for row in self._committed if after < row[0] <= upto])
            self._reached = max(self._reached, upto)

    def _rows_of(self, services: Services, seed: SeedRow, upto: int) -> dict[bytes, tuple[int, bytes]]:
        source = TableSource(catalog=services.catalog, store=services.store, reader=services.reader)
        bases = [Base(physical_id=table_id, ts=seed.ts, source=seed) for table_id in self._table_ids()]
        tables = [table.to_pylist() for table in source.rows(AFTER, bases, upto)]
        return {row["key"]: (row["commit_ts"], row["value"]) for rows in tables for row in rows}

    def _decide(self, running: Running) -> None:
        """The operator: connects the tenant after when the store is quarantined, and deletes the one before."""
        catalog = running.catalog
        while not running.stopping.wait(0.5 + self._rand.random()):
            try:
                if not self._start_ts:
                    if open_quarantines(catalog, BEFORE):
                        self._start_ts = self._world.tso()
                        self._world.tell(f"an operator connects tenant {AFTER} in the place of {BEFORE}")
                    continue
                if not self._is_registered:
                    self._register(catalog, AFTER, self._start_ts)
                    self._is_registered = True
                state = look_up_tenant(catalog, BEFORE).state
                if state in GIVEN_UP:
                    self._is_deleted = True
                elif replace_tenant(catalog, BEFORE, AFTER, seen=state):
                    self._world.tell(f"an operator has replaced tenant {BEFORE} by {AFTER}")
                    continue
            except StateForbids:
                self._push_seed(running)  # it was too early for the replacement
            except TiStreamError as e:
                self._wait_for(e)

    def _push_seed(self, running: Running) -> None:
        try:
            if self._rand.random() < 0.5 and not list_seeds(running.catalog, AFTER):
                push_seed(_Control(running), running.store, self._start_ts, [self._seed()])
        except TiStreamError as e:
            self._wait_for(e)

    def _seed(self) -> pa.Table:
        """The upstream's rows at the start of the tenant after, in key order."""
        rows = self._rows_at(self._start_ts)
        values = zip(*(rows[key] for key in sorted(rows)), strict=True)
        columns = {name: list(of_all) for name, of_all in zip(_COLUMNS, values, strict=True)}
        return pa.Table.from_pydict(columns, schema=SEED)

    def _wait_for(self, error: TiStreamError) -> None:
        """Go on if a later try may succeed."""
        if error.kind not in _WAITED_FOR:
            raise error

    # -- rules

    def _compare(self, tenant: Tenant, got: list[Row], want: list[Row]) -> None:
        if got != sorted(want):
            missing, more = sorted(set(want) - set(got)), sorted(set(got) - set(want))
            self._world.oracle.violated(f"anew: pull of {tenant}: missing {missing}, more {more}, {len(got)} rows")

    def _compare_rows(self, got: Mapping[bytes, tuple[int, bytes]], ts: int) -> None:
        want = {key: (row[0], row[3]) for key, row in self._rows_at(ts).items()}
        if got != want:
            wrong = sorted(key for key in want.keys() | got.keys() if want.get(key) != got.get(key))
            self._world.oracle.violated(
                f"anew: rows of {AFTER} at {ts}: {[(k, want.get(k), got.get(k)) for k in wrong[:3]]}"
            )


@dataclass(frozen=True, slots=True)
class _Control:
    """The control plane's answers about seeds of the tenant after, as its routes make them."""

    running: Running

    @property
    def tenant(self) -> Tenant:
        return AFTER

    def has_seed(self, ts: int, table_id: int) -> bool:
        return any((seed.ts, seed.table_id) == (ts, table_id) for seed in list_seeds(self.running.catalog, AFTER))

    def add_seed(self, ts: int, table_id: int) -> None:
        running = self.running
        now = service_time(running.catalog, running.clock)
        publish(running.catalog, running.store, AFTER, ts, table_id, now)


def _page(services: Services, scope: Scope, cursor: str | None, start: str | None) -> tuple[str, int, list[Row]]:
    """(the next cursor, up to where, the rows)."""
    start_ts = None if cursor else start
    answer = pull(
        services, PullRequest(scope=scope, start_ts=start_ts, cursor=cursor, format="arrow", options={}, limit=50)
    )
    table = pa.ipc.open_stream(answer.content).read_all()
    rows = list(zip(*(table.column(name).to_pylist() for name in _COLUMNS), strict=True))
    return answer.next_cursor, position.decode_cursor(answer.next_cursor, scope), rows
