"""Reads the notifications of an S3 bucket from an SQS queue, by long polling, and passes them on.

Any number of processes may read one queue: a message goes to one of them, which passes it on to the process that looks.
A message is deleted after that, also when passing on failed: by then looking has found the file.
"""

from __future__ import annotations

import re
from typing import Any

import structlog

from tistream.clock import Clock
from tistream.errors import InvalidInput, NotificationsUnavailable
from tistream.feed.hints import Notifications
from tistream.model.problem import Problem
from tistream.objectstore.notifications import NotifiedObject
from tistream.runtime.aws import aws_client
from tistream.runtime.service import Repeating

log = structlog.get_logger(__name__)

WAIT_S = 2  #: of one request for messages; a stop takes as long
MESSAGES_MAX = 10  #: SQS's limit
_CONNECT_S, _READ_S = 3, WAIT_S + 5
_REGION = re.compile(r"https://sqs\.([a-z0-9-]+)\.amazonaws\.")


class QueueReader:
    """A Service."""

    def __init__(
        self,
        name: str,
        notifications: Notifications,
        clock: Clock,
        *,
        queue_url: str,
        region: str | None = None,
        endpoint: str | None = None,
    ) -> None:
        """`region` of the bucket; AWS's queues name theirs. `endpoint` of SQS; None = AWS. Credentials are those of the
        environment."""
        self.name, self._notifications = f"{name}/notifications", notifications
        named = _REGION.match(queue_url)
        self._region = named[1] if named else region or "us-east-1"
        self._queue_url, self._endpoint = queue_url, endpoint
        self._sqs: Any = None
        self._loop = Repeating(self.name, self._step, interval_s=0.0, clock=clock, lasting=True)

    def start(self) -> None:
        self._loop.start()

    def wait_until_ready(self, timeout_s: float) -> bool:
        """At once: a queue that does not answer delays no service."""
        return True

    def stop(self) -> None:
        self._loop.stop()

    def problems(self) -> list[Problem]:
        return self._loop.problems()

    def _step(self) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self._sqs = self._sqs or self._client()
            answer = self._sqs.receive_message(
                QueueUrl=self._queue_url, MaxNumberOfMessages=MESSAGES_MAX, WaitTimeSeconds=WAIT_S
            )
            messages = answer.get("Messages", [])
            if not messages:
                return
            self._notifications.pass_on([written for m in messages if (written := self._read(m["Body"])) is not None])
            entries = [{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(messages)]
            self._sqs.delete_message_batch(QueueUrl=self._queue_url, Entries=entries)
        except (BotoCoreError, ClientError) as e:
            raise NotificationsUnavailable(queue=self._queue_url, cause=str(e)) from e

    def _read(self, body: str) -> NotifiedObject | None:
        try:
            return self._notifications.read(body.encode("utf-8", "surrogateescape"))
        except InvalidInput as e:
            log.warning("unreadable message in the queue of notifications", queue=self._queue_url, error=str(e))
            return None

    def _client(self) -> Any:
        return aws_client("sqs", region=self._region, endpoint=self._endpoint, connect_s=_CONNECT_S, read_s=_READ_S)
