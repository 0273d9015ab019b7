"""The random workload against plain accounts of what it said it did, and through pushers into the plain sorter."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import asdict, replace

import pyarrow as pa
import pytest

from pusher.core.batcher import Batcher, UnwrittenFile
from schemas.history import History
from schemas.ids import IdStatus
from schemas.layout import row_layout
from schemas.meta import Definition, read_meta, steps_of
from schemas.model import Table
from schemas.registry.schema_registry import read_jobs
from schemas.snapshot import parse_pushed
from simulator.core.cluster import Cluster, Subscription
from simulator.partitions import HANDLES
from simulator.profiles import DDL, DEFAULT, OLD_TRANSACTIONS, PIPELINED, PROFILES, TINY, WorkloadProfile, new_cluster
from simulator.push.model_source import ModelSource
from simulator.transactions import CommittedRow
from simulator.workload import Workload
from tests.kit.sorter_oracle import Mark, OracleSorter, Row, Served
from tistream.codec.row.decode import decode
from tistream.codec.table_key import DDL_JOB_TABLE_ID, RecordKey, parse_key
from tistream.keyrange import KeyRange
from tistream.model import change
from tistream.model.change import Op, RowKind
from tistream.ts import TS_MAX

S = 10_000
profiles = pytest.mark.parametrize("profile", PROFILES.values(), ids=list(PROFILES))


def new(seed: int, profile: WorkloadProfile) -> tuple[Workload, Cluster]:
    cluster = new_cluster(profile, floor_ts=S)
    return Workload(seed, cluster, profile), cluster


def run(seed: int, profile: WorkloadProfile, steps: int) -> tuple[Workload, Cluster, list[str]]:
    workload, cluster = new(seed, profile)
    said = []
    for number in range(steps):
        said.append(workload.step())
        if number % 20 == 19:
            cluster.tick(workload.tick())
    workload.drain()
    return workload, cluster, said


class Pusher:
    """A pusher without threads or uploads: its files queue up here."""

    def __init__(self, cluster: Cluster, store_id: int, scan_rows: int | None) -> None:
        self.store_id = store_id
        self.source = ModelSource(cluster, store_id, scan_rows=scan_rows)
        self.batcher = Batcher(bytes_target=4000)
        self.incarnation = 1
        self.files: deque[tuple[int, UnwrittenFile]] = deque()

    def poll(self, checkpoint_ts: int) -> None:
        for event in self.source.poll(0, lambda _: checkpoint_ts):
            self.files.extend((self.incarnation, file) for file in self.batcher.handle(event))

    def restart(self) -> None:
        self.source.drop()
        self.source.resume()
        self.batcher = Batcher(bytes_target=4000)
        self.incarnation += 1


def fed(oracle: OracleSorter, store_id: int, incarnation: int, file: UnwrittenFile) -> list[Served]:
    """What the oracle serves because of a file."""
    regions = file.regions.to_pylist()
    subscription_of = [i for i, r in enumerate(regions) for _ in range(r["row_count"])]
    assert len(subscription_of) == file.rows.num_rows
    names = ("kind", "key", "start_ts", "commit_ts", "op", "value", "old_value", "generation")
    rows = [
        Row(subscription=subscription, **{name: row[name] for name in names})
        for subscription, row in zip(subscription_of, file.rows.to_pylist(), strict=True)
    ]
    marks = [
        Mark(
            region_id=r["region_id"],
            start=r["start_key"],
            end=r["end_key"],
            checkpoint_ts=r["checkpoint_ts"],
            resolved_ts=r["resolved_ts"],
            version=r["version"],
            open_ts=r["subscription_open_ts"],
            ready_ts=r["subscription_ready_ts"],
        )
        for r in regions
    ]
    oracle.file(store_id, incarnation, file.cut_ts, rows, marks)
    if all(oracle.covered):
        oracle.marks = [m for m in oracle.marks if m.resolved_ts > min(oracle.w)]  # the others can lift nothing
    return oracle.flush()


def truth(rows: Sequence[CommittedRow], after_ts: int, upto_ts: int) -> list[Served]:
    return [
        Served(commit_ts=r.commit_ts, start_ts=r.start_ts, key=r.key, op=r.op, value=r.value, old_value=r.old_value)
        for r in rows
        if after_ts < r.commit_ts <= upto_ts
    ]


class Pipe:
    """Workload, a pusher per store, and the plain sorter; everything late and in any order that the protocol allows."""

    def __init__(self, seed: int, profile: WorkloadProfile) -> None:
        self.rand = random.Random(~seed)
        self.workload, self.cluster = new(seed, profile)
        scan_rows = self.rand.choice((None, 1, 3))
        self.pushers = [Pusher(self.cluster, s + 1, scan_rows) for s in range(profile.stores)]
        self.oracle = OracleSorter(b"", b"", S)
        self.served: list[Served] = []
        self.kinds: Counter[str] = Counter()
        self.asked: set[tuple[bytes, int]] = set()

    def tick(self) -> int:
        ts = self.workload.tick()
        self.cluster.tick(ts)
        for pusher in self.pushers:
            pusher.source.tick(ts)
        return ts

    def deliver(self) -> bool:
        waiting = [p for p in self.pushers if p.files]
        if not waiting:
            return False
        pusher = self.rand.choice(waiting)
        incarnation, file = pusher.files.popleft()
        self.kinds.update(RowKind(k).name for k in file.rows.column("kind").to_pylist())
        before = self.oracle.durable_ts
        served = fed(self.oracle, pusher.store_id, incarnation, file)
        assert served == truth(self.workload.committed, before, self.oracle.durable_ts)
        self.served += served
        return True

    def act(self) -> None:
        """One thing, weighted so that stores fall behind one another."""
        choice = self.rand.random()
        if choice < 0.6:
            self.workload.step()
        elif choice < 0.75:
            self.rand.choice(self.pushers).poll(self.oracle.durable_ts)
        elif choice < 0.8:
            self.tick()
        elif choice < 0.997:
            self.deliver()
        else:
            self.rand.choice(self.pushers).restart()

    def finish(self) -> None:
        """Everything is decided, pushed and delivered, with new subscriptions where the sorter would ask for them."""
        self.workload.drain()
        target = self.tick()
        for _ in range(500):
            if self.oracle.durable_ts >= target:
                return
            for pusher in self.pushers:
                pusher.poll(self.oracle.durable_ts)
            self.tick()
            while self.deliver():
                pass
            if not self.oracle.undecided <= self.asked:
                self.asked |= self.oracle.undecided
                for pusher in self.pushers:
                    pusher.source.resubscribe(list(pusher.batcher.subscriptions))
        pytest.fail("the watermark does not move")


@profiles
@pytest.mark.parametrize("seed", range(4))
def test_a_subscriber_of_every_store_gets_exactly_the_truth(profile: WorkloadProfile, seed: int) -> None:
    pipe = Pipe(seed, profile)
    for _ in range(900):
        pipe.act()
    pipe.finish()
    assert pipe.served == truth(pipe.workload.committed, S, pipe.oracle.durable_ts)
    assert len(pipe.served) == len(pipe.workload.committed) > 20
    assert set(pipe.kinds) == {"PREWRITE", "COMMIT", "ROLLBACK", "COMMITTED"}


@profiles
@pytest.mark.parametrize("seed", range(10))
def test_the_truth_is_what_the_stores_hold_and_old_values_are_the_versions_before(
    profile: WorkloadProfile, seed: int
) -> None:
    workload, cluster, _ = run(seed, profile, 600)
    rows = sorted([*workload.committed, *workload.unsent])
    before: dict[bytes, bytes | None] = {}
    commit_of: dict[int, int] = {}
    for row in rows:
        first = cluster.versions(row.key)[0]
        old = before.get(row.key, first.value if first.commit_ts <= S else None)
        assert (row.old_value, row.value is None) == (old, row.op is Op.DELETE)
        assert commit_of.setdefault(row.start_ts, row.commit_ts) == row.commit_ts > row.start_ts > S
        before[row.key] = row.value
    stored = {(key, v.commit_ts): v for key in before for v in cluster.versions(key) if v.commit_ts > S}
    assert {(r.key, r.commit_ts): (r.start_ts, r.op, r.value, r.old_value) for r in rows} == {
        at: (v.start_ts, v.op, v.value, v.old_value) for at, v in stored.items()
    }
    assert len({(r.key, r.commit_ts) for r in rows}) == len(rows)
    assert list(workload.committed) == sorted(workload.committed)
    values = [r.value for r in rows if r.value is not None]
    assert len(set(values)) == len(values) or profile.partition_ddl  # a copy has the value of its row
    assert cluster.held() == {}


@profiles
def test_the_same_seed_tells_the_same_story(profile: WorkloadProfile) -> None:
    first, second, other = (run(seed, profile, 400) for seed in (5, 5, 6))
    assert first[2] == second[2] != other[2]
    assert first[0].committed == second[0].committed
    assert first[1].regions() == second[1].regions()


EVERY_KIND = {
    *(f"action {name}" for name, _ in DEFAULT.actions),
    *(f"ddl {kind}" for kind in (1, 2, 3, 4, 5, 6, 11, 14, 19, 23)),
    *("begin", "interactive", "prewrite", "huge", "one_phase", "conflict", "lossy"),
    *("commit.async", "commit.later", "commits", "commit without value", "delete", "delete of nothing"),
    *("rollback", "rolls back", "rollback.again", "rollback.unseen", "rollback.overlapped"),
    *("rewrite.repeated", "rewrite.fake", "rewrite.unheard"),
    *("flush again, numbered", "flush again, not numbered"),
    *("prewrite below the resolved ts", "prewrite over a newer commit"),
}


def test_over_fifty_seeds_everything_happens() -> None:
    counts: Counter[str] = Counter()
    for seed in range(50):
        for profile in (DEFAULT, DDL):
            workload, _, said = run(seed, profile, 300)
            counts.update(workload.counts)
            assert all(said)
    assert {kind for kind in EVERY_KIND if not counts[kind]} == set()


def test_some_commits_share_a_timestamp_and_some_equal_a_start() -> None:
    shared = equal = 0
    for seed in range(30):
        workload, _, _ = run(seed, TINY, 400)
        txns = {(r.commit_ts, r.start_ts) for r in workload.committed}
        shared += len(txns) - len({commit_ts for commit_ts, _ in txns})
        starts = {start_ts for _, start_ts in txns}
        equal += sum(commit_ts in starts for commit_ts, _ in txns)
    assert shared > 0
    assert equal > 0


def test_pipelined_flushes_turn_puts_into_deletes_and_back() -> None:
    seen = set()
    for seed in range(20):
        workload, cluster = new(seed, PIPELINED)
        feeds: list[Subscription] = []
        for _ in range(400):
            workload.step()
            open_regions = {f.region.region_id for f in feeds if not f.ended}
            feeds += [
                cluster.register(r.region_id, r.version, S)
                for r in cluster.regions()
                if r.region_id not in open_regions
            ]
        for feed in feeds:
            ops = defaultdict(list)
            rows = feed.rows
            for kind, op, key, start_ts, scan in zip(
                rows.kind, rows.op, rows.key, rows.start_ts, rows.scan, strict=True
            ):
                if kind == RowKind.PREWRITE and not scan:
                    ops[key, start_ts].append(op)
            seen |= {tuple(flushes[i : i + 3]) for flushes in ops.values() for i in range(len(flushes))}
    assert {(Op.PUT, Op.DELETE), (Op.DELETE, Op.PUT), (Op.PUT, Op.DELETE, Op.PUT)} <= seen


def committed_table(committed: Sequence[CommittedRow]) -> pa.Table:
    """As a sorter would commit them."""
    rows = [{**asdict(row), "table_id": table_id_of(row.key), "expire_ts": 0, "flags": 0} for row in committed]
    return pa.Table.from_pylist(rows, change.COMMITTED)


def table_id_of(key: bytes) -> int:
    return parse_key(key).table_id if key.startswith(b"t") else 0


def history_of(workload: Workload) -> History:
    """What job rows and meta range make of it together; they never disagree."""
    pushed = parse_pushed(workload.schema_snapshot())
    history = History(pushed.snapshot, pushed.job_table)
    rows = committed_table(workload.committed)
    jobs = list(read_jobs(rows, pushed.job_table, 0, TS_MAX))
    handles = [parse_key(r.key).handle for r in workload.committed if r.op is Op.PUT and is_job_row(r)]  # type: ignore[union-attr]
    assert [job.id for job in jobs] == handles
    definitions = [meta for meta in read_meta(rows, 0, TS_MAX) if isinstance(meta, Definition)]
    for step in steps_of(jobs, definitions):
        history.take(step)
    assert history.disagreements == ()
    history.advance(workload.tick())
    return history


def is_job_row(row: CommittedRow) -> bool:
    return table_id_of(row.key) == DDL_JOB_TABLE_ID


@pytest.mark.parametrize("profile", [DDL, OLD_TRANSACTIONS], ids=["ddl", "old_transactions"])
@pytest.mark.parametrize("seed", range(10))
def test_every_row_decodes_with_the_schema_just_before_its_commit(profile: WorkloadProfile, seed: int) -> None:
    workload, _, _ = run(seed, profile, 800)
    history = history_of(workload)
    formats = set()
    by_version: dict[Table, list[CommittedRow]] = defaultdict(list)
    for row in workload.committed:
        if row.key.startswith(b"m"):
            continue
        parsed = parse_key(row.key)
        assert isinstance(parsed, RecordKey)
        if parsed.table_id == DDL_JOB_TABLE_ID:
            formats.add(row.value and row.value[0])
            continue
        assert history.status_at(parsed.table_id, row.commit_ts - 1) is IdStatus.LIVE
        table = history.table_at(parsed.table_id, row.commit_ts - 1)
        assert table is not None
        if row.value is not None:
            by_version[table].append(row)
    assert len(by_version) > 3
    for table, rows in by_version.items():
        decoded = decode(row_layout(table), pa.array([r.key for r in rows]), pa.array([r.value for r in rows]))
        assert decoded.errors == ()
        assert decoded.batch.column("id").to_pylist() == [parse_key(r.key).handle for r in rows]  # type: ignore[union-attr]
        if "note" in decoded.batch.schema.names:
            for note, row in zip(decoded.batch.column("note").to_pylist(), rows, strict=True):
                assert note.encode() in row.value  # type: ignore[operator]
    assert formats >= {128, 8, None}


def test_the_schema_that_the_jobs_make_is_the_one_upstream() -> None:
    for seed in range(20):
        workload, _, _ = run(seed, DDL, 800)
        history, now = history_of(workload), workload._schema.snapshot(0)
        snapshot = history.snapshot(history.resolved_ts)
        expected = parse_pushed(now).snapshot
        assert set(snapshot.databases) == set(expected.databases)
        assert {
            t.id: (t.db, t.name, t.physical_ids, [c.name for c in t.columns]) for t in snapshot.tables.values()
        } == {t.id: (t.db, t.name, t.physical_ids, [c.name for c in t.columns]) for t in expected.tables.values()}


def test_regions_tile_the_key_space_whatever_happens() -> None:
    for seed in range(10):
        _, cluster, _ = run(seed, PROFILES["topology_storm"], 500)
        regions = cluster.regions()
        assert [r.range.start for r in regions] == [b"", *(r.range.end for r in regions[:-1])]
        assert regions[-1].range == KeyRange(regions[-1].range.start, b"")
        assert not {r.store_id for r in regions} & cluster.dead_stores


def test_a_row_is_written_again_after_a_ddl_of_another_table() -> None:
    """A transaction that is pipelined may do so: it finds the columns of a row that nobody has looked for since."""
    workload, _ = new(1, DEFAULT)
    key, table_id = workload._txns.places(rows=HANDLES)[-1]
    columns = workload._txns._columns(key)
    workload._schema.version += 1
    assert key not in dict(workload._txns.places())
    assert workload._txns._columns(key) == columns == workload._schema.tables[table_id][1]["cols"]


def test_keys_are_written_once_a_transaction_where_tables_have_more_rows_than_a_partition_holds() -> None:
    for seed in range(8):
        workload, _, _ = run(seed, replace(DDL, rows=2 * HANDLES), 150)
        keys = [key for key, _ in workload._txns.places()]
        assert len(keys) == len(set(keys))
