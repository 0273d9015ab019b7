"""At the end of a chaos run the log is read again: what it has lost behind its readers is found."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from sqlalchemy import select

from simulator.chaos.run import TABLES, ChaosReport
from simulator.chaos.servers.processes import wait_until_ready
from simulator.judging.core.judge import Judge
from simulator.judging.readers import Reader, read_again
from tests.kit.log_builder import TENANT, recording_end
from tests.kit.served_log import ServedLog, served_log
from tistream.catalog.database.tables import segments
from tistream.clock import SystemClock

PATIENCE_S = 60


def follow(served: ServedLog) -> Judge:
    """What a reader got that has followed the log to its end."""
    reader = Reader("live", [served.url], TENANT, SystemClock(), TABLES)
    reader.start()
    deadline = time.monotonic() + PATIENCE_S
    while reader.judge.complete_ts < recording_end() and time.monotonic() < deadline:
        time.sleep(0.05)
    reader.stop()
    return reader.judge


def again(served: ServedLog, within_s: float = PATIENCE_S, upto: int | None = None) -> list[Judge]:
    end = recording_end() if upto is None else upto
    return read_again([served.url] * 2, TENANT, SystemClock(), TABLES, end, within_s=within_s)


def reported(live: Judge, others: list[Judge]) -> ChaosReport:
    """The rows of the recording are what the live reader got: they are compared with TiDB's elsewhere."""
    report = ChaosReport(seed=1, seconds=1, healed_s=1.0)
    report.compare([live], others, live.got)
    return report


@pytest.mark.timeout(300)
def test_rows_that_are_lost_behind_the_readers_are_found(tmp_path: Path) -> None:
    with served_log(tmp_path) as served:
        served.log.build(6, upto=recording_end())
        live = follow(served)
        assert reported(live, again(served)).held
        lose_first_object(served)
        served.server.kill()
        served.server.start()
        wait_until_ready(served.server, served.url)
        report = reported(live, again(served))
        assert report.findings.keys() == {"lost"}, report.examples
        assert report.read_again < report.read
        assert not report.held


@pytest.mark.timeout(300)
def test_a_log_that_cannot_be_read_to_its_end_is_found(tmp_path: Path) -> None:
    with served_log(tmp_path) as served:
        served.log.build(2, upto=recording_end())
        others = again(served, within_s=1.0, upto=recording_end() + 1)
        assert [dict(judge.counts) for judge in others] == [{"error": 1}, {"error": 1}]


def lose_first_object(served: ServedLog) -> None:
    """The object with the lowest rows of users' tables is no longer in the catalog."""
    users = (segments.c.table_hi >= TABLES.start) & (segments.c.table_lo < TABLES.stop)
    with served.catalog.transaction() as conn:
        first = conn.execute(
            select(segments.c.object_key).where(users).order_by(segments.c.hi_ts).limit(1)
        ).scalar_one()
        conn.execute(segments.delete().where(segments.c.object_key == first))
