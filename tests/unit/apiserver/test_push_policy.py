"""The session policy: these words and no others, and short enough for STS."""

from __future__ import annotations

import json
from typing import Any

import pytest

from apiserver.control.push_policy import PushTerms, push_prefixes, session_policy
from tistream.errors import ConfigError
from tistream.ids import Tenant

ROLE = "arn:aws:iam::123456789012:role/tistream-pusher"
KEY = "arn:aws:kms:eu-central-1:123456789012:key/1b2c3d4e-0000-4000-8000-1234567890ab"


def statements(terms: PushTerms, tenant: Tenant) -> list[dict[str, Any]]:
    text = session_policy(terms, tenant)
    assert " " not in text
    policy = json.loads(text)
    assert (policy.pop("Version"), set(policy)) == ("2012-10-17", {"Statement"})
    statement_list: list[dict[str, Any]] = policy["Statement"]
    return statement_list


def test_it_allows_puts_below_the_tenants_folders_and_nothing_else() -> None:
    terms = PushTerms(bucket="changes", prefix="production", role_arn=ROLE)
    assert statements(terms, Tenant(3, 4)) == [
        {
            "Effect": "Allow",
            "Action": "s3:PutObject",
            "Resource": [
                "arn:aws:s3:::changes/production/data_change_buffer/cluster-3/tenant-4/*",
                "arn:aws:s3:::changes/production/seeds/cluster-3/tenant-4/*",
            ],
        }
    ]
    assert push_prefixes(Tenant(3, 4)) == ("data_change_buffer/cluster-3/tenant-4/", "seeds/cluster-3/tenant-4/")


def test_a_whole_bucket_in_another_partition() -> None:
    terms = PushTerms(bucket="changes", prefix="", role_arn=ROLE.replace("arn:aws:", "arn:aws-cn:"))
    (only,) = statements(terms, Tenant(3, 4))
    assert only["Resource"][0] == "arn:aws-cn:s3:::changes/data_change_buffer/cluster-3/tenant-4/*"


def test_with_a_key_each_put_must_name_it() -> None:
    terms = PushTerms(bucket="changes", prefix="production", role_arn=ROLE, kms_key_arn=KEY)
    puts, data_keys = statements(terms, Tenant(3, 4))
    assert puts["Condition"] == {
        "StringEquals": {
            "s3:x-amz-server-side-encryption": "aws:kms",
            "s3:x-amz-server-side-encryption-aws-kms-key-id": KEY,
        }
    }
    assert data_keys == {"Effect": "Allow", "Action": "kms:GenerateDataKey", "Resource": KEY}


def test_what_is_too_long_for_any_tenant_is_refused_at_the_start() -> None:
    longest = PushTerms(bucket="b" * 63, prefix="p" * 400, role_arn=ROLE, kms_key_arn=KEY)
    assert 1500 < len(session_policy(longest, Tenant(2**63 - 1, 2**63 - 1))) <= 2048
    with pytest.raises(ConfigError, match="more than 2048 characters"):
        PushTerms(bucket="b" * 63, prefix="p" * 900, role_arn=ROLE, kms_key_arn=KEY)


@pytest.mark.parametrize("bucket", ["*", "a", "with/slash", "with space", "DURABLE_TS", 'quo"te'])
def test_a_bucket_that_could_say_more_than_its_name_is_refused(bucket: str) -> None:
    with pytest.raises(ConfigError, match="not a bucket's name"):
        PushTerms(bucket=bucket, prefix="", role_arn=ROLE)
