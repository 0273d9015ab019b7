"""--metrics-port of each role: where Prometheus finds a process without a key."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from tistream.cli import assembly, run
from tistream.cli.main import command_line

ROLES = {"meta": "meta", "dispatch": "dispatcher", "sort": "sorter", "maintain": "maintain", "serve": "api_server"}


@pytest.mark.parametrize("role", ROLES)
def test_a_process_has_the_port_that_its_flag_names(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(assembly, "open_parts", lambda settings: settings)
    monkeypatch.setattr(assembly, ROLES[role], lambda settings, *_: settings)
    monkeypatch.setattr(run, "_run", started.append)
    where = ["--catalog", "sqlite:///never.db", "--object-store", "memory://"]
    done = CliRunner().invoke(command_line(), [role, *where, "--metrics-port", "9464"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert [settings.metrics.port for settings in started] == [9464]
