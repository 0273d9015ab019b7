from __future__ import annotations

from typing import Any

import pytest

from sorter.core.conflict_rule import Candidate, choose

PUT, DELETE, NONE = 1, 2, 0


def prewrite(
    value: bytes | None,
    *,
    subscription: int = 1,
    open_ts: int = 10,
    ready_ts: int = 20,
    row_no: int = 0,
    generation: int = 0,
    old_value: bytes | None = None,
) -> Candidate:
    return Candidate(
        op=DELETE if value is None else PUT,
        value=value,
        old_value=old_value,
        expire_ts=0,
        flags=0,
        generation=generation,
        subscription=(subscription,),
        open_ts=open_ts,
        ready_ts=ready_ts,
        row_no=row_no,
    )


EARLY: dict[str, Any] = {"subscription": 1, "open_ts": 10, "ready_ts": 20}
MIDDLE: dict[str, Any] = {"subscription": 2, "open_ts": 15, "ready_ts": 25}  # overlaps both
LATE: dict[str, Any] = {"subscription": 3, "open_ts": 21, "ready_ts": 30}
NEVER_READY: dict[str, Any] = {"subscription": 4, "open_ts": 5, "ready_ts": 0}


@pytest.mark.parametrize(
    ("candidates", "commit_value", "won"),
    [
        ([prewrite(b"a")], None, b"a"),
        ([prewrite(b"a", row_no=2), prewrite(b"b", row_no=1)], None, b"a"),
        ([prewrite(b"a", **EARLY), prewrite(b"b", **LATE)], None, b"b"),
        ([prewrite(b"b", **LATE), prewrite(b"a", **EARLY, row_no=9)], None, b"b"),
        ([prewrite(b"a", **EARLY), prewrite(b"b", **MIDDLE)], None, None),
        ([prewrite(b"a", **EARLY), prewrite(b"b", **MIDDLE)], b"b", b"b"),
        ([prewrite(b"a", **EARLY), prewrite(b"b", **MIDDLE)], b"c", b"c"),
        ([prewrite(b"a", **EARLY), prewrite(b"a", **MIDDLE)], None, b"a"),
        ([prewrite(b"a", **EARLY), prewrite(b"b", **MIDDLE), prewrite(b"a", **LATE)], None, None),
        ([prewrite(b"a", **EARLY), prewrite(b"a", **MIDDLE), prewrite(b"b", **LATE)], None, None),
        ([prewrite(b"a", **NEVER_READY), prewrite(b"b", **LATE)], None, None),
        ([prewrite(b"a", **EARLY), prewrite(b"b", subscription=5, open_ts=21, ready_ts=0)], None, b"b"),
        (
            [
                prewrite(b"a", subscription=1, open_ts=10, ready_ts=20),
                prewrite(b"b", subscription=2, open_ts=20, ready_ts=22),
            ],
            None,
            None,
        ),
        ([prewrite(b"a", generation=2), prewrite(b"b", **LATE, generation=1)], None, b"a"),
        ([prewrite(b"", row_no=5), prewrite(b"a", row_no=1)], None, b"a"),
        ([prewrite(b"", **LATE), prewrite(b"a", **EARLY)], None, b"a"),
        ([prewrite(b"", generation=3), prewrite(b"a", generation=1)], None, b"a"),
        ([prewrite(b"")], None, b""),
        ([prewrite(b"")], b"short", b"short"),
        ([], None, None),
        ([], b"short", None),
    ],
)
def test_the_rules_in_their_order(candidates: list[Candidate], commit_value: bytes | None, won: bytes | None) -> None:
    choice = choose(candidates, PUT, commit_value)
    assert (None if choice is None else choice.value) == won


def test_a_prewrite_with_another_op_than_the_commit_cannot_be_the_one() -> None:
    both = [prewrite(None, row_no=1), prewrite(b"a", row_no=2)]
    deleted, put = choose(both, DELETE, None), choose(both, PUT, None)
    assert deleted is not None
    assert deleted.op == DELETE
    assert put is not None
    assert put.value == b"a"
    assert choose(both[:1], PUT, None) is None
    assert choose(both[:1], NONE, None) == both[0]


def test_a_fake_put_does_not_replace_a_delete_when_the_commit_does_not_say() -> None:
    won = choose([prewrite(None, row_no=1), prewrite(b"", row_no=2)], NONE, None)
    assert won is not None
    assert won.op == DELETE


def test_the_old_value_belongs_to_the_chosen_prewrite() -> None:
    won = choose([prewrite(b"a", **EARLY, old_value=b"x"), prewrite(b"b", **MIDDLE, old_value=b"y")], PUT, b"b")
    assert won is not None
    assert won.old_value == b"y"


def test_a_commits_value_that_no_prewrite_has_is_no_help_when_their_old_values_differ() -> None:
    candidates = [prewrite(b"a", **EARLY, old_value=b"x"), prewrite(b"b", **MIDDLE, old_value=b"y")]
    assert choose(candidates, PUT, b"c") is None
