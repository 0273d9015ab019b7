"""Real TiStream processes for end-to-end tests: started from the command line, killed, pulled over HTTP."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from simulator.chaos.servers.ports import free_port
from tistream.client import Client, connect
from tistream.errors import TiStreamError

READY_S = 180.0


class TiStreamProcess:
    """One `tistream ...` process. Its standard error goes to a file, shown when it fails."""

    def __init__(self, *args: str, log: Path, env: Mapping[str, str] | None = None) -> None:
        self.args = args
        self.log = log
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("TISTREAM_", "AWS_"))}
        self._env = {**clean, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._ending = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start (again)."""
        self._ending = False
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tistream.cli.main", *self.args], stdout=out, stderr=out, env=self._env
            )

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM as an operator would; the exit status."""
        return self._end(signal.SIGTERM)

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        self._ending = True
        self._signal(signal.SIGTERM)

    def pause(self) -> None:
        """SIGSTOP: the process does nothing until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def wait(self, timeout_s: float) -> int:
        """Wait until it ends; the exit status."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    @property
    def pid(self) -> int:
        """Of the process; 0 before `start`."""
        return self._process.pid if self._process is not None else 0

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def ended_by_itself(self) -> bool:
        """Whether it was started and is gone without having been stopped or killed from here."""
        return self._process is not None and self._process.poll() is not None and not self._ending

    def output(self) -> str:
        """Its output so far."""
        return self.log.read_text("utf-8", errors="replace") if self.log.exists() else ""

    def _end(self, number: signal.Signals) -> int:
        self._ending = True
        self._signal(number)
        return 0 if self._process is None else self._process.wait(60)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)


class Up(TiStreamProcess):
    """`tistream up` over a folder."""

    def __init__(self, folder: Path, *more: str, env: Mapping[str, str] | None = None) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        args = ("up", "--data", str(folder / "data"), "--port", str(self.port), "--auth", "none", *more)
        super().__init__(*args, log=folder / "up.log", env=env)

    def __enter__(self) -> Self:
        super().__enter__()
        wait_until_ready(self)
        return self


def wait_until_ready(process: TiStreamProcess, url: str | None = None) -> None:
    """Wait until /readyz answers 200."""
    address = url or process.url  # type: ignore[attr-defined]
    deadline = time.monotonic() + READY_S
    with connect(address, retry_s=0) as client:
        while True:
            with contextlib.suppress(TiStreamError):
                client.get("/readyz")
                return
            if not process.alive or time.monotonic() > deadline:
                raise AssertionError(f"{address} is not ready:\n{process.output()[-4000:]}")
            time.sleep(0.05)


def pull_all(
    url: str, until_ts: int, *, format: str, timeout_s: float = 180, limit: int = 5000, **options: str
) -> bytes:
    """The bodies of a tenant's pulls from the beginning until everything at or below `until_ts` was served."""
    deadline = time.monotonic() + timeout_s
    parts: list[bytes] = []
    with connect(url) as client:
        cursor = None
        while True:
            page = client.tenant(1, 1).page(cursor=cursor, format=format, wait_s=0.5, limit=limit, options=options)
            parts.append(page.content)
            cursor = page.next_cursor
            if page.resolved_ts >= until_ts and not page.has_more:
                return b"".join(parts)
            if time.monotonic() > deadline:
                raise AssertionError(f"resolved ts is {page.resolved_ts}, wanted {until_ts}")


def owner_key(*where: str) -> str:
    """A new owner's key, written to the catalog that `where` names, as an operator creates it."""
    process = [sys.executable, "-m", "tistream.cli.main", "key", "owner", *where]
    return subprocess.run(process, stdout=subprocess.PIPE, text=True, check=True, timeout=READY_S).stdout.strip()


def register(url: str) -> None:
    """Register tenant 1/1."""
    with connect(url) as client:
        client.tenant(1, 1).register()


@contextlib.contextmanager
def running(processes: Sequence[TiStreamProcess]) -> Iterator[None]:
    """Start all; kill all at the end."""
    try:
        for process in processes:
            process.start()
        yield
    finally:
        for process in processes:
            process.kill()


def client(url: str) -> Client:
    """A client that gives up at once instead of retrying."""
    return connect(url, retry_s=0)
