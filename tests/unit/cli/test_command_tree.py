"""Every command of the tree keeps the same rules: its group, its one line, and options with one meaning everywhere."""

from __future__ import annotations

import inspect
import re
from collections import Counter, defaultdict
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.kit.command_tree import commands, tree
from tistream.cli import main as cli
from tistream.cli.main import command_line

LINE_CHARS_MAX = 96
VERBS = {
    *("Add", "Ask", "Back", "Cancel", "Change", "Check", "Compare", "Compile", "Create", "Cut", "Decide", "Delete"),
    *("Drain", "Estimate", "Explain", "Get", "Give", "Leave", "List", "Look", "Mark", "Merge", "Move", "Pause", "Play"),
    *("Pull", "Push", "Read", "Register", "Remember", "Remove", "Replace", "Replay", "Restore", "Resume", "Retry"),
    *("Revoke", "Run", "Show", "Split", "Try", "Write"),
}


TREE = dict(tree())


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


#: option -> the meaning that all its help texts name. An option with one help text everywhere needs no entry.
MEANINGS = {
    "--as-of": r"TSO",
    "--catalog": r"catalog",
    "--check": r"check",
    "--cluster": r"cluster",
    "--columns": r"columns",
    "--config": r"TOML",
    "--data": r"[Ff]older",
    "--follow": r"more|new (events|entries)",
    "--format": r"Form of the answer|(ndjson|sql).*csv",  # of what is written
    "--jobs": r"Jobs at once",
    "--key-format": r"hex",
    "--kind": r"kind|Only these",
    "--lanes": r"Parts",
    "--output": r"[Ff]ile",
    "--pd": r"addresses of its PD servers",
    "--rate": r"[Ss]teps of the .*workload per second",
    "--seed": r"[Ss]eed",  # of random numbers
    "--since": r"-15m",
    "--speed": r"N times real time, or max",
    "--start-ts": r"TSO",
    "--stores": r"stores",
    "--tenant": r"tenant|Tenant id",
    "--timeout": r"[Ss]econds",
    "--to": r"time",
    "--until": r"time",
    "--wait": r"Wait until",
}
SHORT = {
    "-c": "--cluster", "-t": "--tenant", "-o": "--output", "-f": "--follow", "-d": "--data", "-n": "--limit",
    "-p": "--port", "-r": "--role", "-O": "--option", "-V": "--version", "-s": "--storage",
}  # fmt: skip
#: commands without --json, and why
NO_JSON = {
    **dict.fromkeys(
        ("serve", "meta", "dispatch", "sort", "maintain", "replicate", "spark", "up"), "a service; it prints no data"
    ),
    **dict.fromkeys(("demo", "chaos", "sim"), "a run that is watched"),
    **dict.fromkeys(
        ("compile", "seed", "login", "changefeed remove", "consumer remove", "catalog confirm"),
        "it does something, and says that it is done",
    ),
    **dict.fromkeys(("pull", "snapshot"), "rows; NDJSON is a --format of them"),
    "restore": "it writes files",
    "key owner": "a new secret, which is shown once",
}


ALL = commands()
OPTIONS = [(name, option) for name, command in ALL.items() for option in command.params if option.opts[0][0] == "-"]


def two_meanings(options: list[tuple[str, Any]]) -> list[str]:
    """What is wrong, one line for each option."""
    helps: dict[str, set[str]] = defaultdict(set)
    faults = []
    for name, option in options:
        long = next(opt for opt in option.opts if opt.startswith("--"))
        helps[long].add(option.help or "")
        for short in (opt for opt in option.opts if not opt.startswith("--")):
            if SHORT.get(short) != long:
                faults.append(f"{name}: {short} is {long}, and {SHORT.get(short)} elsewhere")
    for long, texts in helps.items():
        if len(texts) > 1 and long not in MEANINGS:
            faults.append(f"{long} has several meanings: {sorted(texts)}")
        faults += [f"{long}: {text}" for text in texts if long in MEANINGS and not re.search(MEANINGS[long], text)]
    return faults


def test_an_option_has_one_meaning_in_all_commands() -> None:
    assert len(ALL) > 60, "the walk sees the groups too"
    assert two_meanings(OPTIONS) == []


@pytest.mark.parametrize(
    ("names", "text"), [(["--key"], "PEM file"), (["--tables", "-t"], "Tables."), (["--tenant"], "As CLUSTER/NUMBER.")]
)
def test_a_second_meaning_is_found(names: list[str], text: str) -> None:
    app = typer.Typer()

    @app.command()
    def other(value: str = typer.Option("", *names, help=text)) -> None: ...

    (option,) = [p for p in typer.main.get_command(app).params if p.opts == names]
    assert len(two_meanings([*OPTIONS, ("other", option)])) >= 1


def test_a_command_that_asks_a_service_takes_its_key() -> None:
    lacking = [
        name
        for name, command in ALL.items()
        if {"--url"} <= (of := {opt for option in command.params for opt in option.opts}) and "--key" not in of
    ]
    assert lacking == []


def test_every_command_that_prints_data_has_json() -> None:
    without = {name for name, command in ALL.items() if not any("--json" in option.opts for option in command.params)}
    assert without == set(NO_JSON)


def shown_words(text: str) -> str:
    """The text without white space, backticks and the borders of help panels."""
    return re.sub(r"[\s`│]", "", text)


@pytest.mark.parametrize("name", sorted(ALL))
def test_help_on_a_terminal_shows_every_word(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words in square brackets are markup to Rich, which drops them."""
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 2_000)
    shown = CliRunner().invoke(command_line(), [*name.split(), "--help"], terminal_width=2_000)
    assert shown.exit_code == 0
    texts = [ALL[name].help, *(p.help for p in ALL[name].params if not getattr(p, "hidden", False))]
    assert [text for text in texts if text and shown_words(text) not in shown_words(shown.output)] == []
