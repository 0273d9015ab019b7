"""`tistream demo`: what it shows, and that the lines it offers really work."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.terminal import read_terminal

COMMAND = (sys.executable, "-m", "tistream.cli.main", "demo")
DEMO = (*COMMAND, "--engine", "threads", "--speed", "max")
WAIT_S = 100
WHOLE_S = 400  # the whole demo, where a session starts Java and its workers, on a machine that is busy with other tests
LINES = re.compile(r"^  (curl .*|\S*tistream pull .*|\S*python -c .*)$", re.MULTILINE)


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("TISTREAM_")}


@pytest.mark.timeout(WHOLE_S + 30)
def test_the_demo_plays_everything_says_how_long_it_takes_and_ends_by_itself(last_resolved_ts: int) -> None:
    command = [*COMMAND, "--speed", "max", "--kill-after", "1"]
    done = subprocess.run(command, capture_output=True, timeout=WHOLE_S, env=environment())
    text = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
    assert re.search(r"^TiStream \d+\.\d+", text)
    assert re.search(r"console +http://127\.0\.0\.1:\d+/", text)
    assert re.search(r"^ \+ .*shop\.t_ints +\{", text, re.MULTILINE), "a decoded row"
    assert len(LINES.findall(text)) == 3
    for part in ("meta-1", "dispatcher-1", "sorter-1", "sorter-2"):
        assert f"✓ {part}\n" in text
    for name, path in (("API docs", "docs"), ("metrics", "metrics")):
        assert re.search(rf"{name} +http://127\.0\.0\.1:\d+/{path}", text)
    assert re.search(r"end +by itself after .* Ctrl-C", text)
    assert len(re.findall(r"▸ .*(?:service|recording|killed|the last act).*usually", text)) == 4, "what, and how long"
    assert re.search(r"^  tables +\d\d", text, re.MULTILINE)
    assert re.search(r"^  DDL +\d+", text, re.MULTILINE)
    assert "USD" not in text, "a toy load has no bill"
    assert re.search(r"^  recording +out of order 0$", text, re.MULTILINE)
    assert text.index("Spark compacts the log") > text.index("a modelled cluster writes")
    assert_compacted(text, "Spark")
    assert_taken_over(text)
    assert re.search(rf"^  complete +up to {last_resolved_ts} ", text, re.MULTILINE), "the whole recording"
    assert "\r" not in text
    assert "\x1b" not in text


def assert_compacted(text: str, by: str) -> None:
    """The last act made fewer files, and the log reads the same."""
    files, size = r"([\d,]+) files of [\d,]+ bytes", r"read again: the same ([\d,]+) changes"
    match = re.search(rf"^  compaction +{files} became {files}, by {by}; {size}$", text, re.MULTILINE)
    assert match, text
    before, after, changes = (int(number.replace(",", "")) for number in match.groups())
    assert before > after > 0
    assert changes > 100


def assert_taken_over(text: str) -> None:
    """A sorter was killed, others have its tasks, and the checker found nothing."""
    killed = re.search(r"killing (sorter-[12]) with (\d+) tasks", text)
    assert killed
    assert int(killed[2]) > 0
    takeover = re.search(r"^  takeover +([\d.]+) s after (sorter-[12]) was killed with (\d+) tasks", text, re.MULTILINE)
    assert takeover
    assert takeover.groups()[1:] == killed.groups()
    assert re.search(r"^  lag +p50 [\d.]+ s, p99 [\d.]+ s", text, re.MULTILINE)
    assert re.search(r"^  checker +lost 0, repeated 0, out of order 0$", text, re.MULTILINE)
    read = re.search(r"; ([\d,]+) changes generated and read", text)
    assert read
    assert int(read[1].replace(",", "")) > 0


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], list[str]]]:
    """A demo that runs, and the lines to copy that it printed."""
    with (tmp_path / "err").open("wb") as err:
        process = subprocess.Popen([*DEMO], stdout=subprocess.PIPE, stderr=err, env=environment())
    try:
        assert process.stdout is not None
        lines: list[str] = []
        while len(lines) < 3:
            line = process.stdout.readline().decode()
            assert line, (tmp_path / "err").read_text("utf-8")
            lines += LINES.findall(line.rstrip("\n"))
        yield process, lines
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_the_lines_to_copy_work_and_ctrl_c_ends_with_a_summary(
    demo: tuple[subprocess.Popen[bytes], list[str]], tmp_path: Path
) -> None:
    process, (curl, pull, python) = demo
    assert process.stdout is not None

    def sh(line: str) -> str:
        return subprocess.run(
            line, shell=True, check=True, capture_output=True, text=True, timeout=WAIT_S, env=environment()
        ).stdout

    messages = [json.loads(line) for line in sh(curl).splitlines()]
    assert [m["isDdl"] for m in messages] == [True, True, True]
    followed = sh(f"{pull} | head -1")
    assert json.loads(followed)["database"] == "shop"
    assert sh(python).startswith("pyarrow.Table\nid: int64\n")
    process.send_signal(signal.SIGINT)
    rest = process.stdout.read().decode()
    assert process.wait(WAIT_S) == 0, (tmp_path / "err").read_text("utf-8")
    assert re.search(r"^Summary\n  rows +[\d,]+ inserts", rest, re.MULTILINE)


def test_ctrl_c_ends_the_pushers_before_the_folder_they_write_to() -> None:
    with subprocess.Popen(
        [*DEMO[:-1], "20"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        try:
            assert process.stdout is not None
            folder = re.search(r"everything in (\S+),", process.stdout.readline().decode())
            assert folder
            deadline = time.monotonic() + WAIT_S
            while not list(Path(folder[1]).rglob("file-*.seg")):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    assert (process.returncode, err) == (0, b""), err.decode()
    assert not Path(folder[1]).exists()


def test_on_a_terminal_rows_are_in_colour() -> None:
    leader, follower = pty.openpty()
    env = environment() | {"TERM": "xterm-256color", "COLUMNS": "100"}
    with subprocess.Popen([*DEMO], stdout=follower, stderr=follower, env=env) as process:
        os.close(follower)
        text, copied = b"", False
        while part := read_terminal(leader):
            text += part
            if b"changes of" in text and not copied:  # the counter, after the rows and the lines to copy
                process.send_signal(signal.SIGINT)  # once: at its very end nobody handles a second one
                copied = True
        os.close(leader)
        assert process.wait(WAIT_S) == 0
    assert re.search(rb"\x1b\[1;32m \+ ", text), "an insert in green"
    assert b"Summary" in text
    assert b"Warning" not in text
