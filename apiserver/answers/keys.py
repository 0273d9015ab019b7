"""Answers about API keys and login codes."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from apiserver.answers.fields import Time
from tistream.http.auth.core.roles import Right, Role

_KEY_ID = "452p54buwizwq"


class OfKey(BaseModel):
    """Whom a key is for."""

    name: str = Field(examples=["warehouse"])
    role: Role
    cluster_id: int | None = Field(description="null = not bound to a tenant")
    tenant_id: int | None = Field(description="null = not bound to a tenant")
    tables: list[str] | None = Field(
        description="the only tables of a consumer's key; null = all", examples=[["shop.*", "!shop.audit_*"]]
    )


class Caller(OfKey):
    """The key of the request and its rights."""

    key_id: str = Field(description="empty when keys are not required", examples=[_KEY_ID])
    rights: list[Right]


class ApiKey(OfKey):
    """A key without its secret."""

    key_id: str = Field(examples=[_KEY_ID])
    state: Literal["living", "expired", "revoked"]
    created_time: Time
    expires_time: Time | None = Field(description="null = never")
    last_used_time: Time | None
    revoked_time: Time | None
    created_by: str | None = Field(description="id of the key that created it", examples=["5krc7s57dyuk2"])
    replaced_by: str | None = Field(description="id of its successor", examples=["znpop3rk7vzhk"])


class CreatedKey(ApiKey):
    """A new key: only this answer contains it."""

    key: str = Field(examples=["tsk_..."])


class KeyList(BaseModel):
    """Keys without their secrets, the oldest first."""

    items: list[ApiKey]


class ConsoleCode(BaseModel):
    """A code that opens the console once."""

    url: str = Field(examples=["http://127.0.0.1:8711/login#tsl_..."])
    code: str = Field(examples=["tsl_..."])
    good_for_s: int = Field(description="seconds")
