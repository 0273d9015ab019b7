"""Plan rows and results as text, for whoever carries them between driver and workers. Bytes are written in hex."""

from __future__ import annotations

import dataclasses
from typing import Any

import orjson

from tistream.bulk.part import PartResult
from tistream.bulk.plan import PlanRow, Step
from tistream.catalog.committed import NewSegment
from tistream.ids import Position, Tenant
from tistream.keyrange import KeyRange


def encode(value: PlanRow | PartResult) -> str:
    """The value as text."""
    return orjson.dumps(dataclasses.asdict(value), default=_hex, option=orjson.OPT_NON_STR_KEYS).decode()


def decode_row(text: str) -> PlanRow:
    """What `encode` made of a plan row."""
    found = orjson.loads(text)
    positions = {
        int(store): {int(life): Position(**at) for life, at in lives.items()}
        for store, lives in found["positions"].items()
    }
    range_ = KeyRange(bytes.fromhex(found["range"]["start"]), bytes.fromhex(found["range"]["end"]))
    steps = tuple(Step(**step) for step in found["steps"])
    told = {"tenant": Tenant(**found["tenant"]), "range": range_, "positions": positions, "steps": steps}
    return PlanRow(**{**found, **told})


def decode_result(text: str) -> PartResult:
    """What `encode` made of a result."""
    found = orjson.loads(text)
    segments = tuple(NewSegment(**_keys(segment)) for segment in found["segments"])
    return PartResult(**{**found, "segments": segments, "keeps": tuple(found["keeps"])})


def _keys(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, **{name: bytes.fromhex(found[name]) for name in ("start_key", "end_key")}}


def _hex(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(type(value).__name__)
