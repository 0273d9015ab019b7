"""An S3 server that keeps its objects in a folder, and a KMS: ministack, which can be killed and restarted on the same
port.

Checks no signatures and honours `If-None-Match: *`. An object whose PUT was answered survives a SIGKILL.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from simulator.chaos.servers.ports import ServerError, free_port, wait_until
from simulator.chaos.servers.s3server import CREDENTIALS, REGION, S3Server


class DurableS3:
    """The server over a folder. The process that talks to it needs `s3server.CREDENTIALS` in its environment."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        """`host`: the address that it listens on."""
        self._folder, self._host, self.port = folder, host, free_port()
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def server(self) -> S3Server:
        """Its address and buckets."""
        return S3Server(endpoint=f"http://{self._host}:{self.port}")

    @property
    def pid(self) -> int:
        """Of the process; 0 before `start`."""
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        """Start (again), and wait until it answers."""
        program = Path(sys.executable).with_name("ministack")
        command = str(program) if program.exists() else shutil.which("ministack")
        if command is None:
            raise ServerError("ministack is missing: it comes with the extra 'testing' of tistream")
        with (self._folder / "log").open("ab") as out:
            self._process = subprocess.Popen([command], stdout=out, stderr=out, env=self._environment())
        wait_until(self._answers, self._process, self._folder / "log")

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            **CREDENTIALS,
            "SERVICES": "s3,kms",
            "BIND_HOST": self._host,
            "GATEWAY_PORT": str(self.port),
            "SFTP_ENABLED": "0",
            "S3_PERSIST": "1",
            "PERSIST_STATE": "1",
            "STATE_DIR": str(self._folder / "state"),
            "S3_DATA_DIR": str(self._folder / "objects"),
            "MINISTACK_REGION": REGION,
            "LOG_LEVEL": "WARNING",
        }

    def _answers(self) -> bool:
        import httpx2

        try:
            return bool(httpx2.get(f"{self.server.endpoint}/_ministack/health", timeout=5).is_success)
        except httpx2.TransportError:
            return False
