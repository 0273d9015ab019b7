"""The recording that ships with the package, as the parts behind the simulator see it.

Rows as a sorter would commit them, the schema history that their DDL jobs make, and what other software answered to the
same changes (the files of an `expected` directory). Everything is read once.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import zstandard

import tistream
from schemas.ddl import parse_job
from schemas.history import History
from schemas.layout import row_layout
from schemas.snapshot import parse_pushed
from tistream import change
from tistream.codec.row.decode import decode
from tistream.codec.table_key import DDL_JOB_TABLE_ID
from tistream.errors import invariant

RECORDING = Path(tistream.__file__).parent / "recording"
EXPECTED = Path(tistream.__file__).parents[1] / "tests" / "expected"

_NOT_DELIVERED = 0xFF00  # txn_source bits that TiKV never sends
_RECORD = b"_r"


def objects(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a zstd-compressed NDJSON file."""
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
        for line in io.TextIOWrapper(reader, encoding="utf-8", newline="\n"):
            yield json.loads(line)


@functools.cache
def committed_rows() -> pa.Table:
    """All record rows that TiKV would have delivered, schema change.COMMITTED, by (commit_ts, start_ts, key)."""
    open_rows: dict[tuple[str, str], dict[str, Any]] = {}
    rows: list[dict[str, Any] | None] = []
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
    found = pa.Table.from_pylist([row for row in rows if row is not None], schema=change.COMMITTED)
    by = [(name, "ascending") for name in ("commit_ts", "start_ts", "key")]
    return found.take(pc.sort_indices(found, sort_keys=by)).combine_chunks()


def _row(commit: dict[str, Any], written: dict[str, Any]) -> dict[str, Any] | None:
    key = bytes.fromhex(commit["key"])
    if key[:1] != b"t" or key[9:11] != _RECORD:
        return None
    value, old = written.get("value"), written.get("old_value")
    return {
        "table_id": int.from_bytes(key[1:9], "big") - (1 << 63),
        "op": int(change.Op[commit["op"]]),
        "key": key,
        "start_ts": int(commit["start_ts"]),
        "commit_ts": int(commit["commit_ts"]),
        "value": bytes.fromhex(value) if value is not None and commit["op"] == "PUT" else None,
        "old_value": bytes.fromhex(old) if old is not None else None,
        "expire_ts": 0,
        "flags": 0,
    }


@functools.cache
def recorded_history() -> History:
    """The schema at every timestamp of the recording. Shared: do not apply jobs to it."""
    pushed = parse_pushed(json.loads((RECORDING / "schema_snapshot.json").read_bytes()))
    history = History(pushed.snapshot, pushed.job_table)
    rows = committed_rows()
    of_jobs = pc.equal(rows["table_id"], pa.scalar(DDL_JOB_TABLE_ID, pa.int64()))
    puts = rows.filter(pc.and_(of_jobs, pc.is_valid(rows["value"]))).combine_chunks()
    decoded = decode(row_layout(pushed.job_table), puts["key"].combine_chunks(), puts["value"].combine_chunks())
    invariant(not decoded.errors, "every row of the job table decodes", errors=decoded.errors[:3])
    jobs = [
        parse_job(json.loads(meta), start_ts=start_ts, commit_ts=commit_ts)
        for meta, start_ts, commit_ts in zip(
            decoded.batch["job_meta"].to_pylist(),
            puts["start_ts"].to_pylist(),
            puts["commit_ts"].to_pylist(),
            strict=True,
        )
    ]
    for job in sorted(jobs, key=lambda j: j.order):
        history.apply(job)
    history.advance(int(json.loads((RECORDING / "meta.json").read_bytes())["last_resolved_ts"]))
    return history


def expected(stem: str) -> Iterator[dict[str, Any]]:
    """The objects of `tests/expected/STEM.ndjson.zst`."""
    return objects(EXPECTED / f"{stem}.ndjson.zst")
