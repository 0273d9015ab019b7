"""A real S3 server for tests: moto's, in a process of its own, on a free port, gone when the block ends.

It keeps everything in memory, checks no signatures and honours `If-None-Match: *`, which is what TiStream needs.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tistream.testing.ports import free_port

START_S = 60
REGION = "us-east-1"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "tistream-test", "AWS_SECRET_ACCESS_KEY": "tistream-test-secret"}


class S3ServerError(RuntimeError):
    """The server did not come up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    """A running server. The process that talks to it needs CREDENTIALS in its environment."""

    endpoint: str  #: http://127.0.0.1:port

    def create_bucket(self, bucket: str) -> None:
        """Make a bucket; its name has at least three characters."""
        import boto3

        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        )
        try:
            client.create_bucket(Bucket=bucket)
        finally:
            client.close()

    def url(self, bucket: str, prefix: str = "") -> str:
        """What `open_store` takes."""
        path = f"/{prefix}" if prefix else ""
        return f"s3://{bucket}{path}?endpoint={self.endpoint}&region={REGION}&path_style=true"


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A running S3 server without buckets."""
    with tempfile.TemporaryDirectory(prefix="tistream-s3-") as folder:
        log = Path(folder) / "log"
        port = free_port()
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **CREDENTIALS})
            try:
                _wait_until_ready(process, port, log)
                yield S3Server(endpoint=f"http://127.0.0.1:{port}")
            finally:
                process.terminate()
                try:
                    process.wait(timeout=START_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise S3ServerError(f"moto stopped with {process.returncode}:\n{log.read_text(errors='replace')}")
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            time.sleep(0.05)
    raise S3ServerError(f"moto did not answer within {START_S} s:\n{log.read_text(errors='replace')}")
