"""Answers about what is kept of a tenant's log, and for whom."""

from __future__ import annotations

from pydantic import BaseModel, Field

from apiserver.answers.fields import Seconds, Time, Tso
from tistream.catalog.log.retention import HoldKind


class LogHold(BaseModel):
    """Something that needs the log above a timestamp."""

    kind: HoldKind
    name: str = Field(examples=["warehouse"])
    by: str = Field(description="for people", examples=["changefeed warehouse (normal)"])
    ts: Tso
    time: Time
    holding: bool = Field(description="it keeps the log longer than the policy does")
    since_time: Time | None = Field(description="when the policy passed it")
    release: str = Field(
        description="what ends it", examples=["its next checkpoint, or tistream changefeed remove warehouse"]
    )


class LogRetention(BaseModel):
    """Where the log begins, what the policy asks for, and what holds it."""

    retention_s: int | None = Field(description="seconds of the log to keep; 0 = all, null = the setting")
    policy_s: Seconds = Field(description="what counts: `retention_s`, or the setting; 0 = all")
    policy_ts: Tso | None = Field(description="where the log would begin by the policy alone; null = nothing goes")
    policy_time: Time | None
    earliest_ts: Tso = Field(description="where it begins")
    earliest_time: Time | None
    holds: list[LogHold] = Field(description="the lowest")
    holds_total: int


class SafePoint(BaseModel):
    """A service that holds the log."""

    service_id: str = Field(examples=["backfill"])
    safe_ts: Tso = Field(description="the log above it is kept")
    expires_in_s: Seconds


class UpstreamSafePoint(BaseModel):
    """What the upstream must keep."""

    safe_ts: Tso | None = Field(description="everything above it; null = nothing is known yet")
    safe_time: Time | None
    frontier_ts: Tso | None = Field(description="the served watermark")
    services: list[SafePoint]
