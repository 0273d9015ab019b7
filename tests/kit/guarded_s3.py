"""An S3 server that checks signatures, roles and session policies: ministack with AUTH=true, and one bucket in it.

What it does not do, as S3 does: it knows no condition on which KMS key a put names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simulator.chaos.servers.durable_s3 import DurableS3
from simulator.chaos.servers.s3server import REGION, S3Server

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
        import boto3
        from botocore.config import Config

        return boto3.client(
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
        made = iam.create_role(RoleName=name, AssumeRolePolicyDocument=_policy([trust]))
        iam.put_role_policy(RoleName=name, PolicyName="buffer", PolicyDocument=_policy(statements))
        return str(made["Role"]["Arn"])

    def _environment(self) -> dict[str, str]:
        return {**super()._environment(), **ROOT, "SERVICES": "s3,sts,iam,kms", "AUTH": "true"}


@contextmanager
def guarded_s3(folder: Path) -> Iterator[GuardedS3]:
    """A running server with the bucket."""
    server = GuardedS3(folder)
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
