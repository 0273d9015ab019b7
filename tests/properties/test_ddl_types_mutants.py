"""Evidence that the comparison of column types under DDL checks something: each rule of defaults is broken once, and
must be noticed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from reading import arrow
from simulator.dst.mutants import reworded
from tests.kit.column_cases import CASES, added_run, check_labels, check_shown, check_unknown_type, check_unusable
from tests.kit.column_run import ColumnRun
from tistream.codec.row import columns, decode, defaults
from tistream.codec.row.layout import SET
from tistream.errors import TiStreamError

#: Name -> the owner of a function, its name, and (text as it is, text instead).
MUTANTS: dict[str, tuple[Any, str, *tuple[tuple[str, str], ...]]] = {
    "JSON has no default": (
        defaults,
        "_encode",
        (
            "return binary_json(json.loads(shown, parse_int=_json_integer, parse_constant=_not_json))",
            'raise ValueError("JSON columns have no literal defaults")',
        ),
    ),
    "an unusable default raises": (decode, "_default", ("return _UNUSABLE", "raise")),
    "an unusable default is NULL": (decode, "_complete", ("if c in plan.unusable:", "if c < 0:")),
    "an unusable default fails every row": (
        decode,
        "_complete",
        ("np.flatnonzero(missing), UNUSABLE_DEFAULT", "np.arange(len(missing)), UNUSABLE_DEFAULT"),
    ),
    "a YEAR is what the text says": (defaults, "_year", ("if 0 <= year <= 99:", "if year < 0:")),
    "the text 0 is the zero year": (defaults, "_year", ("len(shown) == 4", "True")),
    "a CHAR keeps its spaces": (defaults, "_encode", ('shown.rstrip(" ")', "shown")),
    "a BINARY is not filled up": (defaults, "_padded", ("column.flen > 0", "column.flen < 0")),
    "the zero value is NULL": (defaults, "_zero", ("bytes(8)", "None")),
    "BIT comes from the damaged text": (decode, "stored_default", ("column.origin_default_bit is not None", "False")),
    "DOUBLE(m,d) is not rounded": (defaults, "_float", ("column.flen < 0", "True")),
    "the labels of the page's first version count for all": (
        arrow,
        "decoded_rows",
        (
            "versions = [row_layout(c.table).columns for c in changes]",
            "versions = [row_layout(changes[0].table).columns for c in changes]",
        ),
    ),
    "a value of an unknown type is NULL": (
        columns,
        "column_of",
        ("refuse(cells.fault, cells.length, np.flatnonzero(cells.length[c] >= 0), kernel.UNKNOWN_TYPE, c)", "pass"),
    ),
}


@pytest.fixture(autouse=True)
def fresh_plans() -> Iterator[None]:
    decode._plan.cache_clear()
    yield
    decode._plan.cache_clear()


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


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_rule_is_noticed(mutant: str) -> None:
    with reworded(*MUTANTS[mutant]):
        assert noticed()


def test_the_rules_as_they_are_pass() -> None:
    assert not noticed()
