"""Hints name what their reader can type: options on the command line, parameters and headers in the API."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from tests.kit.command_tree import commands
from tistream.cli.main import HINTS, hint_of
from tistream.errors import NotFound, TiStreamError
from tistream.http.error_reference import known_errors
from tistream.http.problem import problem_body

_OF_THE_API = re.compile(
    r"\b(start_ts|end_ts|wait|as_of|snapshot|columns)=|, as start_ts|with start_ts|Bearer|Idempotency-Key|TiStream-|"
    r"\b(GET|POST|PUT|PATCH|DELETE) /|RateLimit|Retry-After|ETag"
)
# Some define errors.
for name in ("apiserver.app", "pusher.control", "apiserver.control.routers", "tistream.cli.tenant", "tistream.client"):
    import_module(name)
#: of the service; a client that finds none speaks of options
ERRORS = [error for error in known_errors().values() if not error.__module__.startswith("tistream.client")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code)
def test_a_hint_speaks_to_its_reader(error: type[TiStreamError]) -> None:
    shown = hint_of(error("no"))
    assert not _OF_THE_API.search(shown), "in the words of the API"
    assert not re.search(r"(?<!\w)--[a-z]", error.hint), "the API has no options"


def test_what_the_api_says_of_something_that_is_not_there_becomes_a_command() -> None:
    error = NotFound("There is no tenant 7/1.")
    error.hint = str(problem_body(error)["hint"])  # as a client gets it
    assert _OF_THE_API.search(error.hint)
    assert not _OF_THE_API.search(hint_of(error))


def test_the_hints_name_options_that_there_are() -> None:
    named = {option for hint in HINTS.values() for option in re.findall(r"--[a-z-]+", hint)}
    assert len(named) > 5
    assert named <= {opt for command in commands().values() for option in command.params for opt in option.opts}


def test_every_hint_of_the_command_line_is_needed() -> None:
    hints = {error.code: error.hint for error in ERRORS}
    assert [code for code in HINTS if not _OF_THE_API.search(hints[code])] == []


def test_a_pattern_in_the_place_of_a_name_is_told_the_option() -> None:
    for facts in ({"database": "rec", "table": "*"}, {"database": "re?"}):
        assert "--tables" in hint_of(NotFound("there is no such table", **facts))
    assert "--tables" not in hint_of(NotFound("there is no such table", database="rec", table="t"))
