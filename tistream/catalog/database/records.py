"""Rows of tables as dataclasses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


def record_of(kind: Callable[..., T], row: Any, /, **converted: Any) -> T:
    """A `kind`: each field has the column of its name, or what is converted."""
    return kind(**{name: getattr(row, name) for name in _names(kind) if name not in converted}, **converted)


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))
