"""What regular expressions weigh, and that matching ends when its time is used up."""

from __future__ import annotations

import time

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from reading.filters.core.regexes import WEIGHT_MAX, Allowance, Price, allowed, found, weight
from tistream.errors import FilterInvalid


@pytest.mark.parametrize(
    ("regex", "least"),
    [
        ("abc", 3), ("a{100}", 100), ("(a{10}){10}", 100), ("(a{0,10}b){5,}", 50), ("((x{30}){30}){2}", 1800),
        (r"\pL{10}", 400), (r"[\pL\pN]{10}", 800), (r"\p{Greek}{9}", 360), (r"(\pL\pN?){0,18}", 1400),
        ("(" * 50, 0), (")" * 50, 50), ("[", 1), ("a{", 2), ("\\", 1), (r"[^]\]]{9}", 50), ("a{0}", 1), ("", 0),
    ],
)  # fmt: skip
def test_repetitions_count_as_often_as_they_repeat(regex: str, least: int) -> None:
    assert least <= weight(regex) <= 2 * least + 10


@pytest.mark.parametrize(
    "regex", [r"\pL{%d}", r"(\pL\pN?){0,%d}", "(a{0,9}b|c){0,%d}", "[a-z]{%d}", r"[^\pL]{%d}", ".{0,%d}", "(x|é){%d}"]
)
def test_what_is_allowed_compiles_in_a_moment(regex: str) -> None:
    times = next(n for n in range(900, 0, -1) if weight(regex % n) <= WEIGHT_MAX)
    began = time.thread_time()
    pc.match_substring_regex(pa.array(["x"]), regex % times, ignore_case=True)
    assert time.thread_time() - began < 0.5


def test_all_expressions_of_a_request_count() -> None:
    price = Price()
    assert not any(price.refusal("x{1000}") for _ in range(3))
    assert "expressions of a request" in price.refusal("x{1000}")
    assert "too large" in Price().refusal(r"(\pL\pN?){0,100}")


@pytest.mark.parametrize("values", [["ab" * 500] * 2000, ["ab" * 1_000_000]], ids=["many", "one"])
def test_matching_ends_when_its_time_is_used_up(values: list[str]) -> None:
    began = time.thread_time()
    with allowed(Allowance(time.thread_time, 0.1)), pytest.raises(FilterInvalid, match="too much time"):
        found(pa.array(values), "(a|b).{900}z")
    assert time.thread_time() - began < 2


def test_slices_find_what_one_call_finds() -> None:
    values = pa.array([None if n % 7 == 0 else f"{n}" * (n % 50) for n in range(20_000)])
    regex = "9{2}$|1.{0,400}2"
    with allowed(Allowance(time.thread_time, 60)) as allowance:
        matches = found(values, regex)
    assert matches.tolist() == pc.match_substring_regex(values, regex).fill_null(False).to_pylist()
    assert allowance.spent_s > 0
