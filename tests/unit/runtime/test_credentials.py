"""Which key goes to which service, and that nobody else reads it; no key in a log line; the steps of a registration."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from tistream.admin.onboarding import checklist
from tistream.cli import log
from tistream.client import api
from tistream.config import LogSettings
from tistream.errors import ConfigError
from tistream.http.auth.core.keys import format_key
from tistream.runtime import credentials

URL = "http://127.0.0.1:8711"
KEY = format_key(bytes(8), bytes(range(24)))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("TISTREAM_KEY", raising=False)
    credentials.use_key(None)
    yield tmp_path
    credentials.use_key(None)


def test_what_is_given_wins_over_the_environment_and_that_over_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (credentials.key_for(URL), credentials.last_url()) == (None, None)
    credentials.keep(URL + "/", "kept")
    assert (credentials.key_for(URL), credentials.last_url()) == ("kept", URL)
    assert credentials.key_for("http://127.0.0.1:8712") is None, "a key goes to the address it was kept for"
    monkeypatch.setenv("TISTREAM_KEY", "environment")
    assert credentials.key_for(URL) == "environment"
    credentials.use_key("given")
    assert credentials.key_for(URL) == "given"


def test_several_services_and_forgetting_one() -> None:
    credentials.keep(URL, "one")
    credentials.keep("https://other", "two")
    assert (credentials.key_for(URL), credentials.key_for("https://OTHER/")) == ("one", "two")
    assert credentials.last_url() == "https://other"
    assert credentials.forget("https://other")
    assert not credentials.forget("https://other")
    assert (credentials.key_for("https://other"), credentials.key_for(URL), credentials.last_url()) == (
        None,
        "one",
        None,
    )


def test_only_its_owner_reads_the_file() -> None:
    path = credentials.keep(URL, "one")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["credentials.json"]
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        credentials.key_for(URL)


def test_without_a_home_there_are_no_keys(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    (home / "tistream").write_text("a file where the folder would be")
    assert credentials.key_for(URL) is None
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert (credentials.key_for(URL), credentials.last_url()) == (None, None)
    with pytest.raises(ConfigError, match="No home folder"):
        credentials.keep(URL, "one")


@pytest.mark.parametrize("text", ["", "[]", '{"keys": 1}', "\x00"])
def test_a_file_that_is_not_ours_is_named(text: str) -> None:
    path = credentials.keep(URL, "one")
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"credentials\.json"):
        credentials.key_for(URL)


def test_the_client_shows_what_is_known() -> None:
    credentials.keep(URL, "kept")
    for client, shown in ((api.connect(URL), "Bearer kept"), (api.connect(URL, key="mine"), "Bearer mine")):
        assert client._http.headers["Authorization"] == shown
        client.close()
    with api.connect("http://127.0.0.1:1") as client:
        assert "Authorization" not in client._http.headers


@pytest.mark.parametrize("form", ["json", "pretty"])
def test_no_key_is_in_a_log_line(monkeypatch: pytest.MonkeyPatch, form: Any) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    before = structlog.get_config()
    log.configure(LogSettings(format=form))
    try:
        structlog.get_logger("test").warning("asked", url=f"http://h/?key={KEY}", said={"deep": [KEY]})
    finally:
        structlog.configure(**before)
    assert KEY not in out.getvalue()
    assert out.getvalue().count("tsk_aaaaaaaaaaaaa_(shown once)") == 2


def test_the_steps_of_a_registration() -> None:
    tenant: dict[str, Any] = {
        "cluster_id": 1, "tenant_id": 2, "keyspace": None,
        "state": "AWAITING_SNAPSHOT", "start_ts": "0", "tasks": [], "stores": [],
    }  # fmt: skip
    steps = checklist(tenant, has_key=True)
    assert [done for _, done, _ in steps] == [True, True, False, False, False, False]
    assert [step for step, *_ in checklist(tenant, has_key=False)] == [step for step, *_ in steps if "key" not in step]
    tenant |= {"state": "ACTIVE", "start_ts": "9", "tasks": [{}] * 4, "stores": [{}]}
    assert all(done for _, done, _ in checklist(tenant, has_key=False))
