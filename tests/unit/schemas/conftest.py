"""The recording, seen as a schema registry sees it: the pushed snapshot and the finished DDL jobs in commit order."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

import simulator
from schemas import ddl
from schemas.ddl import Job
from schemas.history import History
from schemas.snapshot import PushedSchema, parse_pushed
from tests.kit.recording import recorded_steps

RECORDING = Path(simulator.__file__).parent / "recording"
JOB_ROWS = "748000fffffffffffe5f72"  # record keys of the DDL job table, as the recording writes keys
META_KEYS = "6d"


def lines(path: Path) -> Iterator[str]:
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
        yield from io.TextIOWrapper(reader, encoding="utf-8")


def read_row_v1(data: bytes) -> dict[int, Any]:
    """Column id to value of a row in format v1 with only integers and bytes: enough for the DDL job table."""
    values, at = [], 0

    def varint() -> int:
        nonlocal at
        result = shift = 0
        while True:
            byte = data[at]
            at += 1
            result |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return result

    def signed() -> int:
        raw = varint()
        return (raw >> 1) ^ -(raw & 1)

    while at < len(data):
        flag = data[at]
        at += 1
        match flag:
            case 0:
                values.append(None)
            case 8:
                values.append(signed())
            case 9:
                values.append(varint())
            case 2:
                length = signed()
                values.append(data[at : at + length])
                at += length
            case _:
                raise AssertionError(f"flag {flag}")
    return dict(zip(values[::2], values[1::2], strict=True))


def written(of: str) -> Iterator[tuple[int, int, bytes, bytes | None]]:
    """(start_ts, commit_ts, key, value or None) of every committed row whose key in hex begins with `of`."""
    prewritten: dict[tuple[str, str], str] = {}
    for line in lines(RECORDING / "events.ndjson.zst"):
        if of not in line:
            continue
        event = json.loads(line)
        key = (event["key"], event["start_ts"])
        if not event["key"].startswith(of):
            continue
        if event["t"] == "PREWRITE" and event["op"] == "PUT":
            prewritten[key] = event["value"]
        if event["t"] in ("COMMIT", "COMMITTED"):
            value = bytes.fromhex(event.get("value") or prewritten[key]) if event["op"] == "PUT" else None
            yield int(event["start_ts"]), int(event["commit_ts"]), bytes.fromhex(event["key"]), value


@pytest.fixture(scope="session")
def pushed() -> PushedSchema:
    return parse_pushed(json.loads((RECORDING / "schema_snapshot.json").read_bytes()))


@pytest.fixture(scope="session")
def job_puts() -> list[tuple[int, int, bytes]]:
    """(start_ts, commit_ts, row) of every PUT in the DDL job table, in commit order."""
    found = [(start_ts, commit_ts, row) for start_ts, commit_ts, _, row in written(JOB_ROWS) if row is not None]
    return sorted(found, key=lambda row: row[1])


@pytest.fixture(scope="session")
def meta_writes() -> list[tuple[int, int, bytes, bytes | None]]:
    """(start_ts, commit_ts, key, value or None) of everything in the meta range, in commit order."""
    return sorted(written(META_KEYS), key=lambda row: row[1])


@pytest.fixture(scope="session")
def jobs(job_puts: list[tuple[int, int, bytes]]) -> list[Job]:
    """Every job version that the job table ever held, finished or not, in apply order."""
    found = [
        ddl.parse_job(json.loads(read_row_v1(row)[5]), start_ts=start_ts, commit_ts=commit_ts)
        for start_ts, commit_ts, row in job_puts
    ]
    return sorted(found, key=lambda job: job.order)


def end() -> int:
    return int(json.loads((RECORDING / "meta.json").read_bytes())["last_resolved_ts"])


@pytest.fixture
def history(pushed: PushedSchema) -> History:
    """The whole recording by its jobs and its meta range, known up to its end."""
    found = History(pushed.snapshot, pushed.job_table)
    found.follow(recorded_steps(), end())
    return found


@pytest.fixture
def history_of_jobs(pushed: PushedSchema, jobs: list[Job]) -> History:
    """The whole recording by its jobs alone: they do not say when a DDL of partitions takes effect."""
    found = History(pushed.snapshot, pushed.job_table)
    for job in jobs:
        found.apply(job)
    found.advance(end())
    return found
