"""Evidence that the comparison of column types under DDL checks something: each rule of defaults is broken once, and
must be noticed."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from reading import arrow
from tests.kit.column_cases import CASES, added_run, check_labels, check_shown, check_unknown_type, check_unusable
from tests.kit.column_run import ColumnRun
from tistream.codec.row import columns, decode, defaults
from tistream.codec.row.layout import SET
from tistream.errors import TiStreamError


@dataclass(frozen=True, kw_only=True)
class Mutant:
    name: str
    module: ModuleType
    function: str
    old: str
    new: str
    used_by: ModuleType | None = None  #: another module that has the function by name


MUTANTS = [
    Mutant(
        name="JSON has no default",
        module=defaults,
        function="_encode",
        old="return binary_json(json.loads(shown, parse_int=_json_integer, parse_constant=_not_json))",
        new='raise ValueError("JSON columns have no literal defaults")',
    ),
    Mutant(name="an unusable default raises", module=decode, function="_default", old="return _UNUSABLE", new="raise"),
    Mutant(
        name="an unusable default is NULL",
        module=decode,
        function="_complete",
        old="if c in plan.unusable:",
        new="if c < 0:",
    ),
    Mutant(
        name="an unusable default fails every row",
        module=decode,
        function="_complete",
        old="np.flatnonzero(missing), UNUSABLE_DEFAULT",
        new="np.arange(len(missing)), UNUSABLE_DEFAULT",
    ),
    Mutant(
        name="a YEAR is what the text says",
        module=defaults,
        function="_year",
        old="if 0 <= year <= 99:",
        new="if year < 0:",
    ),
    Mutant(name="the text 0 is the zero year", module=defaults, function="_year", old="len(shown) == 4", new="True"),
    Mutant(name="a CHAR keeps its spaces", module=defaults, function="_encode", old='shown.rstrip(" ")', new="shown"),
    Mutant(
        name="a BINARY is not filled up",
        module=defaults,
        function="_padded",
        old="column.flen > 0",
        new="column.flen < 0",
    ),
    Mutant(name="the zero value is NULL", module=defaults, function="_zero", old="bytes(8)", new="None"),
    Mutant(
        name="BIT comes from the damaged text",
        module=defaults,
        function="stored_default",
        old="column.origin_default_bit is not None",
        new="False",
        used_by=decode,
    ),
    Mutant(
        name="DOUBLE(m,d) is not rounded",
        module=defaults,
        function="_float",
        old="column.flen < 0",
        new="True",
    ),
    Mutant(
        name="the labels of the page's first version count for all",
        module=arrow,
        function="_columns",
        old="versions = [row_layout(c.table).columns for c in changes]",
        new="versions = [row_layout(changes[0].table).columns for c in changes]",
    ),
    Mutant(
        name="a value of an unknown type is NULL",
        module=columns,
        function="column_of",
        old="refuse(cells.fault, cells.length, np.flatnonzero(cells.length[c] >= 0), kernel.UNKNOWN_TYPE, c)",
        new="pass",
    ),
]


@pytest.fixture(autouse=True)
def fresh_plans() -> Iterator[None]:
    decode._plan.cache_clear()
    yield
    decode._plan.cache_clear()


def broken(mutant: Mutant) -> Any:
    """The function with one piece of its text replaced."""
    source = textwrap.dedent(inspect.getsource(getattr(mutant.module, mutant.function)))
    assert source.count(mutant.old) == 1, f"the mutant no longer fits {mutant.function}"
    space: dict[str, Any] = {}
    exec(source.replace(mutant.old, mutant.new), vars(mutant.module), space)  # the very point of a mutant
    return space[mutant.function]


def noticed() -> bool:
    """Whether one of the comparisons goes wrong."""
    try:
        check_shown(ColumnRun([added_run(CASES, "t", lacking=True)]))
        check_labels(SET)
        check_unknown_type()
        check_unusable("int", 3, "abc")
    except (AssertionError, TiStreamError):
        return True
    return False


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_broken_rule_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutant.used_by or mutant.module, mutant.function, broken(mutant))
    assert noticed()


def test_the_rules_as_they_are_pass() -> None:
    assert not noticed()
