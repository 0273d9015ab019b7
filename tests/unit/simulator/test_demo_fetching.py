"""What the demo fetches for Spark, with programs that stand for Debian's, and when it goes without."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from simulator.demo.fetching import Fetching

OLD = "#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n"
NEW = "#!/bin/sh\necho 'openjdk version \"17.0.15\" 2025-04-15' >&2\n"


def write(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All that the PATH leads to: no Java."""
    for name in ("env", "nice", "sh", "cp"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path


def fetched() -> Fetching:
    fetching = Fetching()
    fetching.start()
    fetching.wait(100)
    assert fetching.is_over
    return fetching


def test_nothing_is_fetched_where_both_are(programs: Path) -> None:
    write(programs / "java", NEW)
    fetching = fetched()
    assert (fetching.missing, fetching.reason) == ([], "")


def test_java_is_installed_as_root_and_one_that_is_too_old_replaced(programs: Path) -> None:
    write(programs / "java", OLD)
    write(programs / "new", NEW)
    log = f'echo "$@" >> {programs}/log'
    write(programs / "apt-get", f'#!/bin/sh\n{log}\n[ "$1" = update ] || cp {programs}/new {programs}/java\n')
    fetching = fetched()
    assert (fetching.missing, fetching.reason) == (["Java"], "")
    update, install = (programs / "log").read_text().splitlines()
    assert update == "update -qq"
    assert install.endswith("openjdk-17-jre-headless")


def test_what_failed_is_said(programs: Path) -> None:
    write(programs / "apt-get", "#!/bin/sh\necho 'Temporary failure resolving deb.debian.org' >&2\nexit 100\n")
    reason = "openjdk-17-jre-headless could not be installed: Temporary failure resolving deb.debian.org"
    assert fetched().reason == reason


def test_without_rights_nothing_is_installed(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    write(programs / "apt-get", f"#!/bin/sh\n: > {programs}/called\n")
    write(programs / "sudo", "#!/bin/sh\nexit 1\n")  # asks for a password
    assert fetched().reason.startswith("Java is not installed. It takes root, or sudo without a password")
    assert not (programs / "called").exists()
