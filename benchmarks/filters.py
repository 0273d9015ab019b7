"""Pulls with a filter that keeps 1 % of the rows, against full pulls of the same log: processor time.

The log is the recording's table `shop_arch.bulk5k` (10 columns), its inserts repeated at later commit timestamps,
served in this process. The rows of a filtered pull must be those that are left of the full pull, filtered as
JSON, and both must end at the same cursor.

    key      on the primary key, which is decoded from keys
    value    on a column of the value
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import Result, in_turn
from tests.kit.api_world import ApiWorld, api_world, has_more, next_cursor
from tests.kit.log_builder import recording_end
from tests.kit.recording import committed_rows, recorded_history
from tistream.objectstore.factory import open_store

_REPEAT = 40
_RUNS = 9
_PATH = "/databases/shop_arch/tables/bulk5k/changes"
_Keeps = Callable[[dict[str, Any]], bool]


def run() -> Iterator[Result]:
    """Both filters in two formats."""
    pa.set_cpu_count(1)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "bucket").mkdir()
        world = stack.enter_context(api_world(folder, open_store(f"file://{folder}/bucket"), _log()))
        world.log.build(8)
        for name, where, keeps in _filters(_full(world, "ndjson")):
            for form in ("ndjson", "canal-json"):
                full, part = partial(_full, world, form), partial(_full, world, form, where=where)
                if form == "ndjson":
                    _prove(name, part(), full(), keeps)
                yield _ratio(f"filters/{name} {form}", part, full)


def _filters(full: list[bytes]) -> Iterator[tuple[str, str, _Keeps]]:
    """(name, expression, the same for an event), each of about one row in a hundred."""
    rows = [event for event in _events(full) if event["type"] == "insert"]
    for name, column in (("key", "id"), ("value", _spread_column(rows))):
        values = sorted(row["columns"][column] for row in rows)
        upto = int(values[len(values) // 100])
        yield name, f"{column} < {upto}", partial(_is_below, column, upto)


def _is_below(column: str, upto: int, event: dict[str, Any]) -> bool:
    value: int = event.get("columns", {}).get(column, upto)
    return value < upto


def _spread_column(rows: list[dict[str, Any]]) -> str:
    """The number of the value with the most different values."""
    columns: dict[str, Any] = rows[0]["columns"]
    names = [name for name, value in columns.items() if isinstance(value, int | float) and name != "id"]
    return max(names, key=lambda name: len({row["columns"][name] for row in rows}))


def _full(world: ApiWorld, form: str, **more: str) -> list[bytes]:
    """The bodies of a whole pull, and its last cursor."""
    bodies = []
    cursor: dict[str, str] = {}
    while True:
        answer = world.ok(_PATH, limit=200_000, format=form, **more, **cursor)
        bodies.append(answer.content)
        cursor = {"cursor": next_cursor(answer)}
        if not has_more(answer):
            return [*bodies, cursor["cursor"].encode()]


def _events(bodies: list[bytes]) -> Iterator[dict[str, Any]]:
    for body in bodies[:-1]:
        yield from (orjson.loads(line) for line in body.split(b"\n") if line)


def _prove(name: str, part: list[bytes], full: list[bytes], keeps: _Keeps) -> None:
    rows = [event for event in _events(part) if event["type"] == "insert"]
    expected = [event for event in _events(full) if keeps(event)]
    if rows != expected or not rows or part[-1] != full[-1]:
        raise ValueError(f"{name}: {len(rows)} rows, and {len(expected)} are left of a full pull")


def _ratio(name: str, part: Callable[[], object], full: Callable[[], object]) -> Result:
    ratios = []
    for turn in range(_RUNS):
        part_s, whole = in_turn(turn, partial(_cpu_s, part), partial(_cpu_s, full))
        ratios.append(part_s / whole)
    return Result.of(name, ratios, 0.1, "lower")


def _cpu_s(side: Callable[[], object]) -> float:
    began = time.process_time()
    side()
    return time.process_time() - began


def _log() -> pa.Table:
    """The recording up to its end, and the inserts of `bulk5k` again and again after it."""
    rows = committed_rows()
    table = recorded_history().find("shop_arch", "bulk5k", recording_end())
    of_table = rows.filter(pc.and_(pc.equal(rows["table_id"], table.id), pc.is_valid(rows["value"])))
    of_table = of_table.filter(pc.is_null(of_table["old_value"]))
    count = of_table.num_rows * _REPEAT
    many = pa.concat_tables([of_table] * _REPEAT).combine_chunks()
    commit_ts = np.uint64(recording_end()) - np.arange(count, 0, -1, dtype=np.uint64) * np.uint64(4)
    for column, values in (("commit_ts", commit_ts), ("start_ts", commit_ts - np.uint64(2))):
        many = many.set_column(many.schema.get_field_index(column), many.schema.field(column), pa.array(values))
    system = rows.filter(pc.greater(rows["table_id"], 1 << 47))
    return pa.concat_tables([system, many]).sort_by("commit_ts")
