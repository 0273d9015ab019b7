"""Clients of AWS services, as every part of TiStream opens them."""

from __future__ import annotations

from typing import Any


def aws_client(service: str, *, region: str | None, endpoint: str | None, connect_s: float, read_s: float) -> Any:
    """A client that tries each request once. `region` and `endpoint`: None = those of the environment and of AWS."""
    from boto3.session import Session
    from botocore.config import Config

    config = Config(
        connect_timeout=connect_s,
        read_timeout=read_s,
        retries={"total_max_attempts": 1},
        request_checksum_calculation="when_required",
    )
    # A session of its own: boto3's default one keeps the first credentials that the process used.
    return Session().client(service, region_name=region, endpoint_url=endpoint, config=config)
