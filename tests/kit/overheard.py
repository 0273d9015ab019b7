"""Calls that a test listens to: they are made as before, and the positional arguments of each are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def overheard(real: Callable[P, T], calls: list[Any]) -> Callable[P, T]:
    """`real`, which adds the positional arguments of each call to `calls` before it runs."""

    def listened(*args: P.args, **named: P.kwargs) -> T:
        calls.append(args)
        return real(*args, **named)

    return listened
