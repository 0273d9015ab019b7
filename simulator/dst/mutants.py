"""Each rule that keeps the log right, broken on purpose: what proves that the simulator would notice.

A mutant patches the running code for the time of a run; its scenario is the one that shows it soonest. Here is the
register; `all_mutants` loads the modules that fill it. How many seeds each of them took, and which cannot be
noticed and why, is in docs/correctness.md.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A broken rule."""

    name: str
    rule: str  #: what is broken, in one sentence
    patch: Callable[[], AbstractContextManager[None]]  #: in force while the context is open
    scenario: str = "usual"  #: the profile that shows it soonest


REGISTER: dict[str, Mutant] = {}


def register(name: str, rule: str, scenario: str = "usual") -> Callable[[Callable[[], Iterator[None]]], None]:
    """Add a mutant; decorates a generator that patches, yields once, and puts back."""

    def add(patch: Callable[[], Iterator[None]]) -> None:
        if name in REGISTER:
            raise ValueError(f"two mutants are called {name}")
        REGISTER[name] = Mutant(name=name, rule=rule, patch=contextmanager(patch), scenario=scenario)

    return add


@contextmanager
def replaced(owner: object, name: str, value: Any) -> Iterator[None]:
    """An attribute of a class or module has another value."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def reworded(owner: object, name: str, *changes: tuple[str, str]) -> Iterator[None]:
    """A function or method reads otherwise in these places: (text as it is, text instead). Each text occurs once in
    the source; ValueError when the code has changed and a mutant no longer fits it."""
    function = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in changes:
        if source.count(old) != 1:
            raise ValueError(f"the mutant no longer fits {function.__qualname__}: {old!r}")
        source = source.replace(old, new)
    made: dict[str, Any] = {}
    exec(compile(source, f"<mutant of {name}>", "exec"), vars(sys.modules[function.__module__]), made)  # noqa: S102 - our own text
    with replaced(owner, name, made[name]):
        yield
