"""The command line as tests see it: every group and command with its words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from tistream.cli.main import command_line


def tree(words: str = "", at: Any = None) -> Iterator[tuple[str, Any]]:
    """(words, group or command) of all below the root."""
    for name, inner in getattr(at or get_command(command_line()), "commands", {}).items():
        yield f"{words} {name}".strip(), inner
        yield from tree(f"{words} {name}", inner)


def commands() -> dict[str, Any]:
    """The commands by their words, without groups."""
    return {words: command for words, command in tree() if not hasattr(command, "commands")}
