"""One option name has one meaning on the whole command line, and every command that prints data has `--json`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from tistream.cli.main import command_line

#: option -> the meaning that all its help texts name. An option with one help text everywhere needs no entry.
MEANINGS = {
    "--as-of": r"TSO",
    "--catalog": r"catalog",
    "--cluster": r"cluster",
    "--columns": r"columns",
    "--config": r"TOML",
    "--data": r"[Ff]older",
    "--follow": r"more|new events",
    "--format": r"Form of the answer|(ndjson|sql).*csv",  # of what is written
    "--jobs": r"Jobs at once",
    "--key-format": r"hex",
    "--kind": r"kind|Only these",
    "--lanes": r"Parts",
    "--output": r"[Ff]ile",
    "--pd": r"addresses of its PD servers",
    "--rate": r"[Ss]teps of the .*workload per second",
    "--seed": r"[Ss]eed",  # of random numbers
    "--speed": r"N times real time, or max",
    "--start-ts": r"TSO",
    "--stores": r"stores",
    "--tenant": r"tenant|Tenant id",
    "--timeout": r"[Ss]econds",
    "--to": r"time",
    "--until": r"time",
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
    **dict.fromkeys(("compile", "seed", "login", "changefeed remove"), "it does something, and says that it is done"),
    **dict.fromkeys(("pull", "snapshot"), "rows; NDJSON is a --format of them"),
    "restore": "it writes files",
}


def commands() -> Iterator[tuple[str, Any]]:
    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        inner = getattr(command, "commands", None)
        if inner is None:
            yield " ".join(path), command
        for name, one in (inner or {}).items():
            yield from walk(one, (*path, name))

    yield from walk(typer.main.get_command(command_line()), ())


ALL = dict(commands())
OPTIONS = [(name, option) for name, command in ALL.items() for option in command.params if option.opts[0][0] == "-"]


def two_meanings(options: list[tuple[str, Any]]) -> list[str]:
    """What is wrong, one line for each option."""
    helps: dict[str, set[str]] = defaultdict(set)
    found = []
    for name, option in options:
        long = next(opt for opt in option.opts if opt.startswith("--"))
        helps[long].add(option.help or "")
        for short in (opt for opt in option.opts if not opt.startswith("--")):
            if SHORT.get(short) != long:
                found.append(f"{name}: {short} is {long}, and {SHORT.get(short)} elsewhere")
    for long, texts in helps.items():
        if len(texts) > 1 and long not in MEANINGS:
            found.append(f"{long} has several meanings: {sorted(texts)}")
        found += [f"{long}: {text}" for text in texts if long in MEANINGS and not re.search(MEANINGS[long], text)]
    return found


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
