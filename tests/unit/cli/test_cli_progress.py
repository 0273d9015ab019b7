"""Progress: a bar on a terminal, few plain lines elsewhere."""

from __future__ import annotations

import io
import time

import pytest

from tistream.cli.progress import Progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_elsewhere_a_short_job_says_nothing() -> None:
    out = io.StringIO()
    with Progress("pushing", out) as shown:
        for done in range(100):
            shown.update(done, 100, "pushing")
    assert out.getvalue() == ""


def test_elsewhere_a_long_job_says_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    out = io.StringIO()
    with Progress("pushing", out) as shown:
        for done in range(250):
            now += 0.1
            shown.update(done, 250, "pushing")
    assert len(out.getvalue().splitlines()) == 2
    assert out.getvalue().startswith("pushing: ")


def test_on_a_terminal_a_bar_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    with Progress("pushing", out) as shown:
        shown.update(7, 149, "waiting for the service")
    assert "7/149" in out.getvalue()
    assert "waiting for the service" in out.getvalue()
