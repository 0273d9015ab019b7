"""The recording, seen as a schema registry sees it: the pushed snapshot and the finished DDL jobs in commit order."""

from __future__ import annotations

import pyarrow as pa
import pytest

from schemas.ddl import Job
from schemas.history import History
from schemas.registry.schema_registry import read_jobs
from schemas.snapshot import PushedSchema
from tests.kit.recording import committed_rows, meta_rows, recorded_history, recorded_start, recorded_steps
from tistream.codec.table_key import DDL_JOB_RANGE
from tistream.ts import TS_MAX

Written = tuple[int, int, bytes, bytes | None]  #: start_ts, commit_ts, key, value


def written_in(rows: pa.Table) -> list[Written]:
    columns = [rows[name].to_pylist() for name in ("start_ts", "commit_ts", "key", "value")]
    return list(zip(*columns, strict=True))


@pytest.fixture(scope="session")
def pushed() -> PushedSchema:
    return recorded_start()


@pytest.fixture(scope="session")
def job_puts() -> list[tuple[int, int, bytes]]:
    """(start_ts, commit_ts, row) of every PUT in the DDL job table, in commit order."""
    puts = written_in(committed_rows())
    return [(start, commit, row) for start, commit, key, row in puts if key in DDL_JOB_RANGE and row is not None]


@pytest.fixture(scope="session")
def meta_writes() -> list[Written]:
    """Everything in the meta range, in commit order."""
    return written_in(meta_rows())


@pytest.fixture(scope="session")
def jobs(pushed: PushedSchema) -> list[Job]:
    """Every job version that the job table ever held, finished or not, in apply order."""
    return sorted(read_jobs(committed_rows(), pushed.job_table, 0, TS_MAX), key=lambda job: job.order)


@pytest.fixture
def history(pushed: PushedSchema) -> History:
    """The whole recording by its jobs and its meta range, known up to its end."""
    recorded = History(pushed.snapshot, pushed.job_table)
    recorded.follow(recorded_steps(), recorded_history().resolved_ts)
    return recorded


@pytest.fixture
def history_of_jobs(pushed: PushedSchema, jobs: list[Job]) -> History:
    """The whole recording by its jobs alone: they do not say when a DDL of partitions takes effect."""
    new_history = History(pushed.snapshot, pushed.job_table)
    for job in jobs:
        new_history.apply(job)
    new_history.advance(recorded_history().resolved_ts)
    return new_history
