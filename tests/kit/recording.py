"""The packaged recording: its log, its tables at each moment, and their rows at a timestamp."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import zstandard

import simulator
from schemas.ddl import Job
from schemas.history import History
from schemas.meta import Definition, MetaCommit, read_meta, steps_of
from schemas.registry.schema_registry import read_jobs
from schemas.snapshot import PushedSchema, parse_pushed
from simulator.capture import Capture, captured_rows
from tistream.codec.seed_file import SEED
from tistream.codec.table_key import is_record
from tistream.model import change
from tistream.ts import TS_MAX

RECORDING = Path(simulator.__file__).parent / "recording"
EXPECTED = Path(simulator.__file__).parents[1] / "tests" / "expected"

_NOT_DELIVERED = 0xFF00  # txn_source bits that TiKV never sends


def objects(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a zstd-compressed NDJSON file."""
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
        for line in io.TextIOWrapper(reader, encoding="utf-8", newline="\n"):
            yield json.loads(line)


def committed_rows() -> pa.Table:
    """All record rows that TiKV would have delivered, schema change.COMMITTED, by (commit_ts, start_ts, key)."""
    return _committed()[0]


def changed_rows() -> pa.Table:
    """The committed rows that are changes: one transaction deletes a row that it has inserted itself."""
    return changes_of(committed_rows())


def changes_of(rows: pa.Table) -> pa.Table:
    """The rows without deletes of rows that never were, of an upstream that sends old values."""
    keep = [row["op"] == change.Op.PUT or row["old_value"] is not None for row in rows.to_pylist()]
    return rows.filter(pa.array(keep))


def meta_rows() -> pa.Table:
    """As `committed_rows`, of the meta range."""
    return _committed()[1]


@functools.cache
def _committed() -> tuple[pa.Table, pa.Table]:
    open_rows: dict[tuple[str, str], dict[str, Any]] = {}
    rows: list[dict[str, Any]] = []
    for event in objects(RECORDING / "events.ndjson.zst"):
        if event["t"] not in ("PREWRITE", "COMMIT", "COMMITTED", "ROLLBACK"):
            continue
        if int(event.get("txn_source") or 0) & _NOT_DELIVERED:
            continue
        who = (event["key"], event["start_ts"])
        if event["t"] == "PREWRITE":
            open_rows[who] = event
        elif event["t"] == "ROLLBACK":
            open_rows.pop(who, None)
        else:
            written = event if event["t"] == "COMMITTED" else open_rows.pop(who)
            rows.append(_row(event, written))
    rows_found = pa.Table.from_pylist(rows, schema=change.COMMITTED)
    by = [(name, "ascending") for name in ("commit_ts", "start_ts", "key")]
    rows_found = rows_found.take(pc.sort_indices(rows_found, sort_keys=by))
    of_meta = pc.starts_with(rows_found["key"], "m")
    return rows_found.filter(is_record(rows_found["key"])).combine_chunks(), rows_found.filter(of_meta).combine_chunks()


def _row(commit: dict[str, Any], written: dict[str, Any]) -> dict[str, Any]:
    key = bytes.fromhex(commit["key"])
    value, old = written.get("value"), written.get("old_value")
    return {
        "table_id": int.from_bytes(key[1:9], "big") - (1 << 63) if key[:1] == b"t" else 0,
        "op": int(change.Op[commit["op"]]),
        "key": key,
        "start_ts": int(commit["start_ts"]),
        "commit_ts": int(commit["commit_ts"]),
        "value": bytes.fromhex(value) if value is not None and commit["op"] == "PUT" else None,
        "old_value": bytes.fromhex(old) if old is not None else None,
        "expire_ts": 0,
        "flags": 0,
    }


def recorded_start() -> PushedSchema:
    """The schema that the recording begins with."""
    return parse_pushed(json.loads((RECORDING / "schema_snapshot.json").read_bytes()))


@functools.cache
def recorded_steps() -> tuple[MetaCommit, ...]:
    """What every transaction of the recording wrote about schemas: job rows and the meta range, in apply order."""
    jobs = list(read_jobs(committed_rows(), recorded_start().job_table, 0, TS_MAX))
    read = list(read_meta(meta_rows(), 0, TS_MAX))
    jobs += [job for job in read if isinstance(job, Job)]
    return tuple(steps_of(jobs, (each for each in read if isinstance(each, Definition))))


@functools.cache
def recorded_history() -> History:
    """The schema at every timestamp of the recording. Shared: do not add to it."""
    pushed = recorded_start()
    history = History(pushed.snapshot, pushed.job_table)
    history.follow(recorded_steps(), int(json.loads((RECORDING / "meta.json").read_bytes())["last_resolved_ts"]))
    return history


def expected(stem: str) -> Iterator[dict[str, Any]]:
    """The objects of `tests/expected/STEM.ndjson.zst`."""
    return objects(EXPECTED / f"{stem}.ndjson.zst")


@cache
def _recorded() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(rows at the start, changes)"""
    return pa.concat_tables(list(captured_rows(Capture(RECORDING)))).to_pylist(), committed_rows().to_pylist()


def replayed(table_id: int, ts: int) -> pa.Table:
    """The rows of a physical table, schema SEED, in key order."""
    state: dict[bytes, tuple[int, int, bytes]] = {}
    prefix = b"t" + (table_id | 1 << 63).to_bytes(8, "big") + b"_r"
    first, changes = _recorded()
    for row in first:
        if row["key"].startswith(prefix):
            state[row["key"]] = (row["start_ts"], row["commit_ts"], row["value"])
    for row in changes:
        if row["key"].startswith(prefix) and row["commit_ts"] <= ts:
            state.pop(row["key"], None)
            if row["value"] is not None:
                state[row["key"]] = (row["start_ts"], row["commit_ts"], row["value"])
    rows = [
        {"key": key, "start_ts": start, "commit_ts": commit, "value": value}
        for key, (start, commit, value) in sorted(state.items())
    ]
    return pa.Table.from_pylist(rows, SEED)
