"""The session policy of a tenant's pushers for STS (pure).

    s3:PutObject             data_change_buffer/cluster-{c}/tenant-{t}/*  and  seeds/cluster-{c}/tenant-{t}/*
    kms:GenerateDataKey      of the one key, if any; then each put must name it

Nothing else is allowed: no read, list, delete or multipart upload. A session may do what both the role's policy and
this one allow. The prefixes end with a slash, so tenant 1 does not match tenant 10; our keys contain no wildcard.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from tistream.errors import ConfigError
from tistream.ids import Tenant
from tistream.objectstore.layout import buffer_prefix, seeds_prefix

POLICY_CHARS_MAX = 2048  # of STS
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ID_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PushTerms:
    """Push settings of a deployment. ConfigError when the policy of some tenant would be too long."""

    bucket: str
    prefix: str  #: the deployment's folder, without outer slashes; empty = the whole bucket
    role_arn: str
    kms_key_arn: str = ""  #: empty = puts name no key

    def __post_init__(self) -> None:
        if not _BUCKET.fullmatch(self.bucket):
            raise ConfigError("not a bucket's name", bucket=self.bucket)
        longest = session_policy(self, Tenant(_ID_MAX, _ID_MAX))
        if len(longest) > POLICY_CHARS_MAX:
            raise ConfigError(
                f"the bucket's folder is so long that a session policy has more than {POLICY_CHARS_MAX} characters",
                prefix=self.prefix,
            )


def push_prefixes(tenant: Tenant) -> tuple[str, ...]:
    """The folders to which a tenant's pushers write, relative to the deployment's folder."""
    return (buffer_prefix(tenant), seeds_prefix(tenant))


def session_policy(terms: PushTerms, tenant: Tenant) -> str:
    """The policy as JSON without spaces, which some servers cannot parse."""
    folder = f"{terms.prefix}/" if terms.prefix else ""
    partition = terms.role_arn.split(":")[1]
    root = f"arn:{partition}:s3:::{terms.bucket}/{folder}"
    puts: dict[str, Any] = {
        "Effect": "Allow",
        "Action": "s3:PutObject",
        "Resource": [f"{root}{prefix}*" for prefix in push_prefixes(tenant)],
    }
    statements = [puts]
    if terms.kms_key_arn:
        puts["Condition"] = {
            "StringEquals": {
                "s3:x-amz-server-side-encryption": "aws:kms",
                "s3:x-amz-server-side-encryption-aws-kms-key-id": terms.kms_key_arn,
            }
        }
        statements.append({"Effect": "Allow", "Action": "kms:GenerateDataKey", "Resource": terms.kms_key_arn})
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))
