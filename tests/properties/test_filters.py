"""Random schemas, changes and filters: what passes is what a slow reference lets pass after a full pull."""

from __future__ import annotations

from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.filter_cases import check

QUIET = settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@QUIET
@given(rand=st.randoms(use_true_random=False))
def test_a_filter_lets_pass_what_the_reference_lets_pass(rand: Random) -> None:
    check(rand)
