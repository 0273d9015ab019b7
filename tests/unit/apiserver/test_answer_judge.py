"""The judge of answers refuses each way in which an answer may differ from its model."""

from __future__ import annotations

import pytest

from tests.kit.answer_judge import AnswerJudge


@pytest.mark.parametrize(
    ("operation", "status", "content", "words"),
    [
        ("version", 200, b'{"version": "1", "more": 1}', "'more' was unexpected"),
        ("version", 200, b"{}", "'version' is a required property"),
        ("version", 200, b'{"version": null}', "None is not of type 'string'"),
        ("livez", 200, b'{"status": "fine"}', "'ok' was expected"),
        (
            "get_owner",
            200,
            b'{"owner": null, "epoch": 0, "heartbeat_age_s": "1", "alive": true}',
            "not valid under any",
        ),
        ("leave_consumer", 200, b'{"consumer_id": "w", "member": "a", "left": true}', "'left' was unexpected"),
        ("version", 206, b'{"version": "1"}', "no model"),
    ],
)
def test_an_answer_that_is_not_as_described_is_refused(operation: str, status: int, content: bytes, words: str) -> None:
    judge = AnswerJudge()
    with pytest.raises(AssertionError, match=words):
        judge.look(operation, status, content)
    with pytest.raises(AssertionError, match=operation):
        judge.check()


def test_an_answer_as_described_is_let_through() -> None:
    judge = AnswerJudge()
    judge.look("version", 200, b'{"version": "1"}')
    judge.check()
    assert judge.seen == {"version"}
