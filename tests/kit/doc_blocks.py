"""The fenced blocks of the documentation: what each of them is, and playing those of a page in order.

A title in a fence's info string says how a block is meant; readers of the site see it above the block:

    (none)                        runs to its end with exit status 0; a Python block is a program of its own
    In a separate terminal        each command goes on until the page's end. The same command again: Ctrl-C first
    Until Ctrl-C                  shows something, is interrupted then, and ends well
    NAME.py (Python only)         is saved under that name, for later blocks
    With Java 17 and Spark        is a program that tests/integration/test_spark_source.py runs
    Not run by the tests: REASON  needs something that is not here

Anything else is refused, so no command of the documentation escapes unseen.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from textwrap import dedent

from tests.kit.waiting import eventually

SHELL = ("sh", "bash", "console")
OVER_OWN_SERVERS = {"create-database.md", "key-rotation.md", "move-bucket-prefix.md"}  #: tests/e2e/test_runbooks.py
NOT_RUN = "Not run by the tests: "
IN_SPARK = "With Java 17 and Spark"
_FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)  # a list indents its blocks
_INFO = re.compile(r'(\w+)(?: title="([^"]*)")?')
_COMMAND = re.compile(r"^(\$ |# )?(tistream|python|pip|make|curl|spark-submit|docker|helm|terraform) ", re.MULTILINE)
_PATIENCE_S = 120.0
_ENDINGS = (0, 130, -signal.SIGINT)  #: of a command that was interrupted


class How(StrEnum):
    """What is done with a block."""

    RUN = "run"
    TERMINAL = "in a separate terminal"
    UNTIL_CTRL_C = "until Ctrl-C"
    SAVE = "save"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block."""

    line: int
    info: str
    text: str

    @property
    def language(self) -> str:
        return self.info.split(" ")[0]

    @property
    def title(self) -> str:
        match = _INFO.fullmatch(self.info)
        return (match[2] or "") if match else ""

    @property
    def how(self) -> How:
        """ValueError when the block does not say what it is."""
        if self.language not in (*SHELL, "python"):
            if _COMMAND.search(self.text):
                raise ValueError(f"line {self.line}: commands need ```sh, so that they are run")
            return How.LEAVE
        if not _INFO.fullmatch(self.info):
            raise ValueError(f"line {self.line}: {self.info!r} is not understood")
        if self.title.startswith(NOT_RUN) and len(self.title) > len(NOT_RUN) + 8:
            return How.LEAVE
        if self.language == "python" and self.title == IN_SPARK:
            return How.LEAVE
        if self.language == "python" and re.fullmatch(r"\w+\.py", self.title):
            return How.SAVE
        titles = {"": How.RUN, "In a separate terminal": How.TERMINAL, "Until Ctrl-C": How.UNTIL_CTRL_C}
        titles["Each in a separate terminal"] = How.TERMINAL
        if self.title not in titles or (self.language == "python" and self.title):
            raise ValueError(f"line {self.line}: {self.title!r} is none of {[*titles]} or {NOT_RUN!r} with a reason")
        return titles[self.title]

    @property
    def commands(self) -> bool:
        """Whether it looks like something to run that is not excused, well marked or not."""
        return self.language in (*SHELL, "python") and not self.title.startswith(NOT_RUN)


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks of a page."""
    text = page.read_text("utf-8")
    return [
        Block(line=text.count("\n", 0, fence.start()) + 1, info=fence[2].strip(), text=dedent(fence[3]))
        for fence in _FENCE.finditer(text)
    ]


@dataclass
class PagePlayer:
    """Plays blocks in a folder. `words` are replaced in their text, longest first."""

    folder: Path
    env: Mapping[str, str]
    words: Mapping[str, str]
    _sessions: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _terminals: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _count: int = 0

    def play(self, block: Block) -> str:
        """Do what the block says; what it wrote to standard output. AssertionError with the story when it fails."""
        text = block.text
        for word in sorted(self.words, key=len, reverse=True):
            text = text.replace(word, self.words[word])
        if block.how is How.SAVE:
            (self.folder / block.title).write_text(text, "utf-8")
        elif block.how is How.RUN:
            return self._run(text, block)
        elif block.how is How.UNTIL_CTRL_C:
            return self._interrupt(text, block)
        elif block.how is How.TERMINAL:
            self._open_terminals(text, block)
        return ""

    def close_terminals(self, keep: str = "") -> None:
        """End what goes on in terminals, but for commands that begin with `keep`."""
        for command in [c for c in self._terminals if not (keep and c.startswith(keep))]:
            _kill(self._terminals.pop(command))

    def close(self) -> None:
        """End everything that was started."""
        self.close_terminals()
        for process in self._sessions:
            _kill(process)

    def _run(self, text: str, block: Block) -> str:
        if block.language == "python":
            (self.folder / "block.py").write_text(text, "utf-8")
            text = "python block.py"
        process, out = self._start(f"set -euo pipefail\n{text}")
        try:
            status = process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            status = None
        said = _read(out)
        assert status == 0, f"line {block.line}, exit status {status}:\n{text}\n{said[-2000:]}\n{_errors(out)[-4000:]}"
        assert "Traceback" not in _errors(out), _errors(out)
        return said

    def _interrupt(self, text: str, block: Block) -> str:
        process, out = self._start(text)
        _until(lambda: bool(_read(out)) or process.poll() is not None, f"line {block.line} shows nothing", out)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        status = process.wait(_PATIENCE_S)
        assert _read(out), f"line {block.line} ended by itself:\n{_errors(out)}"
        assert status in _ENDINGS, f"line {block.line}, exit status {status}:\n{_errors(out)}"
        return _read(out)

    def _open_terminals(self, text: str, block: Block) -> None:
        commands = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
        shared = [line for line in commands if line.startswith("export ")]
        for command in (line for line in commands if line not in shared):
            if (old := self._terminals.pop(command, None)) is not None:
                os.killpg(old.pid, signal.SIGINT)
                assert old.wait(_PATIENCE_S) in _ENDINGS, command
            process, out = self._start("\n".join([*shared, command]))
            self._terminals[command] = process
            _until(lambda: bool(_read(out) + _errors(out)), f"line {block.line}: {command} says nothing", out)  # noqa: B023
            assert process.poll() is None, f"line {block.line}: {command} ended:\n{_errors(out)}"

    def _start(self, script: str) -> tuple[subprocess.Popen[bytes], Path]:
        self._count += 1
        out = self.folder / f"out-{self._count}"
        with out.open("wb") as stdout, out.with_suffix(".err").open("wb") as stderr:
            process = subprocess.Popen(
                ["bash", "-c", script],
                cwd=self.folder,
                env={**self.env, "PATH": f"{Path(sys.executable).parent}:{self.env['PATH']}"},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        self._sessions.append(process)
        return process, out


def _read(path: Path) -> str:
    return path.read_text("utf-8", errors="replace")


def _errors(out: Path) -> str:
    return _read(out.with_suffix(".err"))


def _until(done: Callable[[], bool], what: str, out: Path) -> None:
    eventually(done, lambda: f"{what}:\n{_errors(out)}")


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def runnable(page: Path) -> Iterator[Block]:
    """The blocks of a page that something is done with."""
    return (block for block in blocks_of(page) if block.how is not How.LEAVE)
