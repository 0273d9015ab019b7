"""Plan rows and results as text, for whoever carries them between driver and workers. Bytes are written in hex."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import orjson

from compactor.base_task import BaseFailed, BaseFile, BaseResult
from compactor.core.base_plan import BasePlanRow, BaseTable
from compactor.core.plan import PlanRow
from compactor.task import Contents, RangeFailed, RangeResult
from tistream.catalog.log.committed import SegmentFormat, SegmentRow
from tistream.catalog.log.seeds import SeedSegmentRow
from tistream.catalog.tenancy.tenants import TaskKind
from tistream.codec.compacted_file import Footer
from tistream.codec.segment_file import SegmentInfo
from tistream.ids import Tenant

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def encode(value: DataclassInstance) -> str:
    """A plan row or a result as text."""
    return orjson.dumps(dataclasses.asdict(value), default=_hex, option=orjson.OPT_NON_STR_KEYS).decode()


def decode_row(text: str) -> PlanRow:
    """What `encode` made of a plan row."""
    found = orjson.loads(text)
    return PlanRow(**{**found, "tenant": Tenant(**found["tenant"]), "segments": _segments(found)})


def decode_base_row(text: str) -> BasePlanRow:
    """What `encode` made of a plan row of bases."""
    found = orjson.loads(text)
    tables = tuple(
        BaseTable(**{**table, "rows": tuple(SeedSegmentRow(**with_keys(row)) for row in table["rows"])})
        for table in found["tables"]
    )
    given = {"tenant": Tenant(**found["tenant"]), "tables": tables, "segments": _segments(found)}
    return BasePlanRow(**{**found, **given})


def decode_base_result(text: str) -> BaseResult | BaseFailed:
    """What `encode` made of the result of one."""
    found = orjson.loads(text)
    if "message" in found:
        return BaseFailed(**found)
    files = tuple(
        BaseFile(**{**file, "segments": tuple(SegmentInfo(**with_keys(info)) for info in file["segments"])})
        for file in found["files"]
    )
    return BaseResult(**{**found, "files": files, "rows": {int(key): rows for key, rows in found["rows"].items()}})


def decode_result(text: str) -> RangeResult | RangeFailed:
    """What `encode` made of a result."""
    found = orjson.loads(text)
    if "message" in found:
        return RangeFailed(**found)
    return RangeResult(
        **{
            **found,
            "groups": tuple(SegmentInfo(**with_keys(group)) for group in found["groups"]),
            "footer": Footer(**found["footer"]),
            "before": Contents(**found["before"]),
            "after": Contents(**found["after"]),
        }
    )


def _segments(found: dict[str, Any]) -> tuple[SegmentRow, ...]:
    return tuple(
        SegmentRow(
            **{
                **with_keys(segment),
                "kind": TaskKind(segment["kind"]),
                "format": SegmentFormat(segment["format"]),
                "footer": Footer(**segment["footer"]),
            }
        )
        for segment in found["segments"]
    )


def with_keys(found: dict[str, Any]) -> dict[str, Any]:
    """A tree read back, its `start_key` and `end_key` as bytes again."""
    return {**found, **{name: bytes.fromhex(found[name]) for name in ("start_key", "end_key")}}


def _hex(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(type(value).__name__)
