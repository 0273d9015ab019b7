"""Answers about the audit log."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from apiserver.answers.fields import Code, NextCursor, Number, Time


class AuditEntry(BaseModel):
    """Who did what, from where, when, on what, and with what result."""

    entry_no: Number = Field(description="a number, in decimal; rises with each new entry")
    time: Time = Field(description="when it began; of several, the first")
    last_time: Time = Field(description="when it ended; of several, the last")
    times: int = Field(description="how many equal operations of a minute it stands for", examples=[1])
    principal: str = Field(description="name of the key, `(no key)`, or the user of a command", examples=["operations"])
    key_id: str | None = Field(description="null without a key", examples=["5krc7s57dyuk2"])
    role: str | None = Field(description="role of the key, or `command`; null without a key", examples=["operator"])
    address: str = Field(description="of the client, or the host of a command", examples=["10.2.0.7"])
    operation: str = Field(
        description="name in this description, `console` and the address of a page, or a command",
        examples=["pause_tenant"],
    )
    cluster_id: int | None = Field(description="null when it is about no single tenant")
    tenant_id: int | None = Field(description="null when it is about no single tenant")
    target: str | None = Field(description="on what", examples=["consumer_id=warehouse"])
    result: Literal["unknown", "done", "refused", "failed"] = Field(
        description="unknown: it runs, or its process ended before it did", examples=["done"]
    )
    status: int | None = Field(description="of the HTTP answer; null for a command, and while unknown", examples=[200])
    code: Code | None = Field(description="of the error")
    request_id: str | None = Field(description="X-Request-ID of the answer", examples=["1f0c59d4c3e2a7b8"])


class AuditLogPage(BaseModel):
    """A page of the audit log."""

    items: list[AuditEntry]
    next_cursor: NextCursor
    newest: Number = Field(description="`after` of the next request of a follower")
