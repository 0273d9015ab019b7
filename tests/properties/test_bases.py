"""Random histories of a few keys, with bases, seeds and lies about them, against a dict; and mutants that are noticed.

The catalog is real, the bucket is a dict, workers run in this thread; the schema is one table that exists from the
start and one that comes later.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from compactor import task
from compactor.core import base_plan
from compactor.core.base_plan import BasePlanRow, BasePlanSettings, BaseTable, outlived, plan_bases
from compactor.task import build_bases
from schemas import bases as schemas_bases
from schemas.bases import Base, choose, is_overtaken
from simulator.dst.mutants import replaced, reworded
from tests.kit.log_builder import TENANT
from tests.kit.made_rows import table_of
from tests.kit.open_folder import OpenFolder
from tests.kit.schema_models import one_table
from tistream import ts as tso
from tistream.catalog.rows.bases import BaseRow
from tistream.catalog.rows.seeds import SeedRow
from tistream.catalog.rows.segments import SegmentRow, segment_in
from tistream.codec.committed_file import build_committed_file
from tistream.codec.newest import STATE
from tistream.codec.seed_file import SEED, SeedBuilder
from tistream.codec.table_key import record_key
from tistream.log.committed_log import SegmentSource
from tistream.log.table_rows import base_rows, rows_at
from tistream.model.change import COMMITTED, Op
from tistream.objectstore.layout import CommittedKey

START, TABLES = 100, (5, 6, 7)  # the table's partitions
SEEDS = 25
State = dict[bytes, tuple[int, bytes]]


class World:
    """A log of three partitions, what compaction has made of it, and what it must be."""

    def __init__(self, seed: int) -> None:
        self.rand, self.store, self.seed = random.Random(seed), OpenFolder(), seed
        self.segments: list[SegmentRow] = []
        self.bases: dict[BaseRow, list[SegmentRow]] = {}
        self.states: dict[int, State] = {START: {}}
        self.durable_ts, self.files, self.jobs = START, 0, 0
        self.history, self.table = one_table(TABLES, start_ts=START)
        self.sown: dict[SeedRow, list[SegmentRow]] = {sown_at(START): []}
        self.not_yet: dict[SeedRow, list[SegmentRow]] = {}

    def flush(self) -> None:
        """Some transactions, a file of one segment or two."""
        rows, state = [], dict(self.states[self.durable_ts])
        for _ in range(self.rand.randint(1, 8)):
            self.durable_ts += self.rand.randint(1, 3)
            for table_id in TABLES:
                if self.rand.random() < 0.5:
                    continue
                key = record_key(table_id, self.rand.randint(0, 5))
                deleted = self.rand.random() < 0.3
                value = None if deleted else b"\x80%d" % self.durable_ts
                rows.append((table_id, key, self.durable_ts, value))
                state.pop(key, None)
                if value is not None:
                    state[key] = (self.durable_ts, value)
            self.states[self.durable_ts] = dict(state)
        self.durable_ts += 1
        self.states[self.durable_ts] = state
        if rows:
            self._write(sorted(rows, key=lambda row: (row[0], row[2], row[1])))

    def _write(self, rows: list[tuple[int, bytes, int, bytes | None]]) -> None:
        self.files += 1
        tables, keys, stamps, values = (list(column) for column in zip(*rows, strict=True))
        ops = [Op.DELETE if value is None else Op.PUT for value in values]
        stamped = {"commit_ts": stamps, "start_ts": [ts - 1 for ts in stamps]}
        table = table_of(COMMITTED, table_id=tables, op=ops, key=keys, value=values, **stamped)
        cut = self.rand.choice([0, len(rows) // 2])
        key = CommittedKey(tenant=TENANT, sorter="s", incarnation=1, seq=self.files)
        parts = [(n, part) for n, part in enumerate((table.slice(0, cut), table.slice(cut))) if part.num_rows]
        data, segments = build_committed_file(key, parts, f"w{self.files}")
        self.store.put(str(key), data)
        for infos in segments.values():
            self.segments += [segment_in(str(key), info) for info in infos]

    def sow(self) -> None:
        """Rows are rewritten, of which the log says nothing, and a seed that knows of it is taken, to come later."""
        self.durable_ts += 1
        state = dict(self.states[self.durable_ts - 1])
        for key in self.rand.sample(sorted(state), len(state) // 2):
            state[key] = (self.durable_ts, b"\x80new")
        self.states[self.durable_ts] = state
        rows = [{"key": k, "start_ts": ts - 1, "commit_ts": ts, "value": v} for k, (ts, v) in sorted(state.items())]
        builder = SeedBuilder(TENANT, self.durable_ts)
        segments = []
        for file in [*builder.add(pa.Table.from_pylist(rows, SEED)), *builder.finish()]:
            self.store.put(str(file.key), file.data)
            segments += [segment_in(str(file.key), info) for info in file.segments]
        self.not_yet[sown_at(self.durable_ts)] = segments

    def publish(self) -> None:
        """The seeds are there."""
        self.sown |= self.not_yet
        self.not_yet = {}

    def build(self) -> None:
        """A round of compaction at a timestamp of its choice, at or below the live edge."""
        edge = self.durable_ts
        ts = tso.earlier(edge, 0) - self.rand.choice([0, 0, 1, 2])
        if ts <= START:
            return
        sources = {base.physical_id: base for base in self.choose(ts)}
        tables = [BaseTable(table_id=i, after_ts=b.ts, rows=tuple(self.rows_of(b))) for i, b in sources.items()]
        settings = BasePlanSettings(tail_ratio=self.rand.choice([0, 1]), tail_bytes_min=0, group_bytes=10)
        for n, group in enumerate(plan_bases([t for t in tables if t.after_ts < ts], self.segments, ts, settings)):
            self.jobs += 1
            row = BasePlanRow(
                tenant=TENANT, job=self.jobs, range_id=n, ts=ts, tables=group.tables, segments=group.segments
            )
            result = build_bases(self.store, row, "t")
            for table in group.tables:
                source = sources[table.table_id].source
                assert source is not None
                seed_ts = source.seed_ts if isinstance(source, BaseRow) else source.ts
                base = BaseRow(tenant=TENANT, table_id=table.table_id, ts=ts, seed_ts=seed_ts, rows=0, bytes=0)
                self.bases[base] = [
                    segment_in(file.object_key, info)
                    for file in result.files
                    for info in file.segments
                    if info.table_lo == table.table_id
                ]

    def retire(self) -> None:
        """Bases go, and what they were of with them."""
        overtaken = {base for base in self.bases if is_overtaken(base, self.history, list(self.sown))}
        for base in outlived(list(self.bases), overtaken, self.rand.randint(START, self.durable_ts)):
            del self.bases[base]

    def choose(self, as_of: int) -> tuple[Base, ...]:
        newest_first = sorted(self.bases, key=lambda base: (-base.ts, base.table_id))
        sown = sorted(self.sown, key=lambda seed: -seed.ts)
        return choose(self.history, self.table, as_of, seeds=sown, bases=newest_first, log_start_ts=START)

    def rows_of(self, base: Base) -> list[SegmentRow]:
        if isinstance(base.source, BaseRow):
            return self.bases[base.source]
        assert base.source is not None
        return [row for row in self.sown[base.source] if row.table_lo == base.physical_id]

    def read(self, as_of: int) -> State:
        """As the API server reads."""
        chosen = self.choose(as_of)

        def base() -> Iterator[pa.Table]:
            for each in chosen:
                for row in self.rows_of(each):
                    yield base_rows(self.store, row, each.ts)

        def changes() -> Iterator[pa.Table]:
            source = SegmentSource(self.store)
            for each in chosen:
                for segment in self.segments:
                    if segment.hi_ts > each.ts and segment.lo_ts <= as_of:
                        rows = source.rows(segment).to_pylist()
                        replayed = [
                            r for r in rows if r["table_id"] == each.physical_id and each.ts < r["commit_ts"] <= as_of
                        ]
                        yield pa.Table.from_pylist(replayed, COMMITTED)

        rows_read = pa.concat_tables([STATE.empty_table(), *rows_at(base(), changes())]).to_pylist()
        assert [row["key"] for row in rows_read] == sorted(row["key"] for row in rows_read)
        return {row["key"]: (row["commit_ts"], row["value"]) for row in rows_read}

    def wrong(self) -> str:
        """What is not as it must be at some timestamp; empty when all is."""
        known_ts = sorted(self.states)
        for as_of in range(START, self.durable_ts + 1):
            want = self.states[max(ts for ts in known_ts if ts <= as_of)]
            if self.read(as_of) != want:
                bases = sorted({b.ts for b in self.bases})
                return f"seed {self.seed}: as of {as_of} of {self.durable_ts}, bases at {bases}"
        return ""


def sown_at(ts: int) -> SeedRow:
    return SeedRow(tenant=TENANT, ts=ts, table_id=0, rows=0, bytes=0, manifest_key="")


def played(seed: int) -> World:
    world = World(seed)
    steps = [world.flush, world.flush, world.flush, world.build, world.build, world.retire, world.sow, world.publish]
    for _ in range(16):
        world.rand.choice(steps)()
    world.publish()
    return world


@pytest.mark.parametrize("seed", range(SEEDS))
def test_at_every_timestamp_the_rows_are_those_of_the_dict(seed: int) -> None:
    world = played(seed)
    assert world.wrong() == ""


def test_histories_have_bases_on_bases() -> None:
    worlds = [played(seed) for seed in range(SEEDS)]
    assert sum(len({base.ts for base in world.bases}) > 1 for world in worlds) > SEEDS // 3


#: name -> the module of a function, its name, and (text as it is, text instead)
MUTANTS: dict[str, tuple[Any, str, *tuple[tuple[str, str], ...]]] = {
    "a base is cut too early": (
        task,
        "_since",
        ("commit_ts <= np.uint64(row.ts)", "commit_ts < np.uint64(row.ts)"),
    ),
    "a base begins too late": (task, "_since", ("commit_ts > after[at]", "commit_ts > after[at] + np.uint64(1)")),
    "deletes are forgotten": (
        task,
        "_since",
        ("if kept.any():", "kept &= table['value'].is_valid().to_numpy()\n        if kept.any():"),
    ),
    "a group reads the segments of its last table only": (
        base_plan,
        "_grouped",
        ("held | tail if members else tail", "tail"),
        ("> group_bytes", "> 1 << 40"),
    ),
    "a base above the read is chosen": (schemas_bases, "_newest", ("base.ts <= as_of and", "base.ts <= as_of + 2 and")),
    "a base counts although a newer seed lies below it": (
        schemas_bases,
        "_newest",
        ("base.seed_ts >= seed.ts", "base.ts >= seed.ts"),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_noticed(name: str) -> None:
    with reworded(*MUTANTS[name]):
        assert any(played(seed).wrong() for seed in range(SEEDS))


def test_a_base_above_the_watermark_is_noticed() -> None:
    """Its timestamp promises what has not been read."""

    def is_noticed(seed: int) -> bool:
        world = played(seed)
        world.flush()
        return world.wrong() != ""

    with replaced(tso, "earlier", lambda ts, ms: ts + 4):
        assert any(is_noticed(seed) for seed in range(SEEDS))
