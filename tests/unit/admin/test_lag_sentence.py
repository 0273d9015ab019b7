"""Why a tenant is late: a sentence for each situation, with how late, since when, why, and what to do next."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apiserver.console.strips import lateness
from tests.kit.stalled_task import STUCK, task_of, worker
from tistream import ts as tso
from tistream.admin.core.lag_sentence import CAUSES, LATE_S, STAGE_STEPS, Late, Quarantined, SlowReader, lag_sentence
from tistream.admin.core.waterfall import STAGES
from tistream.admin.core.watermark_gaps import Cause, Known, WatermarkGap, awaiting, paused, watermark_gaps_of
from tistream.catalog.rows.reports import StoreReport, StuckReport, TaskReport
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.rows.workers import WorkerKind
from tistream.codec.table_key import record_key
from tistream.ids import Tenant
from tistream.limits import LEASE_MS

T = Tenant(1, 2)
TASK = task_of(T)
SINCE = "2026-11-22T01:14:09.812Z"
LATE = Late(tenant=T, state="ACTIVE", lag_s=150.0, since=SINCE)
BEGIN = f"Tenant 1/2 is 2 min 30 s late, since {SINCE}, because "
WORKERS = "tistream workers list"


def gaps(
    task: TaskRow = TASK, *stuck: StuckReport, silent_s: float = 0.5, sorter_ms: int = 0, dispatcher_ms: int = 0
) -> list[WatermarkGap]:
    """The gaps of a task whose watermark has stalled for 40 s."""
    ages = {"s1": (WorkerKind.SORTER, sorter_ms), "d1": (WorkerKind.DISPATCHER, dispatcher_ms)}
    facts = Known(
        workers={name: worker(name, kind, age) for name, (kind, age) in ages.items()},
        tasks={7: TaskReport(task_id=7, epoch=3, standing_s=40.0, stuck=stuck)},
        stores={(T, 3): StoreReport(tenant=T, store_id=3, silent_s=silent_s)},
        dispatchers={(T, 3): "d1"},
        unix_ms=3_600_000,
    )
    return watermark_gaps_of(task, facts, {100: "shop.orders"}.get)


OWNERLESS = gaps(replace(TASK, owner=None))
ONE_LOCK = StuckReport(
    start_key=record_key(100, 5), end_key=record_key(100, 5) + b"\0",
    watermark=tso.compose(1000), start_ts=tso.compose(1000),
)  # fmt: skip


@pytest.mark.parametrize(
    ("late", "cause", "step"),
    [
        pytest.param(
            replace(LATE, gaps=gaps(TASK, STUCK, silent_s=41.0)),
            "the watermark of shop.orders waits for region 12 v7 from store 3; last file 41.0 s ago; "
            "probably the store is down",
            "look at store 3 and its pusher",
            id="pusher stopped",
        ),
        pytest.param(
            replace(LATE, slowest=("upstream_flush",), where="store 3: its newest file 1/88 was cut 2.5 min ago"),
            "nothing newer is in the bucket (store 3: its newest file 1/88 was cut 2.5 min ago)",
            "check that its pusher runs and its uploads succeed: tistream doctor --pd HOST:PORT",
            id="pusher stopped, no region reported",
        ),
        pytest.param(
            replace(LATE, quarantined=Quarantined(store_id=3, rows=1), gaps=gaps(TASK, STUCK)),
            "store 3 is quarantined: it sent 1 row at or below its own resolved timestamp",
            "look at them, then reject the store or connect anew: tistream store quarantine list -c 1 -t 2",
            id="store quarantined",
        ),
        pytest.param(
            replace(LATE, gaps=gaps(sorter_ms=1_800_000)),
            "task 7 over shop.orders belongs to s1, which has sent no heartbeat for 30 min",
            "another sorter takes it over within seconds if one is up and a meta server is elected",
            id="sorter down",
        ),
        pytest.param(
            replace(LATE, gaps=gaps(TASK, STUCK, dispatcher_ms=LEASE_MS + 1)),
            "the watermark of shop.orders waits for region 12 v7 from store 3; last file 500 ms ago; "
            "its dispatcher d1 is down",
            f"check that a dispatcher and a meta server are up: {WORKERS}",
            id="dispatcher down, reported by the sorter",
        ),
        pytest.param(
            replace(LATE, lost_store=3, lost_dispatcher="d1"),
            "no file of store 3 is read: dispatcher d1 is down",
            f"check that a dispatcher and a meta server are up: {WORKERS}",
            id="dispatcher down",
        ),
        pytest.param(
            replace(LATE, lost_store=3),
            "no file of store 3 is read: it has no dispatcher",
            f"check that a dispatcher and a meta server are up: {WORKERS}",
            id="no dispatcher",
        ),
        pytest.param(
            replace(LATE, gaps=OWNERLESS),
            "task 7 over shop.orders has no sorter",
            f"check that a sorter and a meta server are up: {WORKERS}",
            id="assignment pending",
        ),
        pytest.param(
            replace(LATE, gaps=OWNERLESS, has_leader=False),
            "task 7 over shop.orders has no sorter, and no meta server leads",
            f"start a meta server: {WORKERS} shows them",
            id="meta server down",
        ),
        pytest.param(
            replace(LATE, gaps=gaps(replace(TASK, error="file 9\nis damaged."))),
            "task 7 over shop.orders has stopped: file 9 is damaged",
            "fix the cause, then retry it: tistream tasks retry 7",
            id="task stopped",
        ),
        pytest.param(
            replace(LATE, slowest=("flush",), where="task 7 (data [74, 75)), sorter s1"),
            "its rows are ordered and not in the committed log yet (task 7 (data [74, 75)), sorter s1)",
            "check how fast bucket and catalog answer: tistream doctor",
            id="object store slow",
        ),
        pytest.param(
            replace(LATE, gaps=gaps(TASK, ONE_LOCK)),
            f"the watermark of shop.orders waits for transaction {tso.compose(1000)}, which began 59 min 59 s ago and "
            f"has a lock on shop.orders, row 5 (key {record_key(100, 5).hex()})",
            "check whether its client is alive; the pusher resolves expired locks, and names those that it leaves",
            id="long transaction",
        ),
        pytest.param(
            replace(LATE, gaps=gaps(TASK, STUCK)),
            "the watermark of shop.orders waits for region 12 v7 from store 3; last file 500 ms ago; "
            "the store writes, but not for this region",
            "look at the region's leader and at long transactions: tistream doctor --pd HOST:PORT",
            id="one region stalled",
        ),
        pytest.param(
            replace(LATE, state="PAUSED", gaps=[paused(T, "a move")]),
            "tenant 1/2 is paused: a move",
            "tistream tenant resume --cluster 1 --tenant 2",
            id="tenant paused",
        ),
        pytest.param(
            replace(LATE, replay="replay-1", lost_store=3, slowest=("match",)),
            "replay-1 replays its backlog",
            "wait until the replay ends: tistream workers show replay-1",
            id="replay in progress",
        ),
    ],
)
def test_a_late_tenant(late: Late, cause: str, step: str) -> None:
    assert lag_sentence(late) == f"{BEGIN}{cause}; next: {step}."


NORMAL = "behind, which is normal; nothing is late."


@pytest.mark.parametrize(
    ("late", "words"),
    [
        (replace(LATE, lag_s=2.31), f"is 2.3 s {NORMAL}"),
        (replace(LATE, lag_s=9.4, slowest=("flush",)), f"is 9.4 s {NORMAL}"),
        (replace(LATE, lag_s=0, ended=True), f"has ended, complete up to {SINCE}; nothing is late."),
        (replace(LATE, lag_s=None, state="DELETING"), "is DELETING and serves nothing yet; nothing is late."),
    ],
)
def test_a_tenant_that_is_not_late(late: Late, words: str) -> None:
    assert lag_sentence(late) == f"Tenant 1/2 {words}"


def test_a_tenant_that_has_not_started() -> None:
    late = replace(LATE, state="AWAITING_SNAPSHOT", lag_s=None, since=None, gaps=[awaiting(T)])
    assert lag_sentence(late) == (
        "Tenant 1/2 serves nothing yet, because tenant 1/2 waits for its first schema snapshot; until then its files "
        "wait too; next: start its pusher: tistream push --cluster 1 --tenant 2."
    )


def test_a_cause_counts_below_the_normal_lag_and_the_gravest_is_named() -> None:
    stopped, stalled = gaps(replace(TASK, error="damaged")), gaps(TASK, STUCK)
    text = lag_sentence(replace(LATE, lag_s=1.2, gaps=[*stalled, *OWNERLESS, *stopped]))
    assert text.startswith(f"Tenant 1/2 is 1.2 s late, since {SINCE}, because task 7 over shop.orders has stopped: ")


@given(
    st.lists(
        st.tuples(st.integers(1, 50), st.sampled_from(["stopped", "ownerless", "stalled"])), min_size=1, max_size=5
    )
)
def test_the_gap_of_the_task_that_is_furthest_behind_is_named(tasks: list[tuple[int, str]]) -> None:
    """In whatever order they are listed."""
    causes: list[WatermarkGap] = []
    for number, (durable_ts, kind) in enumerate(tasks):
        task = replace(TASK, task_id=7 if kind == "stalled" else 100 + number, durable_ts=durable_ts)
        causes_of = {"stopped": replace(task, error=f"damage {number}"), "ownerless": replace(task, owner=None)}
        causes += gaps(causes_of.get(kind, task), STUCK)
    said = lag_sentence(replace(LATE, gaps=causes))
    lowest = [gap for gap in causes if gap.task is not None and gap.task.durable_ts == min(tasks)[0]]
    assert any(gap.sentence.rstrip(" .") in said for gap in lowest), said


def test_a_ddl_task_is_not_to_be_divided() -> None:
    late = replace(LATE, slowest=("match",), where="task 1")
    assert "split the task" in lag_sentence(late)
    assert not any(word in lag_sentence(replace(late, is_ddl=True)) for word in ("split", "add a sorter"))


def test_what_the_console_colours_as_late_is_what_the_sentence_calls_late() -> None:
    for lag_s in (0.1, 8.7, LATE_S - 0.1, LATE_S, 31.0):
        assert (lateness(lag_s) > 0) == ("normal" not in lag_sentence(replace(LATE, lag_s=lag_s, slowest=("flush",))))


def test_stages_that_cannot_be_told_apart_are_both_named() -> None:
    text = lag_sentence(replace(LATE, slowest=("match", "flush")))
    assert (
        "because its sorter does not keep up or its rows are ordered and not in the committed log yet; next: " in text
    )


def test_every_cause_and_stage_has_its_place() -> None:
    assert set(CAUSES) == set(Cause)
    assert tuple(STAGE_STEPS) == tuple(STAGES)


def test_no_repr_gets_into_a_sentence() -> None:
    texts = [lag_sentence(replace(LATE, slowest=(stage,))) for stage in STAGES]
    assert not [text for text in texts if re.search(r"None|\bCause\.|[<>{}]|\d{4,} ?m?s\b", text)]


SLOW = SlowReader(name="dwh", lag_s=150, since=SINCE, members=0, idle_s=3600)


def test_a_slow_consumer_is_named_when_nothing_else_is_late() -> None:
    well = replace(LATE, lag_s=2, reader=SLOW)
    begin = f"Consumer dwh of tenant 1/2 is 2 min 30 s late, since {SINCE}, because "
    assert lag_sentence(well) == (
        f"{begin}it has no member, and its last request was 1 h ago; next: start its members again, or remove it if it "
        "is not needed: tistream consumer list -c 1 -t 2."
    )
    read = lag_sentence(replace(well, reader=replace(SLOW, members=2)))
    assert read.startswith(f"{begin}its 2 members do not acknowledge as fast as changes come; next: ")
    ended = replace(well, ended=True)
    assert lag_sentence(ended).startswith(begin), "its rows still wait"
    late = replace(well, lag_s=150, slowest=("match",))
    assert lag_sentence(late).startswith(BEGIN), "the consumer waits for what comes before it"
    for near in (replace(SLOW, lag_s=9.999), None):
        assert "nothing is late" in lag_sentence(replace(well, reader=near))


def test_a_slow_changefeed_is_named_with_what_holds_it_up() -> None:
    slow = replace(SLOW, name="dr", destination="tikv://pd:2379")
    begin = f"Changefeed dr of tenant 1/2 is 2 min 30 s late, since {SINCE}, because "
    for state, cause in (
        ("normal", "tikv://pd:2379 does not take changes as fast as they come"),
        ("error", "a write is tried again or a change is refused"),
        ("failed", "it has failed"),
    ):
        assert lag_sentence(replace(LATE, lag_s=2, reader=replace(slow, state=state))) == (
            f"{begin}{cause}; next: look at its lanes and their errors: tistream changefeed query dr -c 1 -t 2."
        )
