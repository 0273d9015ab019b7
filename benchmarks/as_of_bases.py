"""Reads as of a timestamp over a base: the time follows the tail, not the log.

Two logs of one table with 4,000 keys, of 40,000 changes and of eight times as many, each with a base below its last
2,000 changes. The whole read is timed, without HTTP: catalog, bucket on disk, merge, columns, NDJSON. Each read over
the base must give the bytes of the read without it. The same ratio without bases is reported for comparison.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import Result, compare
from compactor.base_job import BaseSettings, build_tenant_bases
from compactor.core.base_plan import BasePlanSettings
from compactor.local import LocalExecutor
from reading.asof.read import RowsRequest, read_rows
from schemas.history import History
from tests.kit.api_world import ApiWorld, api_world
from tests.kit.log_builder import TENANT, recording_end
from tests.kit.made_rows import table_of
from tests.kit.recording import committed_rows, recorded_history
from tistream.model.change import COMMITTED, Op
from tistream.objectstore.local import LocalStore

KEYS, TAIL, REWRITES, ROUNDS = 4_000, 2_000, 10, 8
_DATABASE, _TABLE = "shop", "k_int"
RUNS = 5


def run() -> Iterator[Result]:
    """Two ratios: the long log's time in units of the short one's."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        worlds = {times: _world(Path(name), times, stack) for times in (1, ROUNDS)}
        without = {times: _read(world) for times, world in worlds.items()}

        def same(long: bytes, short: bytes) -> bool:
            return (long, short) == (without[ROUNDS], without[1])

        yield compare(
            "as-of/without-bases/log-8x",
            lambda: _read(worlds[ROUNDS]),
            lambda: _read(worlds[1]),
            proof=same,
            target=8,
            better="lower",
            runs=RUNS,
        )
        for world in worlds.values():
            _build(world)
        yield compare(
            "as-of/over-bases/log-8x",
            lambda: _read(worlds[ROUNDS]),
            lambda: _read(worlds[1]),
            proof=same,
            target=1.5,
            better="lower",
            runs=RUNS,
        )


def _world(folder: Path, times: int, stack: ExitStack) -> ApiWorld:
    """A log in which the table's keys are written `times` times, then `TAIL` of them once more."""
    place = folder / str(times)
    place.mkdir()
    history = recorded_history()
    rows = _rows(history, times)
    world = stack.enter_context(api_world(place, LocalStore(place / "bucket"), rows=rows))
    world.log.activate().seed()
    ts = np.unique(rows["commit_ts"].to_numpy())
    for at in [*ts[::KEYS].tolist(), recording_end()]:
        if at > world.log.start_ts:
            world.log.flush(at)
    return world


def _rows(history: History, times: int) -> pa.Table:
    """Puts and deletes with the table's own row values, evenly before the recording's end."""
    table = history.find(_DATABASE, _TABLE, recording_end())
    committed = committed_rows()
    of_table = [row for row in committed.to_pylist() if row["table_id"] == table.id and row["value"] is not None]
    values = [row["value"] for row in of_table if row["commit_ts"] == max(r["commit_ts"] for r in of_table)]
    rewrites = REWRITES * times
    count = KEYS * rewrites + TAIL
    rand = np.random.default_rng(times)
    handles = np.concatenate([rand.permutation(KEYS) for _ in range(rewrites)] + [np.arange(TAIL)])
    step = (recording_end() - of_table[0]["commit_ts"]) // (count + 1)
    commit_ts = of_table[0]["commit_ts"] + step * np.arange(1, count + 1, dtype=np.uint64)
    prefix = of_table[0]["key"][:11]
    keys = [prefix + (int(handle) ^ (1 << 63)).to_bytes(8, "big") for handle in handles]
    repeated = table_of(
        COMMITTED,
        table_id=table.id,
        op=Op.PUT,
        key=keys,
        start_ts=commit_ts - 1,
        commit_ts=commit_ts,
        value=[values[0]] * count,
    )
    others = committed.filter(pc.not_equal(committed["table_id"], table.id))  # the schema's among them
    return pa.concat_tables([others, repeated])


def _build(world: ApiWorld) -> None:
    """A base just below the tail: the log's last changes are taken for younger than the lag."""
    lag_ms = _tail_ms(world)
    settings = BaseSettings(lag_ms=lag_ms, plan=BasePlanSettings(tail_bytes_min=0))
    executor = LocalExecutor(world.store).bases
    build_tenant_bases(world.catalog, world.services.registry, TENANT, executor, settings, world.clock)


def _tail_ms(world: ApiWorld) -> int:
    commit_ts = world.log.rows["commit_ts"].to_numpy()
    return int((recording_end() - int(commit_ts[-TAIL])) >> 18)


def _read(world: ApiWorld) -> bytes:
    request = RowsRequest(tenant=TENANT, database=_DATABASE, table=_TABLE, as_of=str(recording_end()), format="ndjson")
    return b"".join(read_rows(world.services, request).content)
