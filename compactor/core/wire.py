"""Plan rows and results as JSON, the form in which they travel between driver and workers. Bytes are in hex."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import ConfigDict, TypeAdapter
from pydantic_core import to_json


def encode(value: object) -> str:
    """A dataclass as text."""
    return to_json(value, bytes_mode="hex").decode()


def decode(types: Any, text: str) -> Any:
    """What `encode` made of a value of this type, or of one of a union. ValidationError when it is not one."""
    return _adapter(types).validate_json(f"[{text}]")[0]


@cache
def _adapter(types: Any) -> TypeAdapter[list[Any]]:
    return TypeAdapter(list[types], config=ConfigDict(val_json_bytes="hex"))  # a dataclass alone takes no config
