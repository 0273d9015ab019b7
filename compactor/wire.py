"""Plan rows and results as text, for whoever carries them between driver and workers. Bytes are written in hex."""

from __future__ import annotations

import dataclasses
from typing import Any

import orjson

from compactor.plan import PlanRow
from compactor.task import Contents, RangeResult
from tistream.catalog.committed import SegmentFormat, SegmentRow
from tistream.catalog.tenants import TaskKind
from tistream.codec.compacted_file import Footer
from tistream.codec.segment_file import SegmentInfo
from tistream.ids import Tenant


def encode(value: PlanRow | RangeResult) -> str:
    """The value as text."""
    return orjson.dumps(dataclasses.asdict(value), default=_hex).decode()


def decode_row(text: str) -> PlanRow:
    """What `encode` made of a plan row."""
    found = orjson.loads(text)
    segments = tuple(
        SegmentRow(
            **{
                **_keys(segment),
                "kind": TaskKind(segment["kind"]),
                "format": SegmentFormat(segment["format"]),
                "footer": Footer(**segment["footer"]),
            }
        )
        for segment in found["segments"]
    )
    return PlanRow(**{**found, "tenant": Tenant(**found["tenant"]), "segments": segments})


def decode_result(text: str) -> RangeResult:
    """What `encode` made of a result."""
    found = orjson.loads(text)
    return RangeResult(
        **{
            **found,
            "groups": tuple(SegmentInfo(**_keys(group)) for group in found["groups"]),
            "footer": Footer(**found["footer"]),
            "before": Contents(**found["before"]),
            "after": Contents(**found["after"]),
        }
    )


def _keys(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, **{name: bytes.fromhex(found[name]) for name in ("start_key", "end_key")}}


def _hex(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(type(value).__name__)
