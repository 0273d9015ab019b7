"""Which form an answer takes."""

from __future__ import annotations

import pytest

from apiserver.negotiate import NotAcceptable, choose
from tistream.errors import InvalidInput


@pytest.mark.parametrize(
    ("word", "accept", "chosen"),
    [
        (None, None, "json"),
        (None, "*/*", "json"),
        (None, "application/x-ndjson", "ndjson"),
        (None, "application/jsonl", "ndjson"),
        (None, "text/html, application/vnd.apache.arrow.stream;q=0.5", "arrow"),
        (None, "application/json;q=0.2, application/x-ndjson", "ndjson"),
        ("canal-json", "application/json", "canal-json"),
        (None, "application/vnd.tistream.canal+json", "canal-json"),
    ],
)
def test_choice(word: str | None, accept: str | None, chosen: str) -> None:
    assert choose(word, accept) == chosen


def test_unknown_format_suggests_the_nearest() -> None:
    with pytest.raises(InvalidInput, match="canal-json"):
        choose("canal_json", None)


@pytest.mark.parametrize("accept", ["image/png", "application/json;q=0", "text/html;q=x"])
def test_nothing_offered(accept: str) -> None:
    with pytest.raises(NotAcceptable) as e:
        choose(None, accept)
    assert "application/x-ndjson" in str(e.value.facts["offers"])
