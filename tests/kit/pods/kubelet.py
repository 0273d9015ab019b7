"""One pod's container, as the kubelet runs it: started with its probes, restarted when it ends, stopped in order."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from tests.kit.pods.sandbox import Sandbox

_TICK_S = 0.1
_BACK_OFF_S = 1.0  #: the kubelet begins with 10 s and doubles them


class Probe:
    """One probe's schedule and verdict."""

    def __init__(self, spec: Mapping[str, Any], address: str, ports: Mapping[str, int]) -> None:
        if "httpGet" not in spec:
            raise ValueError(f"a probe that is not known here: {spec}")
        port = spec["httpGet"]["port"]
        self._address, self._port = address, ports.get(port, port)
        self._path = spec["httpGet"].get("path", "/")
        self._period_s, self._timeout_s = spec.get("periodSeconds", 10), spec.get("timeoutSeconds", 1)
        self.failures_max, self._successes_min = spec.get("failureThreshold", 3), spec.get("successThreshold", 1)
        self._due = time.monotonic() + spec.get("initialDelaySeconds", 0)
        self.failures = self._successes = 0

    @property
    def passed(self) -> bool:
        return bool(self._successes >= self._successes_min)

    @property
    def failed(self) -> bool:
        return bool(self.failures >= self.failures_max)

    def look(self) -> bool:
        """Ask if it is time; whether it was."""
        now = time.monotonic()
        if now < self._due:
            return False
        self._due = now + self._period_s
        if self._answers():
            self._successes, self.failures = self._successes + 1, 0
        else:
            self._successes, self.failures = 0, self.failures + 1
        return True

    def _answers(self) -> bool:
        connection = HTTPConnection(self._address, int(self._port), timeout=self._timeout_s)
        try:
            connection.request("GET", self._path, headers={"User-Agent": "kube-probe/1.31", "Connection": "close"})
            return 200 <= connection.getresponse().status < 400
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()


class Container:
    """Runs from `start` to `stop`. `changed` is called when it becomes ready or ceases to be."""

    def __init__(
        self, spec: Sandbox, manifest: Mapping[str, Any], address: str, folder: Path, changed: Callable[[], None]
    ) -> None:
        self.spec, self.address, self.folder = spec, address, folder
        self._manifest, self._changed = manifest, changed
        self._ports = {port["name"]: port["containerPort"] for port in manifest.get("ports", ())}
        self._process: subprocess.Popen[bytes] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubelet", daemon=True)
        self.is_ready, self.is_hung, self.restarts = False, False, 0
        self.last_exit: int | None = None

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        self._thread.start()

    def stop(self, grace_s: float) -> int:
        """SIGTERM, after the grace period SIGKILL; its exit status."""
        self._over.set()
        self._thread.join()
        assert self._process is not None
        return self._end(self._process, grace_s)

    def hang(self) -> None:
        """The node hangs: neither the process nor its kubelet does anything."""
        self.is_hung = True
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """The node is back."""
        self._signal(signal.SIGCONT)
        self.is_hung = False

    def output(self) -> str:
        return self.log.read_text("utf-8", errors="replace") if self.log.exists() else ""

    def usage(self) -> tuple[float, float, float]:
        """Of the process: CPU seconds, seconds that its main thread waited for a processor, most MiB of memory."""
        stat = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        waited_ns = int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[1])
        status = Path(f"/proc/{self.pid}/status").read_text()
        peak_kib = int(status.partition("VmHWM:")[2].split()[0])
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"), waited_ns / 1e9, peak_kib / 1024

    def _run(self) -> None:
        while not self._over.is_set():
            self._process = self._started()
            probes = {kind: self._probe(kind) for kind in ("startup", "liveness", "readiness")}
            while not self._over.wait(_TICK_S) and self._process.poll() is None:
                if not self.is_hung and not self._healthy(probes):
                    self._end(self._process, self._manifest.get("terminationGracePeriodSeconds", 30))
            self._set_ready(False)
            if self._process.poll() is not None and not self._over.is_set():
                self.last_exit, self.restarts = self._process.returncode, self.restarts + 1
                self._over.wait(_BACK_OFF_S)

    def _started(self) -> subprocess.Popen[bytes]:
        entry = Path(__file__).with_name("sandbox.py")
        command = [sys.executable, str(entry), str(self.spec.write(self.folder / "sandbox.json"))]
        with self.log.open("ab") as out:
            return subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True)

    def _probe(self, kind: str) -> Probe | None:
        spec = self._manifest.get(f"{kind}Probe")
        return Probe(spec, self.address, self._ports) if spec else None

    def _healthy(self, probes: Mapping[str, Probe | None]) -> bool:
        """Ask those whose time has come; False: it must be restarted."""
        startup, liveness, readiness = (probes[kind] for kind in ("startup", "liveness", "readiness"))
        if startup is not None and not startup.passed:
            startup.look()
            return not startup.failed
        if liveness is not None:
            liveness.look()
        if readiness is None:
            self._set_ready(True)
        elif readiness.look() and (readiness.passed or readiness.failed):
            self._set_ready(readiness.passed)
        return liveness is None or not liveness.failed

    def _set_ready(self, is_ready: bool) -> None:
        if is_ready != self.is_ready:
            self.is_ready = is_ready
            self._changed()

    def _end(self, process: subprocess.Popen[bytes], grace_s: float) -> int:
        process.send_signal(signal.SIGTERM)
        try:
            status = process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it has started ends with the container
        self.last_exit = status
        return status

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
