"""The minute of an opened root, for any order of use, answers and time."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tistream.sealing.core.lifetimes import ROOT_LIFE_S, ROOT_PAUSE_MAX_S, ROOT_REFRESH_S, RootLife

STEPS = st.lists(
    st.tuples(st.sampled_from(("use", "ask", "grant", "refuse", "fail", "forget")), st.floats(0.0, 70.0)), max_size=60
)


@given(steps=STEPS)
@example(steps=[("ask", 0.0), ("grant", 5.0), ("use", 56.0)])  # the shortest for each mutant below
@example(steps=[("ask", 0.0), ("ask", 1.0)])
@example(steps=[("ask", 0.0), ("forget", 1.0), ("grant", 1.0)])
def test_a_root_is_never_open_a_minute_after_the_request_that_was_granted(steps: list[tuple[str, float]]) -> None:
    life, now_s = RootLife(), 0.0
    granted_s, asked_s, used_s = None, None, None  # what a caller knows by itself
    is_void = False
    for step, passed_s in steps:
        now_s += passed_s
        match step:
            case "use":
                used_s = now_s
                life.use(now_s)
            case "ask" if life.may_ask(now_s):
                assert asked_s is None, "two requests at a time"
                asked_s, is_void = now_s, False
                life.ask(now_s)
            case "grant" if asked_s is not None:
                granted_s, asked_s = None if is_void else asked_s, None
                life.grant()
            case "refuse" if asked_s is not None:
                granted_s, asked_s = None, None
                life.refuse(now_s)
            case "fail" if asked_s is not None:
                asked_s = None
                life.fail(now_s)
            case "forget":
                granted_s, is_void = None, True
                life.forget()
        if used_s is None or now_s - used_s >= 60.0:
            assert not life.wants_refresh(now_s), "an idle root is asked for"
        assert life.is_open(now_s) == (granted_s is not None and now_s - granted_s < 60.0)
        assert life.retry_s <= now_s + ROOT_PAUSE_MAX_S


def granted(at_s: float = 0.0) -> RootLife:
    life = RootLife()
    life.use(at_s)
    life.ask(at_s)
    life.grant()
    return life


def test_a_root_in_use_is_asked_for_again_before_its_end() -> None:
    life = granted()
    life.use(10.0)
    assert not life.wants_refresh(ROOT_REFRESH_S - 0.1)
    assert life.wants_refresh(ROOT_REFRESH_S)
    life.ask(ROOT_REFRESH_S)
    assert not life.wants_refresh(ROOT_REFRESH_S + 1)
    life.grant()
    assert life.is_open(ROOT_REFRESH_S + ROOT_LIFE_S - 0.1)


def test_an_idle_root_is_not_asked_for() -> None:
    life = granted()
    assert not any(life.wants_refresh(second) for second in range(1000))
    assert life.is_idle(ROOT_LIFE_S)
    assert not RootLife().wants_refresh(1.0)


def test_pauses_grow_after_refusals_and_end_with_a_grant() -> None:
    life, now_s, pauses = granted(), 50.0, []
    for _ in range(7):
        life.use(now_s)
        life.ask(now_s)
        life.refuse(now_s)
        assert not life.is_open(now_s)
        pauses.append(life.retry_s - now_s)
        now_s = life.retry_s
        assert life.wants_refresh(now_s)
    assert pauses == [1, 2, 4, 8, 15, 15, 15]
    assert life.refused_s == 50.0
    life.ask(now_s)
    life.grant()
    assert life.failures == 0
    assert not life.refused_s
    assert life.is_open(now_s)


def test_a_kms_that_is_away_ends_no_minute_early() -> None:
    life = granted()
    life.use(46.0)
    life.ask(46.0)
    life.fail(50.0)
    assert life.is_open(59.9)
    assert not life.is_open(60.0)
    assert life.refused_s is None


@pytest.mark.parametrize("mutant", ["from the answer", "never expires", "two at a time", "forgotten"])
def test_a_broken_rule_is_noticed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def grant_late(self: RootLife) -> None:
        self.granted_s, self.asked_s = None if self.asked_s is None else self.asked_s + 5.0, None
        self.failures, self.retry_s, self.refused_s = 0, 0.0, None

    name, broken = {
        "from the answer": ("grant", grant_late),
        "never expires": ("is_open", lambda self, now_s: self.granted_s is not None),
        "forgotten": ("forget", lambda self: setattr(self, "granted_s", None)),
        "two at a time": ("may_ask", lambda self, now_s: now_s >= self.retry_s),
    }[mutant]
    monkeypatch.setattr(RootLife, name, broken)
    with pytest.raises(AssertionError):
        test_a_root_is_never_open_a_minute_after_the_request_that_was_granted()
