"""S3 servers for tests: one that enforces policies, and one that does not keep what it promises."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2

from simulator.chaos.servers.durable_s3 import DurableS3
from simulator.chaos.servers.s3server import REGION, S3Server

_HOP = {"connection", "transfer-encoding", "content-encoding", "content-length", "date", "server", "keep-alive"}


@contextmanager
def careless_s3(endpoint: str) -> Iterator[str]:
    """The address of the proxy in front of the server at `endpoint`."""
    with httpx2.Client(base_url=endpoint, timeout=60) as behind:

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = [(name, value) for name, value in self.headers.items() if name.lower() != "if-none-match"]
                answer = behind.request(self.command, self.path, headers=headers, content=body)
                self.send_response(answer.status_code)
                for name, value in answer.headers.items():
                    if name.lower() not in _HOP:
                        self.send_header(name, value)
                length = answer.headers.get("content-length", "0") if self.command == "HEAD" else len(answer.content)
                self.send_header("Content-Length", str(length))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer.content)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = forward

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            server.daemon_threads = True
            thread = threading.Thread(target=server.serve_forever, name="careless-s3", daemon=True)
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_address[1]}"
            finally:
                server.shutdown()
                thread.join()


BUCKET, FOLDER = "tistream", "production"
ROOT = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}  # who may do everything
ACCOUNT = "000000000000"


class GuardedS3(DurableS3):
    """The server. The service that uses it as its own has ROOT in its environment."""

    @property
    def endpoint(self) -> str:
        return self.server.endpoint

    @property
    def url(self) -> str:
        """What `open_store` takes."""
        return S3Server(endpoint=self.endpoint).url(BUCKET, FOLDER)

    def client(self, service: str, **config: Any) -> Any:
        """boto3's, as who may do everything."""
        from boto3.session import Session
        from botocore.config import Config

        return Session().client(
            service,
            endpoint_url=self.endpoint,
            region_name=REGION,
            config=Config(**config),
            aws_access_key_id=ROOT["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=ROOT["AWS_SECRET_ACCESS_KEY"],
        )

    def make_role(self, name: str, statements: list[dict[str, Any]]) -> str:
        """A role that the service may take; its ARN."""
        iam = self.client("iam")
        service = {"AWS": f"arn:aws:iam::{ACCOUNT}:root"}
        trust = {"Effect": "Allow", "Principal": service, "Action": "sts:AssumeRole"}
        role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=_policy([trust]))
        iam.put_role_policy(RoleName=name, PolicyName="buffer", PolicyDocument=_policy(statements))
        return str(role["Role"]["Arn"])

    def _environment(self) -> dict[str, str]:
        return {**super()._environment(), **ROOT, "SERVICES": "s3,sts,iam,kms", "AUTH": "true"}


@contextmanager
def guarded_s3(folder: Path, host: str = "127.0.0.1") -> Iterator[GuardedS3]:
    """A running server with the bucket."""
    server = GuardedS3(folder, host)
    server.start()
    try:
        server.client("s3").create_bucket(Bucket=BUCKET)
        yield server
    finally:
        server.kill()


def settings(server: GuardedS3, role_arn: str) -> Mapping[str, str]:
    """The environment of a service over the bucket that issues credentials of this role."""
    return {
        **ROOT,
        "TISTREAM_OBJECT_STORE_URL": server.url,
        "TISTREAM_PUSH_ROLE_ARN": role_arn,
        "TISTREAM_PUSH_STS_ENDPOINT": server.endpoint,
    }


def _policy(statements: list[dict[str, Any]]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": statements})
