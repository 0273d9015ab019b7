"""Processes of a released version, from its kept wheels, beside those of this tree."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from simulator.chaos.servers.services import Services
from tests.kit.release import FOLDER

_INSTALL = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-index", "--target")
_WHERE = "import tistream, apiserver; print(tistream.__version__, tistream.__file__, apiserver.__file__)"


def installed(version: str, folder: Path) -> dict[str, str]:
    """Install the wheels into the folder; the variables with which this Python, with its libraries, runs that version.
    A folder in PYTHONPATH comes before this tree, and PYTHONSAFEPATH leaves the current folder out."""
    wheels = sorted((FOLDER / version).glob("*.whl"))
    subprocess.run([sys.executable, *_INSTALL, folder, *wheels], check=True, timeout=120)
    variables = {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", _WHERE]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [version, f"{folder}/tistream/__init__.py", f"{folder}/apiserver/__init__.py"]
    return variables


class MixedCluster(Services):
    """Services of this release and of an older one, each replaced at any time."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str],
        old: Mapping[str, str],
        push: tuple[str, ...] = (),
        api: str = "api-1",
        new: Mapping[str, str] | None = None,
    ) -> None:
        """`settings` are variables of every process, `old` those of processes of the older release, see `installed`,
        `new` those that only this release knows. `push` are the arguments of the process `push`, to the service `api`.
        The service `up` is `tistream up`, with its data in `folder`."""
        self._runs_old: dict[str, bool] = {}
        self.push, self._api = push, api
        new = {} if new is None else new
        super().__init__(folder, lambda name: {**settings, **(old if self._runs_old[name] else new)})

    def run(self, *names: str, old: bool) -> None:
        """Start these, of one release or the other; one that runs is stopped first, as an operator stops it."""
        for name in names:
            if name in self.processes:
                self.processes.pop(name).stop()
            self._runs_old[name] = old
            self.start(name)
            if name != "push":
                self.wait_until_ready(name)

    def _args(self, name: str) -> tuple[str, ...]:
        if name == "push":
            return ("push", "--url", self.url_of(self._api), *self.push)
        if name == "up":
            return ("up", "--data", str(self.folder / "data"), "--port", str(self._port(name)))
        return super()._args(name)
