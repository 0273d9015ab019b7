"""Every command of the tree keeps the same rules: its group, its one line, its options."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from tistream.cli import main as cli

LINE_CHARS_MAX = 96
VERBS = {
    *("Change", "Cut", "Leave", "Try"),
    *("Add", "Ask", "Back", "Cancel", "Check", "Compare", "Compile", "Create", "Decide", "Delete", "Drain", "Estimate"),
    *(
        "Explain",
        "Get",
        "Give",
        "List",
        "Look",
        "Mark",
        "Merge",
        "Move",
        "Pause",
        "Play",
        "Pull",
        "Push",
        "Read",
        "Register",
    ),
    *(
        "Remember",
        "Remove",
        "Replace",
        "Replay",
        "Restore",
        "Resume",
        "Retry",
        "Revoke",
        "Run",
        "Show",
        "Split",
        "Write",
    ),
}


def commands(words: str = "tistream", at: Any = None) -> Iterator[tuple[str, Any]]:
    """(words, command) of all commands and groups below the root."""
    at = at or get_command(cli.command_line())
    for name, command in getattr(at, "commands", {}).items():
        yield f"{words} {name}", command
        yield from commands(f"{words} {name}", command)


TREE = dict(commands())


@pytest.mark.parametrize("words", TREE)
def test_the_first_line_of_a_commands_help_is_one_sentence_that_says_what_to_do(words: str) -> None:
    line, *rest = inspect.cleandoc(TREE[words].help).split("\n")
    assert len(line) <= LINE_CHARS_MAX
    assert line.endswith(".")
    assert line.split()[0].rstrip(",") in VERBS
    assert not rest or not rest[0], "details follow behind an empty line"


def test_no_commands_line_repeats_that_of_another() -> None:
    lines = Counter(inspect.cleandoc(command.help).split("\n")[0] for command in TREE.values())
    assert not {line for line, times in lines.items() if times > 1}


def test_the_top_lists_its_commands_in_groups() -> None:
    shown = CliRunner().invoke(cli.command_line(), ["--help"], env={"COLUMNS": "120"}).output
    words = [line.split()[1] for line in shown.splitlines() if line.startswith("│ ") and line[2:3].islower()]
    panels = [line.strip("╭╮─ ") for line in shown.splitlines() if line.startswith("╭")]
    assert panels == ["Options", *cli.PANELS]
    assert [word for word in words if word in cli.COMMANDS] == list(cli.COMMANDS)
