"""Fetches Java and PySpark for the demo's last act, in a thread during the other acts, with the lowest priority.

Java comes from Debian, which needs root or sudo without a password. PySpark comes from the package index, into the
virtual environment of this interpreter. When one of them cannot be had, `reason` says why, and threads compact.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import threading
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path

from compactor.session import java_problem

_JAVA = "openjdk-17-jre-headless"
_OF_SPARK = re.compile(r"""extra == ['"]spark['"]""")
_LONGEST_S = 600.0  # of one command


class Fetching:
    """Begins with `start`. Then `is_over`, and `reason` is why there is no Spark."""

    def __init__(self) -> None:
        self.reason = ""
        self.missing: list[str] = []  #: that is being fetched
        self._thread = threading.Thread(target=self._run, name="fetch-spark", daemon=True)
        self._pip: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Look for both, and fetch what is missing."""
        if java_problem() is not None:
            self.missing.append("Java")
        if not _has_pyspark():
            self.missing.append("PySpark")
        if self.missing:
            self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether nothing is being fetched any more."""
        return not self._thread.is_alive()

    def wait(self, timeout_s: float) -> None:
        """Wait until it is over."""
        if not self.is_over:
            self._thread.join(timeout_s)

    def stop(self) -> None:
        """Give PySpark up. A package of Debian is installed to its end, which an abort would leave half done."""
        if self._pip is not None:
            self._pip.terminate()

    def _run(self) -> None:
        if "Java" in self.missing:
            self.reason = self._fetch_java()
        if "PySpark" in self.missing and not self.reason:
            self.reason = self._fetch_pyspark()

    def _fetch_java(self) -> str:
        root = _as_root()
        if root is None or shutil.which("apt-get") is None:
            return f"{java_problem()} It takes root, or sudo without a password, and apt-get to install it."
        quiet = [*root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]
        failed = self._failed([*quiet, "update", "-qq"]) or self._failed(
            [*quiet, "install", "-y", "-qq", "--no-install-recommends", _JAVA]
        )
        return f"{_JAVA} could not be installed: {failed}" if failed else java_problem() or ""

    def _fetch_pyspark(self) -> str:
        if sys.prefix == sys.base_prefix:
            return "PySpark is not installed, and this interpreter has no virtual environment to install it into."
        wanted = [r.partition(";")[0] for r in requires("tistream") or () if _OF_SPARK.search(r)]
        uv = Path(sys.executable).with_name("uv")
        pip = [str(uv), "pip"] if uv.exists() else [sys.executable, "-m", "pip"]
        where = ["--python", sys.executable] if uv.exists() else []
        if failed := self._failed([*pip, "install", "--quiet", *where, *wanted], is_pip=True):
            return f"PySpark could not be installed: {failed}"
        importlib.invalidate_caches()
        return "" if _has_pyspark() else "PySpark is not found although it was installed."

    def _failed(self, command: list[str], *, is_pip: bool = False) -> str:
        """Run a command; the end of what it said when it failed."""
        process = subprocess.Popen(
            ["nice", "-n", "19", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the demo
            env={"UV_SYSTEM_CERTS": "1", **os.environ},  # as in the Makefile: uv has its own certificates
        )
        if is_pip:
            self._pip = process
        try:
            said = process.communicate(timeout=_LONGEST_S)[1].strip()
        except subprocess.TimeoutExpired:
            process.terminate()
            return f"it takes longer than {_LONGEST_S:.0f} s"
        return (said.splitlines() or [f"status {process.returncode}"])[-1] if process.returncode else ""


def _as_root() -> list[str] | None:
    """What goes before a command that only root may run; None: this user may not."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") is None:
        return None
    return ["sudo", "-n"] if subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0 else None


def _has_pyspark() -> bool:
    return find_spec("pyspark") is not None
