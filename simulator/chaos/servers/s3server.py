"""A real S3 server for tests: moto's, in its own process, on a free port, stopped when the block ends.

It keeps everything in memory, checks no signatures and honours `If-None-Match: *`. moto itself checks whether the
object exists and writes it later, so two concurrent writers may both succeed, which S3 never does. Here such requests
are served one at a time.

    python -m simulator.chaos.servers.s3server PORT
"""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.chaos.servers.ports import START_S, free_port, wait_until

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

REGION = "us-east-1"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "tistream-test", "AWS_SECRET_ACCESS_KEY": "tistream-test-secret"}


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    """A running server. The process that talks to it needs CREDENTIALS in its environment."""

    endpoint: str  #: http://127.0.0.1:port

    def create_bucket(self, bucket: str) -> None:
        """Make a bucket; its name has at least three characters."""
        with self._client() as client:
            client.create_bucket(Bucket=bucket)

    def put(self, bucket: str, key: str, data: bytes) -> None:
        """Put an object, as a pusher may that does not go through our own store."""
        with self._client() as client:
            client.put_object(Bucket=bucket, Key=key, Body=data)

    def notify(self, bucket: str, *prefixes: str) -> str:
        """Send events of new objects below these prefixes to a queue of their own; the queue's address."""
        with self._client("sqs") as client:
            queue = client.create_queue(QueueName=f"{bucket}-events")["QueueUrl"]
            queue_attributes = client.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])
        self._notify(bucket, "QueueConfigurations", {"QueueArn": queue_attributes["Attributes"]["QueueArn"]}, prefixes)
        return str(queue)

    def notify_over_http(self, bucket: str, address: str, *prefixes: str) -> None:
        """The same as POST requests to an address, by a topic of SNS."""
        with self._client("sns") as client:
            topic = client.create_topic(Name=f"{bucket}-events")["TopicArn"]
            client.subscribe(TopicArn=topic, Protocol=address.partition(":")[0], Endpoint=address)
        self._notify(bucket, "TopicConfigurations", {"TopicArn": topic}, prefixes)

    def _notify(self, bucket: str, kind: str, target: dict[str, str], prefixes: Sequence[str]) -> None:
        def below(prefix: str) -> dict[str, Any]:
            rule = {"Key": {"FilterRules": [{"Name": "prefix", "Value": prefix}]}}
            return {**target, "Events": ["s3:ObjectCreated:*"], "Filter": rule}

        with self._client() as client:
            client.put_bucket_notification_configuration(
                Bucket=bucket, NotificationConfiguration={kind: [below(prefix) for prefix in prefixes]}
            )

    @contextmanager
    def _client(self, service: str = "s3") -> Iterator[Any]:
        from boto3.session import Session

        with closing(
            Session().client(
                service,
                endpoint_url=self.endpoint,
                region_name=REGION,
                aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
                aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            )
        ) as client:
            yield client

    def url(self, bucket: str, prefix: str = "") -> str:
        """The address for `open_store`."""
        path = f"/{prefix}" if prefix else ""
        return f"s3://{bucket}{path}?endpoint={self.endpoint}&region={REGION}"


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A running S3 server without buckets."""
    with tempfile.TemporaryDirectory(prefix="tistream-s3-") as folder:
        log = Path(folder) / "log"
        port = free_port()
        command = [sys.executable, "-m", "simulator.chaos.servers.s3server", str(port)]
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **CREDENTIALS})
            try:
                wait_until(lambda: _answers(port), process, log)
                yield S3Server(endpoint=f"http://127.0.0.1:{port}")
            finally:
                process.terminate()
                try:
                    process.wait(timeout=START_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


class OneCreatorAtATime:
    """A WSGI application that serves conditional writes one after the other, once their bodies have come."""

    def __init__(self, app: WSGIApplication) -> None:
        self._app = app
        self._lock = threading.Lock()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in ("PUT", "POST") or "HTTP_IF_NONE_MATCH" not in environ:
            return self._app(environ, start_response)
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        with self._lock:
            return self._app({**environ, "wsgi.input": io.BytesIO(body)}, start_response)


def serve(port: int) -> None:
    """Answer on 127.0.0.1 until the process is ended."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    app = DomainDispatcherApplication(create_backend_app)
    run_simple("127.0.0.1", port, OneCreatorAtATime(app), threaded=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
