"""The model of TiDB's partition DDL against what a living cluster wrote step by step, and what must hold in it."""

from __future__ import annotations

from collections import Counter

import pytest

from simulator.partition_jobs import DONE, ROLLED_BACK
from simulator.partitions import Action, SchemaState, readable
from simulator.profiles import PARTITIONS, new_cluster
from simulator.workload import Workload
from tistream.codec.table_key import parse_key, record_range

S = 10_000
_REORGANISATION = [1, 2, 3, 4, 5, 0]
#: by action: the schema states of the job's row, as a TiDB of 2026 wrote them, and the first that reads other ids
STATES = {
    Action.TRUNCATE_TABLE: ([5], 5),
    Action.ADD_PARTITION: ([6, 5], 5),
    Action.DROP_PARTITION: ([2, 1, 4, 0], 2),
    Action.TRUNCATE_PARTITION: ([2, 1, 4, 0], 1),
    Action.EXCHANGE_PARTITION: ([2, 0], 0),
    Action.REORGANIZE_PARTITION: (_REORGANISATION, 4),
    Action.PARTITION_BY: (_REORGANISATION, 4),
    Action.REMOVE_PARTITIONING: (_REORGANISATION, 4),
}


def run(seed: int, steps: int = 1500) -> Workload:
    cluster = new_cluster(PARTITIONS, floor_ts=S)
    workload = Workload(seed, cluster, PARTITIONS)
    for number in range(steps):
        workload.step()
        if number % 20 == 0:
            cluster.tick(workload.tick())
    workload.drain()
    return workload


@pytest.fixture(scope="module")
def runs() -> list[Workload]:
    return [run(seed) for seed in range(8)]


def test_jobs_take_the_steps_of_tidb_and_switch_where_it_does(runs: list[Workload]) -> None:
    seen = Counter[Action]()
    for workload in runs:
        for before, version in zip(workload.schema_versions, workload.schema_versions[1:], strict=False):
            plan = version.job.plan if version.job else None
            if plan is None or plan.steps[-1].state == ROLLED_BACK:
                continue
            states, switch = STATES[plan.type]
            assert [int(step.schema_state) for step in plan.steps] == states
            assert [step.state for step in plan.steps] == [1] * (len(states) - 1) + [DONE]
            step = next(s for s in plan.steps if all(version.tables.get(i) is e for i, e in s.tables.items()))
            switches = plan.type is not Action.EXCHANGE_PARTITION and before.readable != version.readable
            assert switches == (step.schema_state == switch and plan.type is not Action.EXCHANGE_PARTITION)
            seen[plan.type] += 1
    assert seen.keys() == STATES.keys()


def test_old_and_new_partitions_hold_the_same_rows_where_a_reorganisation_switches(runs: list[Workload]) -> None:
    rows = 0
    for workload in runs:
        for before, version in zip(workload.schema_versions, workload.schema_versions[1:], strict=False):
            for table_id, (_, info) in version.tables.items():
                part = info["partition"] or {}
                if part.get("ddl_state") != SchemaState.DELETE_REORGANIZATION or not part["adding_definitions"]:
                    continue
                old = before.tables[table_id][1]
                versions = [_rows(workload, readable(each), version.commit_ts) for each in (old, info)]
                assert versions[0] == versions[1]
                rows += len(versions[0])
    assert rows > 100


def _rows(workload: Workload, ids: list[int], ts: int) -> dict[object, object]:
    values: dict[object, object] = {}
    for physical_id in ids:
        for key, value in workload._cluster.snapshot(record_range(physical_id), ts):
            values[parse_key(key).handle] = value  # type: ignore[union-attr]
    return values


def test_sessions_of_two_versions_copies_and_rollbacks_all_happen(runs: list[Workload]) -> None:
    counts, hidden = Counter[str](), 0
    for workload in runs:
        counts.update(workload.counts)
        user = [row for row in workload.committed if row.key[:1] == b"t" and parse_key(row.key).table_id < 1 << 40]
        hidden += sum(not workload.shows(row) for row in user)
    assert hidden > 200
    assert counts["rows copied"] > 100
    assert any(name.endswith("rolled back") and count for name, count in counts.items())
