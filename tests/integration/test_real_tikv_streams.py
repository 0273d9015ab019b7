"""Recorded change feeds of a real TiKV cluster through the batcher, the codec, the router and the sorter's cores.

Three stores, splits, merges, leader moves, one of them killed. Files of different stores are delayed at random. Two
truths: MvccGetByKey after the run, and a dict of all messages that knows no watermarks. Nothing expected here comes
from the cores.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from simulator.dst.mutants import reworded
from sorter.core.prewrite_buffer import PrewriteBuffer
from sorter.core.slots import Promises
from tests.kit.core_run import Prepared, TaskRun, Trouble, prepare, run_tasks
from tests.kit.real_tikv import Story, StreamPlayer, Version, Write, lines, stored_versions
from tistream import ts
from tistream.codec.table_key import DDL_JOB_TABLE_ID, META_RANGE, record_range, table_prefix
from tistream.errors import UpstreamContractViolated
from tistream.keyrange import KeyRange
from tistream.model.change import RowKind

DATA = Path(__file__).parents[1] / "data" / "real_tikv"
META, TABLES = 1, 2  # request ids of the recorder in txn_dev
JOBS = record_range(DDL_JOB_TABLE_ID)
DELAYS_S = [8.0, 20.0]
FALL_BEHIND_MS = 3000  # resolved ts come about once a second, and the last ones hang on the last locks


@dataclass(frozen=True, slots=True)
class Recording:
    """A played recording."""

    folder: Path
    player: StreamPlayer = field(repr=False)
    stores: list[list[tuple[int, Prepared]]] = field(repr=False)  #: per store: when it was written, the file

    @property
    def start_ts(self) -> int:
        return self.player.start_ts

    @property
    def last_cut_ts(self) -> int:
        return max(stream[-1][1].file.cut_ts for stream in self.stores)

    def arrivals(self, rand: random.Random, delay_s: float) -> list[Prepared]:
        """All files as they arrive when each is delayed by up to `delay_s`; those of one store stay in order."""
        arriving = []
        for store, stream in enumerate(self.stores):
            last = 0.0
            for at_ms, file in stream:
                last = max(last, at_ms + rand.random() * delay_s * 1000)
                arriving.append((last, store, file.file.key.seq, file))
        return [file for *_, file in sorted(arriving, key=lambda a: a[:3])]


def played(name: str, requests: frozenset[int]) -> Recording:
    player = StreamPlayer(DATA / name, requests)
    player.play()
    streams = [
        list(zip([f.at_ms for f in stream], prepare(f.file for f in stream), strict=True))
        for stream in player.files.values()
    ]
    return Recording(DATA / name, player, streams)


@pytest.fixture(scope="module")
def dev() -> Recording:
    return played("txn_dev", frozenset({META, TABLES}))


@pytest.fixture(scope="module")
def quiet() -> Recording:
    return played("txn_quiet", frozenset({1}))


def dev_tasks(recording: Recording) -> dict[int, KeyRange]:
    """The meta range and the job table for DDL; the rest is cut at a table in the middle of the user's."""
    (ids,) = lines(recording.folder / "table_ids.json.zst")
    middle = sorted(ids.values())[len(ids) // 2]
    edges = [b"t", table_prefix(middle), JOBS.start, JOBS.end, b"u"]
    return dict(enumerate([META_RANGE, *(KeyRange(a, b) for a, b in pairwise(edges))], 1))


def written_by(task: TaskRun) -> dict[Version, tuple[int, int, bytes | None, bytes | None]]:
    rows = task.rows()
    names = ("key", "commit_ts", "start_ts", "op", "value", "old_value")
    columns = [rows[name].to_pylist() for name in names]
    out = {(key, commit_ts): tuple(rest) for key, commit_ts, *rest in zip(*columns, strict=True)}
    assert len(out) == rows.num_rows, "a row was written twice"
    return out


def told(story: Story, task: TaskRun) -> dict[Version, tuple[int, int, bytes | None, bytes | None]]:
    """What the messages say was committed in the task's range up to its watermark, the newest content of each."""
    return {
        (key, commit_ts): (start_ts, *list(story.contents[key, start_ts])[-1])
        for (key, commit_ts), start_ts in story.commits.items()
        if key in task.range and task.start_ts < commit_ts <= task.durable_ts
    }


def hidden_reorg(recording: Recording, stored: dict[Version, Write]) -> set[Version]:
    """Versions written by a lossy MODIFY COLUMN, which TiKV does not send: rows of the job's table, written while the
    job ran, by transactions of which the feed has no row at all."""
    (ids,) = lines(recording.folder / "table_ids.json.zst")
    jobs = [j for j in lines(recording.folder / "ddl.ndjson.zst") if "t_bank MODIFY COLUMN" in j["query"]]
    start_times = {start_ts for _, start_ts in recording.player.story.contents}
    start_times |= set(recording.player.story.commits.values())
    rows = record_range(ids["t_bank"])
    hidden = set()
    for job in jobs:
        details = json.loads(job["job_json"])
        begun, done = details["real_start_ts"], int(job["finished_ts"])
        hidden |= {
            (key, commit_ts)
            for (key, commit_ts), w in stored.items()
            if key in rows and begun < w.start_ts and commit_ts < done and w.start_ts not in start_times
        }
        assert len(hidden) == details["row_count"]
    return hidden


def check(recording: Recording, tasks: Sequence[TaskRun], hidden: set[Version]) -> int:
    """Against both truths; how many versions were compared with the store's."""
    compared = 0
    stored = stored_versions(recording.folder)
    for task in tasks:
        behind = ts.physical_ms(recording.last_cut_ts) - ts.physical_ms(task.durable_ts)
        assert behind < FALL_BEHIND_MS, [str(s) for s in task.core.explain()]
        assert task.resubscribes == []
        written = written_by(task)
        assert written == told(recording.player.story, task)
        due = {v: w for v, w in stored.items() if v[0] in task.range and task.start_ts < v[1] <= task.durable_ts}
        sent = {v: w for v, w in due.items() if w.start_ts != v[1] and v not in hidden}
        keys = {key for key, _ in stored}
        assert {v: Write(*row[:3]) for v, row in written.items() if v[0] in keys} == sent
        compared += len(sent)
    return compared


def follow(recording: Recording, rand: random.Random, delay_s: float, trouble: Trouble) -> tuple[list[TaskRun], int]:
    """Play txn_dev through the cores and check what was written."""
    arrivals, where = recording.arrivals(rand, delay_s), dev_tasks(recording)
    tasks = list(run_tasks(arrivals, where, recording.start_ts, rand, trouble).values())
    return tasks, check(recording, tasks, hidden_reorg(recording, stored_versions(recording.folder)))


@pytest.mark.parametrize(("seed", "delay_s"), list(enumerate(DELAYS_S)))
def test_a_cluster_in_motion_is_followed_exactly(dev: Recording, seed: int, delay_s: float) -> None:
    rand = random.Random(seed)
    tasks, compared = follow(dev, rand, delay_s, Trouble())
    assert compared > 10_000
    assert sum(task.restarts for task in tasks) > 0


@pytest.mark.parametrize("seed", range(3))
def test_hand_made_transactions_in_one_region(quiet: Recording, seed: int) -> None:
    rand = random.Random(seed)
    (ids,) = lines(quiet.folder / "table_ids.json.zst")
    (table,) = ids.values()
    where = {1: KeyRange(table_prefix(table), table_prefix(table + 1))}
    tasks = run_tasks(quiet.arrivals(rand, 8.0), where, quiet.start_ts, rand, Trouble(restart=0.05, snapshot=0.1))
    assert check(quiet, list(tasks.values()), set()) >= 20


def test_the_recording_has_what_the_rules_are_for(dev: Recording) -> None:
    kinds = dev.player.story.kinds
    assert all(kinds[kind] for kind in RowKind if kind is not RowKind.RAW)
    assert dev.player.resolved_fell > 100, "resolved ts fall back"
    marks = [file.file.regions for stream in dev.stores for _, file in stream]
    checkpoints = {checkpoint_ts for regions in marks for checkpoint_ts in regions["checkpoint_ts"].to_pylist()}
    assert len(checkpoints) > 50, "regions move"
    outcomes = kinds[RowKind.COMMIT] + kinds[RowKind.COMMITTED]
    assert outcomes > 1.5 * len(dev.player.story.commits), "most changes come more than once"
    assert any(len(contents) > 2 for contents in dev.player.story.contents.values()), "one key flushed several times"


MUTANTS: list[tuple[object, str, list[tuple[str, str]]]] = [
    (Promises, "place", [("~slots.reaches(self._of_pairs(self.checkpoint), self.slot)", "self.slot < 0")]),
    (
        PrewriteBuffer,
        "_drop_dead",
        [
            ("run.live and may_reach(run, run.least_cut(), watermarks)", "run.live"),
            (
                "_past_cut(run, watermarks)",
                'reached(run, Thresholds(run.ts("start_ts"), 0), watermarks, strictly=True)',
            ),
        ],
    ),
]


@pytest.mark.parametrize(("owner", "name", "changes"), MUTANTS, ids=["no admission", "dead by start_ts"])
def test_a_rule_that_is_broken_is_noticed(
    dev: Recording, owner: object, name: str, changes: list[tuple[str, str]]
) -> None:
    trouble = Trouble(lag=0, again=0, snapshot=0, restart=0, unknown=0)
    with reworded(owner, name, *changes), pytest.raises((UpstreamContractViolated, AssertionError)):
        follow(dev, random.Random(1), 8.0, trouble)
