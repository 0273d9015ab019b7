"""Dataclasses as JSON, as they travel between processes. Bytes are in hex; unknown fields are ignored."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import ConfigDict, TypeAdapter
from pydantic_core import to_json


def encode(value: object) -> str:
    """A dataclass as text."""
    return to_json(value, bytes_mode="hex").decode()


def decode(types: Any, text: str) -> Any:
    """What `encode` made of a value of this type, or of one of a union. ValidationError (a ValueError) when it is
    not one."""
    return _adapter(types).validate_json(f"[{text}]")[0]


@cache
def _adapter(types: Any) -> TypeAdapter[list[Any]]:
    # a list, because a dataclass alone takes no config
    return TypeAdapter(list[types], config=ConfigDict(strict=True, val_json_bytes="hex"))
