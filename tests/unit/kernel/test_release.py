"""Release numbers: their order, their form in the catalog, and which releases run beside one."""

from __future__ import annotations

import pytest

from tistream.errors import InvalidInput
from tistream.release import Release


@pytest.mark.parametrize(
    ("text", "release", "number"),
    [
        ("0.1.0", Release(0, 1, 0), 1_000),
        ("0.2.1", Release(0, 2, 1), 2_001),
        ("12.34.56", Release(12, 34, 56), 12_034_056),
        ("0.2.0.dev0", Release(0, 2, 0), 2_000),
        ("0.2.0rc1", Release(0, 2, 0), 2_000),
    ],
)
def test_a_version_is_a_number_in_the_catalog(text: str, release: Release, number: int) -> None:
    assert Release.parse(text) == release == Release.of_number(number)
    assert release.number == number


def test_releases_are_ordered_as_numbers_not_as_texts() -> None:
    assert Release.parse("0.9.0") < Release.parse("0.10.0") < Release.parse("0.10.1") < Release.parse("1.0.0")


@pytest.mark.parametrize("text", ["", "1", "1.2", "a.b.c", "v1.2.3", "1.2.3456"])
def test_what_is_no_release(text: str) -> None:
    with pytest.raises(InvalidInput):
        Release.parse(text)


@pytest.mark.parametrize(
    ("release", "lowest"),
    [
        ("0.2.0", "0.1.0"),
        ("0.2.7", "0.1.0"),
        ("0.1.3", "0.0.0"),
        ("3.1.0", "3.0.0"),
        ("1.0.0", "0.0.0"),
        ("0.0.1", "0.0.0"),
    ],
)
def test_the_minor_version_before_runs_beside_it(release: str, lowest: str) -> None:
    assert str(Release.parse(release).neighbour) == lowest
