"""Types of fields with their units and examples: each has one form in all answers, see docs/api.md."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

_MOMENT = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"

Tso = Annotated[
    str,
    Field(
        description="a TSO, in decimal",
        examples=["470613540554145793"],
        json_schema_extra={"pattern": r"^\d{1,20}$"},
    ),
]
Time = Annotated[
    str,
    Field(
        description="RFC 3339, in UTC with milliseconds",
        examples=["2026-11-21T08:03:06.318Z"],
        json_schema_extra={"format": "date-time", "pattern": _MOMENT},
    ),
]
Seconds = Annotated[float, Field(description="seconds", examples=[1.5])]
Rate = Annotated[float, Field(description="a second", examples=[250.0])]
HexKey = Annotated[
    str,
    Field(
        description="hexadecimal",
        examples=["7480000000000000765f72"],
        json_schema_extra={"pattern": "^([0-9a-f]{2})*$"},
    ),
]
EndKey = Annotated[HexKey, Field(examples=["7480000000000000765f73"])]  #: above the start of the same range
Number = Annotated[
    str, Field(description="a number, in decimal", examples=["7"], json_schema_extra={"pattern": r"^\d{1,20}$"})
]
WorkerName = Annotated[str, Field(examples=["sorter-1"])]
Code = Annotated[
    str,
    Field(
        description="code of an error, see /problems",
        examples=["TS-1020"],
        json_schema_extra={"pattern": "^TS-[0-9]{4}$"},
    ),
]
NextCursor = Annotated[str | None, Field(description="`cursor` of the next page; null on the last one", examples=["7"])]
