"""Mutants: each rule that keeps the log right, broken on purpose. They prove that the simulator would notice.

A mutant patches the running code for the time of a run; its scenario is the one that shows it soonest. `all_mutants`
loads the modules that fill the register. How many seeds each takes, and which no run can notice, is in
docs/correctness.md.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pkgutil import resolve_name
from types import CodeType
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A broken rule."""

    name: str
    rule: str  #: the broken rule, in one sentence
    patch: Callable[[], AbstractContextManager[None]]  #: in force while the context is open
    scenario: str = "usual"  #: the profile that shows it soonest


REGISTER: dict[str, Mutant] = {}


def register(text: str) -> Callable[[Callable[[], Iterator[None]]], None]:
    """Add the mutant "name (scenario): rule"; decorates a generator that patches, yields once, and puts back."""
    match = re.fullmatch(r"([a-z-]+) \((\w+)\): (.+)", text)
    if match is None:
        raise ValueError(f"not a name, a scenario and a rule: {text}")
    name, scenario, rule = match.groups()

    def add(patch: Callable[[], Iterator[None]]) -> None:
        if name in REGISTER:
            raise ValueError(f"two mutants are called {name}")
        REGISTER[name] = Mutant(name=name, rule=rule, patch=contextmanager(patch), scenario=scenario)

    return add


def broken(text: str, *places: tuple[Any, ...]) -> None:
    """Add a mutant that only changes functions. A place is ("module:function" or "module:Class.method", old text, new
    text, old text, ...), see `reworded`, or has the function that replaces it in the place of the texts."""

    @register(text)
    def patch() -> Iterator[None]:
        with ExitStack() as stack:
            for where, *change in places:
                module, _, path = where.partition(":")
                owner, _, name = path.rpartition(".")
                of: Any = resolve_name(f"{module}:{owner}") if owner else import_module(module)
                if len(change) == 1:
                    stack.enter_context(replaced(of, name, change[0]))
                else:
                    stack.enter_context(reworded(of, name, *zip(change[::2], change[1::2], strict=True)))
            yield


@contextmanager
def replaced(owner: object, name: str, value: Any) -> Iterator[None]:
    """An attribute of a class or module has another value."""
    before = inspect.getattr_static(owner, name)  # a class or static method as it is
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def reworded(owner: object, name: str, *changes: tuple[str, str]) -> Iterator[None]:
    """A function or method reads otherwise in these places: (text as it is, text instead). Each text occurs once in
    the source; ValueError when the code has changed and a mutant no longer fits it, or names what is not there."""
    function = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in changes:
        if source.count(old) != 1:
            raise ValueError(f"the mutant no longer fits {function.__qualname__}: {old!r}")
        source = source.replace(old, new)
    made: dict[str, Any] = {}
    code, module = compile(source, f"<mutant of {name}>", "exec"), vars(sys.modules[function.__module__])
    if unknown := _globals_of(code) - module.keys() - vars(builtins).keys() - {name}:
        raise ValueError(f"the mutant of {function.__qualname__} names what is not there: {sorted(unknown)}")
    exec(code, module, made)  # noqa: S102 - our own text
    with replaced(owner, name, made[name]):
        yield


def _globals_of(code: CodeType) -> set[str]:
    """The global names that code reads, and the functions inside of it."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    own = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return own.union(*map(_globals_of, inner))
