"""Nothing that a service answers steers the terminal of who asked: of all commands, in answers and in errors."""

from __future__ import annotations

import io
import os
import pty
import re
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import structlog
import yaml

from tests.kit.command_tree import commands
from tests.kit.evil_service import EVIL, MARK, Texts, evil_service
from tests.kit.terminal import read_terminal
from tistream.cli import log
from tistream.cli import main as cli
from tistream.cli.output import OutputForm, show_data
from tistream.cli.printable_console import PrintableConsole
from tistream.cli.progress import Progress
from tistream.cli.pull import StatusLine
from tistream.cli.terminal import clean, clean_lines, guard
from tistream.config import LogSettings

TENANT = ("-c", "1", "-t", "2")

#: the words of a command -> what is given to it, once or several times. {folder} is an empty folder.
CASES: dict[str, tuple[tuple[str, ...], ...]] = {
    "api get": (("/v1/workers",), ("/v1/workers", "--format", "yaml"), ("/v1/workers", "--format", "ndjson")),
    "audit-log": ((), ("--json",)),
    "changefeed create": (("x", "--sink-uri", "file:///lake", *TENANT),),
    "changefeed list": (TENANT,),
    "changefeed pause": (("x", *TENANT),),
    "changefeed query": (("x", *TENANT),),
    "changefeed rebalance": (("x", *TENANT),),
    "changefeed remove": (("x", *TENANT),),
    "changefeed resume": (("x", *TENANT),),
    "changefeed retry": (("x", "--lane", "0", *TENANT),),
    "changefeed skip": (("x", "--lane", "0", "--commit-ts", "5", *TENANT),),
    "changefeed tables": (("x", *TENANT),),
    "changefeed update": (("x", *TENANT),),
    "changefeed verify": (("x", *TENANT),),
    "consumer checkpoint": (("x", "5", *TENANT),),
    "consumer create": (("x", *TENANT),),
    "consumer list": (TENANT,),
    "consumer pause": (("x", *TENANT),),
    "consumer query": (("x", *TENANT),),
    "consumer remove": (("x", *TENANT),),
    "consumer reset": (("x", "--to", "5", *TENANT),),
    "consumer resume": (("x", *TENANT),),
    "doctor": ((), ("--format", "yaml")),
    "events": ((), ("--json",)),
    "explain lag": (TENANT,),
    "gaps": ((),),
    "jobs cancel": (("1",),),
    "jobs list": ((),),
    "jobs retry": (("1",),),
    "jobs show": (("1",),),
    "key create": (("n", "--role", "owner"),),
    "key list": ((),),
    "key revoke": (("1",),),
    "key rotate": (("1",),),
    "lag": ((), TENANT),
    "login": (("--key", "tsk_" + "a" * 40),),
    "pull": (
        TENANT,
        ("--format", "ndjson", *TENANT),
        ("--format", "csv", *TENANT),
        ("--keys", *TENANT),
        ("--consumer", "x", *TENANT),
    ),
    "push": (("--check",), ("--capture", "{folder}", *TENANT)),
    "raw backup": (("--from-log", "--storage", "file://{folder}/b", *TENANT),),
    "restore": (("shop", "--output", "{folder}/r", *TENANT),),
    "schema diff": (TENANT,),
    "schema history": (TENANT,),
    "schema show": (TENANT, ("shop.orders", *TENANT)),
    "seed": (("shop.orders", "--file", "{folder}/rows.csv", "--ts", "5", *TENANT),),
    "snapshot": (("shop.orders", *TENANT), ("shop.orders", "--format", "csv", *TENANT)),
    "status": ((),),
    "stops list": ((),),
    "stops resume": (("x",),),
    "store quarantine list": (TENANT,),
    "store quarantine reject": (("1", *TENANT),),
    "tasks list": ((),),
    "tasks merge": (("1", "2"),),
    "tasks move": (("1",),),
    "tasks retry": (("1",),),
    "tasks show": (("1",),),
    "tasks split": (("1",),),
    "tenant allow": (("s3://b/p", *TENANT),),
    "tenant delete": (("--yes", *TENANT), TENANT),
    "tenant disallow": (("s3://b/p", *TENANT),),
    "tenant list": ((), ("--format", "yaml")),
    "tenant pause": (TENANT,),
    "tenant reseed": (("--as", "3", "--yes", "--timeout", "0", *TENANT), ("--as", "3", "--dry-run", *TENANT)),
    "tenant register": (TENANT, ("--wait", "--timeout", "0", "--format", "table", *TENANT)),
    "tenant resume": (TENANT,),
    "tenant retention": (TENANT,),
    "tenant rotate-key": (TENANT,),
    "tenant show": (TENANT, ("--format", "table", *TENANT)),
    "tenant targets": (TENANT,),
    "verify": (("--tidb", "mysql://root@127.0.0.1:1/", *TENANT),),
    "workers drain": (("x",),),
    "workers list": (("--format", "yaml"),),  # the columns of its table are narrower than the mark
    "workers show": (("x",),),
}
#: these print nothing of what the service said when it is taken, or end before
QUIET = {"changefeed remove", "consumer remove", "changefeed skip", "changefeed verify", "raw backup", "seed", "verify"}
QUIET_WITH = {"--capture"}


def test_every_command_that_asks_a_service_has_a_case() -> None:
    asking = {words for words, command in commands().items() if any(p.name == "url" for p in command.params)}
    assert asking == set(CASES)


@pytest.fixture(scope="module", params=list(Texts), ids=lambda texts: texts.value)
def service(request: pytest.FixtureRequest) -> Iterator[tuple[str, Texts]]:
    with evil_service(request.param) as url:
        yield url, request.param


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TERM", "dumb")  # so that every escape sequence is foreign
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def on_terminal(run: Callable[[], object]) -> tuple[int, str]:
    """(exit status, what reaches a terminal that is standard output and error) of a function in this process."""
    leader, follower = pty.openpty()
    tty.setraw(follower, termios.TCSANOW)  # line ends stay as they are written
    pieces: list[bytes] = []
    reader = threading.Thread(target=lambda: pieces.extend(iter(lambda: read_terminal(leader), b"")))
    reader.start()
    out = io.TextIOWrapper(os.fdopen(follower, "wb"), encoding="utf-8", write_through=True)
    with patch.multiple(sys, stdout=out, stderr=out, stdin=io.StringIO("")):
        try:
            run()
            status = 0
        except SystemExit as ended:
            status = int(ended.code or 0)
    out.close()
    reader.join()
    os.close(leader)
    return status, b"".join(pieces).decode("utf-8")


def command(*words: str) -> Callable[[], None]:
    """The command line, as the console script runs it."""

    def run() -> None:
        with patch.object(sys, "argv", ["tistream", *words]):
            cli.run_command()

    return run


def steering(text: str) -> str:
    """The characters that steer a terminal, but for line ends and tabs, and for what clears the status line."""
    text = text.replace("\r\x1b[K", "")
    return "".join(c for c in text if not c.isprintable() and c not in "\n\t")


@pytest.mark.parametrize(("words", "given"), [(words, each) for words, cases in CASES.items() for each in cases])
def test_no_answer_steers_the_terminal(
    words: str, given: tuple[str, ...], service: tuple[str, Texts], tmp_path: Path
) -> None:
    url, texts = service
    (tmp_path / "rows.csv").write_text("id\n1\n")
    words_given = (each.format(folder=tmp_path) for each in given)
    status, text = on_terminal(command(*words.split(), *words_given, "--url", url))
    assert not steering(text), repr(text)
    if texts in (Texts.PROBLEM, Texts.NO_JSON):
        assert status or words == "doctor", text
        assert MARK in text or words == "push", text  # it says the status alone
    elif texts is Texts.FREE and words not in QUIET and not QUIET_WITH & {*given}:
        assert MARK in text, text


def test_a_file_gets_the_exact_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "out").open("w", encoding="utf-8") as out, evil_service(Texts.FREE) as url:
        monkeypatch.setattr(sys, "stdout", out)
        with pytest.raises(SystemExit):
            command("pull", "--format", "ndjson", *TENANT, "--url", url)()
    assert "\x9b1A" in (tmp_path / "out").read_text("utf-8")


@pytest.mark.parametrize("text", [EVIL, "\\\u202e", "订单", "two\nlines", "'quoted' \"twice\": - #", "e\U000e0001"])
def test_yaml_on_a_terminal_says_the_same(text: str) -> None:
    def run() -> None:
        guard()
        show_data({"items": [text], text: 1}, OutputForm.YAML)

    _, shown = on_terminal(run)
    assert not steering(shown)
    assert yaml.safe_load(shown) == {"items": [text], text: 1}
    assert ("订单" in shown) is ("订单" in text)


def test_own_colours_and_the_status_line_still_reach_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR")

    def run() -> None:
        guard()
        PrintableConsole(file=sys.stdout).print(f"[red]{MARK}[/]")
        log.configure(LogSettings(format="pretty"))
        structlog.get_logger().warning("late", table=EVIL)
        StatusLine(sys.stderr).show(1, 470613531000000001, EVIL)

    try:
        _, text = on_terminal(run)
    finally:
        structlog.reset_defaults()
    assert f"\x1b[31m{MARK}\x1b[0m" in text
    assert "\r\x1b[K1 lines" in text
    assert "\x1b[8m" not in text
    assert not steering(re.sub(r"\x1b\[[0-9;]*m", "", text)), "only colours"


def test_what_is_printed_while_a_bar_runs_is_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")

    def run() -> None:
        guard()
        with Progress("title", sys.stderr) as progress:
            progress.update(1, 2, EVIL)
            print(EVIL)
            print(EVIL, file=sys.stderr)

    _, text = on_terminal(run)
    assert text.count(MARK) >= 3
    for sequence in ("\x1b[8m", "\x1b[2J", "\x1b]", "\x07", "\x9b", "\x9d", "\u202e", "\x85"):
        assert sequence not in text


def test_clean_text_is_in_one_line() -> None:
    assert clean("a\n\x1b[0m\u202e订\udcff") == "a\\n\\x1b[0m\\u202e订\\udcff"
    assert clean_lines("a\tb\n\x1b\x9b") == "a\tb\n\\x1b\\x9b"
