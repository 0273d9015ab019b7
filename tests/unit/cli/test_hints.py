"""Hints name what their reader can type: options on the command line, parameters and headers in the API."""

from __future__ import annotations

import re
from importlib import import_module

import pytest
import typer

from tistream.cli.hints import HINTS, hint_of
from tistream.cli.main import command_line
from tistream.errors import NotFound, TiStreamError
from tistream.http.error_reference import known_errors
from tistream.http.problem import problem_body

_OF_THE_API = re.compile(
    r"\b(start_ts|end_ts|wait|as_of|snapshot|columns)=|, as start_ts|with start_ts|Bearer|Idempotency-Key|TiStream-|"
    r"\b(GET|POST|PUT|PATCH|DELETE) /|RateLimit|Retry-After|ETag"
)
for module in ("apiserver.app", "pusher.control", "metaserver.routers", "tistream.cli.tenant"):  # some define errors
    import_module(module)
ERRORS = list(known_errors().values())


def options() -> set[str]:
    def walk(command: object) -> set[str]:
        found = {opt for option in command.params for opt in option.opts}  # type: ignore[attr-defined]
        return found.union(*(walk(inner) for inner in getattr(command, "commands", {}).values()))

    return walk(typer.main.get_command(command_line()))


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
    assert named <= options()


def test_every_hint_of_the_command_line_is_needed() -> None:
    known = {error.code: error.hint for error in ERRORS}
    assert [code for code in HINTS if not _OF_THE_API.search(known[code])] == []
