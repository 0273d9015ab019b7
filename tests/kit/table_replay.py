"""The rows of a recorded table at a timestamp, by a dict: seed, then every change in commit order."""

from __future__ import annotations

from functools import cache
from typing import Any

import pyarrow as pa

from simulator.capture import Capture, captured_rows
from tests.kit.recording import RECORDING, committed_rows
from tistream.codec.seed_file import SEED


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
