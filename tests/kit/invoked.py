"""A `tistream` command in this process, as its entry point runs it, without the end of the process."""

from __future__ import annotations

import sys

import pytest

from tistream.cli import main as cli


def invoke(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """(exit status, standard output, standard error) of `tistream ARGS`."""
    monkeypatch.setattr(sys, "argv", ["tistream", *args])
    with pytest.raises(SystemExit) as ended:
        cli.run_command()
    out, err = capfd.readouterr()
    return int(ended.value.code or 0), out, err
