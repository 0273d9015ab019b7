"""A process of pushers, seen from the benchmark that started it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import orjson

from benchmarks.load.deployment import Deployment
from benchmarks.load.push import Load, argument


class PushProcess:
    """Start it; `ready_s` once its tenants are active and it pushes. Use it as a context."""

    def __init__(self, deployment: Deployment, load: Load) -> None:
        self._log = (deployment.folder / "push.log").open("ab")
        command = [sys.executable, "-m", "benchmarks.load.push", argument(load)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self) -> float:
        """Seconds from its start until everything is pushed."""
        return float(self._answer()["ready_s"])

    def tell(self, word: str) -> dict[str, Any]:
        """Send `start`, `stop` or `report`; returns the report."""
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        if answer.get("error"):
            raise RuntimeError(f"a pusher has ended: {answer['error']}")
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the pushers have ended; see {self._log.name}")
        return dict(orjson.loads(line))

    def __enter__(self) -> PushProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()
