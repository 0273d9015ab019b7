"""Every column type under ADD, MODIFY and CHANGE COLUMN: rows written before and after, in every form that can be read.

Two runs are compared. In one the older rows lack the column; in the other the same rows hold what TiDB reads there (see
`tidb_columns`). A reader must not be able to tell them apart: not in any format, not in old values, not AS OF. That the
value itself is TiDB's is checked once, in NDJSON.

Each rule of defaults is broken once, and must be noticed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from reading.pages import arrow
from simulator.dst.mutants import reworded
from tests.kit import column_cases as cases
from tests.kit.column_cases import CASES, added_run, check_labels, check_shown, check_unknown_type, check_unusable
from tests.kit.column_run import ADD_COLUMN, FORMS, ColumnRun, Ddl
from tests.kit.tidb_columns import TYPES, column_info
from tistream.codec.row import columns, decode, defaults
from tistream.codec.row.layout import SET
from tistream.errors import NotConvertible, TiStreamError

UNUSABLE = {
    "json": (245, "{"),
    "int": (3, "abc"),
    "huge int": (3, "1e999999999"),
    "year": (13, "1900"),
    "date": (10, "CURRENT_DATE"),
    "decimal": (246, "NaN"),
    "float": (4, "inf"),
    "vector": (225, "[1, x]"),
    "enum": (247, "no label"),
    "list": (3, ["a"]),
    "unknown type": (99, "x"),
    "geometry": (255, "x"),
}


@pytest.fixture(scope="module")
def lacking() -> ColumnRun:
    return ColumnRun([cases.added_run(cases.CASES, "t", lacking=True)])


@pytest.fixture(scope="module")
def holding() -> ColumnRun:
    return ColumnRun([cases.added_run(cases.CASES, "t", lacking=False)])


def test_rows_written_before_show_what_tidb_reads(lacking: ColumnRun) -> None:
    cases.check_shown(lacking)


@pytest.mark.parametrize(("form", "options"), FORMS, ids=str)
def test_defaults_look_like_values(lacking: ColumnRun, holding: ColumnRun, form: str, options: dict[str, str]) -> None:
    ours, theirs = (run.lines(form, options).split(b"\n") for run in (lacking, holding))
    assert len(ours) > 9
    for a, b in zip(ours, theirs, strict=True):
        assert a == b


def test_neither_does_arrow(lacking: ColumnRun, holding: ColumnRun) -> None:
    lacking_rows, expected = lacking.native("t"), holding.native("t")
    assert len(lacking_rows) == 11
    for ours, theirs in zip(lacking_rows, expected, strict=True):
        for name, value in ours.items():
            assert value == theirs[name], (name, ours["_commit_ts"])


@pytest.mark.parametrize("ts", [cases.ADDED, 350, 500])
def test_nor_a_table_as_of_a_timestamp(lacking: ColumnRun, holding: ColumnRun, ts: int) -> None:
    for (form, ours), (_, theirs) in zip(lacking.written("t", ts), holding.written("t", ts), strict=True):
        assert ours == theirs, form


# ---- MODIFY COLUMN that gives the column a new id


def test_columns_that_change_their_type() -> None:
    lacking, holding = (ColumnRun([cases.modified_run(cases.PAIRS, "t", lacking=how)]) for how in (True, False))
    for form, options in FORMS:
        assert lacking.lines(form, options) == holding.lines(form, options)
    assert lacking.native("t") == holding.native("t")
    for event in lacking.events():
        if event["type"] == "ddl" or int(event["commit_ts"]) <= cases.ADDED:
            continue
        which = 0 if int(event["commit_ts"]) <= cases.CHANGED else 1
        for image in (event["columns"], event["old"]):
            for name, pair in cases.PAIRS.items() if image is not None else ():
                assert image[name] == cases.first(pair[which]).shown, (pair, event["commit_ts"])


def test_a_default_is_converted_as_the_value_is_as_of_a_timestamp() -> None:
    """A row that was not written since has what became of the old column's value, or is refused when that is not
    certain: whether its value is a default or stored."""
    tables = {f"t{n}": {"c": pair} for n, pair in enumerate(cases.PAIRS.values())}
    lacking, holding = (
        ColumnRun([cases.modified_run(pair, name, lacking=how) for name, pair in tables.items()])
        for how in (True, False)
    )
    converted = 0
    for name, pair in tables.items():
        default = as_of(lacking, name)
        assert default == as_of(holding, name), pair
        converted += default is not None
    assert converted > len(cases.PAIRS) // 4


def as_of(run: ColumnRun, name: str) -> pa.RecordBatch | None:
    """None where it is not certain what became of the row that was not written since."""
    try:
        return run.as_of(name, 500)[1]
    except NotConvertible:
        return None


@pytest.mark.parametrize("tp", [247, 248], ids=["ENUM", "SET"])
def test_a_value_means_the_labels_of_its_own_version(tp: int) -> None:
    cases.check_labels(tp)


# ---- what cannot be used


@pytest.mark.parametrize("name", UNUSABLE)
def test_an_unusable_origin_default_fails_the_rows_that_lack_the_column(name: str) -> None:
    cases.check_unusable(name, *UNUSABLE[name])


def test_a_type_that_is_not_known_fails_the_rows_that_hold_a_value_of_it() -> None:
    cases.check_unknown_type()


def test_two_columns_of_one_id_fail_the_rows_of_their_table() -> None:
    table = cases.unusable_run("twice", 3, None)
    twin = column_info(TYPES[0], cases.FIRST, "e", 2)
    table.ddls[0] = Ddl(commit_ts=cases.ADDED, type=ADD_COLUMN, columns=(*table.ddls[0].columns, twin))
    cases.check_isolated(ColumnRun([table, cases.OTHER]), "twice", {300, 310, 320, 330})


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
        "_joined",
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


@pytest.fixture
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


@pytest.mark.usefixtures("fresh_plans")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_rule_is_noticed(mutant: str) -> None:
    with reworded(*MUTANTS[mutant]):
        assert noticed()


@pytest.mark.usefixtures("fresh_plans")
def test_the_rules_as_they_are_pass() -> None:
    assert not noticed()
