"""The shop on disk: one file next to the service's data, so that a restart continues where the shop was.

    seed, start_ts      of the tenant's log
    state               the rows as of a timestamp that the service's log has reached: nothing below is asked for again
    sessions            what has happened since follows from them
    until_ms            the shop continues up to here, whenever the process ends
    key                 the API key of its pushers, where keys are required

Written before anything happens that it does not cover. It holds a key, so only its owner may read it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson

from simulator.rows import DATETIME, NEWDECIMAL
from simulator.sample.core.shop import Row
from simulator.sample.core.tables import Schema
from simulator.sample.core.upstream import Session, State
from tistream.errors import CorruptObject

NAME = "sample.json"
_VERSION = 1


@dataclass(slots=True, kw_only=True)
class Kept:
    """The file's content."""

    seed: int
    start_ts: int
    state: State
    sessions: list[Session]
    until_ms: int
    key: str = ""


def read(path: Path) -> Kept | None:
    """None: there is no file. CorruptObject when it is damaged."""
    try:
        state = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, orjson.JSONDecodeError) as e:
        raise CorruptObject("the sample's file cannot be read", file=str(path), cause=str(e)) from e
    try:
        if state["version"] != _VERSION:
            raise ValueError(f"version {state['version']}")
        return Kept(
            seed=state["seed"],
            start_ts=state["start_ts"],
            state=_state(state["state"]),
            sessions=[Session(*each) for each in state["sessions"]],
            until_ms=state["until_ms"],
            key=state["key"],
        )
    except (LookupError, TypeError, ValueError, ArithmeticError) as e:
        raise CorruptObject("the sample's file is damaged", file=str(path), cause=repr(e)) from e


def write(path: Path, kept: Kept) -> None:
    """Replace the file, whole and on disk when this returns."""
    data = orjson.dumps(
        {
            "version": _VERSION,
            "seed": kept.seed,
            "start_ts": kept.start_ts,
            "state": {
                "step": kept.state.step,
                "ts": kept.state.ts,
                "rows": {
                    str(table_id): [[row, stored.hex()] for row, stored in rows]
                    for table_id, rows in kept.state.rows.items()
                },
                "meta": {key.hex(): value.hex() for key, value in kept.state.meta.items()},
                "last_ids": {str(table_id): last for table_id, last in kept.state.last_ids.items()},
            },
            "sessions": [[each.first_step, each.opened_ms] for each in kept.sessions],
            "until_ms": kept.until_ms,
            "key": kept.key,
        },
        default=str,
    )
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    part.replace(path)


def _state(values: Mapping[str, Any]) -> State:
    schema = Schema(values["step"])
    types = {
        table_id: {c["name"]["O"]: c["type"]["Tp"] for c in info["cols"]} for table_id, info in schema.tables.items()
    }
    rows = {
        int(table_id): [(_row(types[int(table_id)], row), bytes.fromhex(stored)) for row, stored in rows]
        for table_id, rows in values["rows"].items()
    }
    last_ids = {int(table_id): last for table_id, last in values["last_ids"].items()}
    meta = {bytes.fromhex(key): bytes.fromhex(value) for key, value in values["meta"].items()}
    return State(step=values["step"], ts=values["ts"], rows=rows, last_ids=last_ids, meta=meta)


def _row(types: Mapping[str, int], row: Row) -> Row:
    return {name: _cell(types[name], value) for name, value in row.items()}


def _cell(tp: int, value: Any) -> Any:
    if value is None or tp not in (NEWDECIMAL, DATETIME):
        return value
    return Decimal(value) if tp == NEWDECIMAL else datetime.fromisoformat(value)
