"""The Terraform files: parsed, every reference resolved, and the properties that must hold asserted."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import hcl2
import pytest

from apiserver.control.push_policy import PushTerms, session_policy
from tistream import config
from tistream.ids import Tenant

FOLDER = Path(__file__).parents[3] / "infra" / "terraform"
TEXT = {path.name: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.tf"))}


def plain(value: Any) -> Any:
    """Without the quotes that the parser keeps around names and strings."""
    if isinstance(value, dict):
        return {plain(k): plain(v) for k, v in value.items() if not str(k).startswith("__")}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value.strip('"') if isinstance(value, str) else value


TREES = {name: plain(hcl2.loads(text)) for name, text in TEXT.items()}


def blocks(kind: str) -> dict[str, dict[str, Any]]:
    """ "type.name" (or "name") -> body, of resources, data, variables or outputs."""
    bodies: dict[str, dict[str, Any]] = {}
    for tree in TREES.values():
        for block in tree.get(kind, ()):
            for first, inner in block.items():
                if kind in ("resource", "data"):
                    bodies |= {f"{first}.{name}": body for name, body in inner.items()}
                else:
                    bodies[first] = inner
    return bodies


RESOURCES, DATA, VARIABLES = blocks("resource"), blocks("data"), blocks("variable")


def body(name: str) -> dict[str, Any]:
    return RESOURCES[name]


def only(value: Any) -> Any:
    """The one block of this name."""
    assert isinstance(value, list)
    assert len(value) == 1
    return value[0]


def test_every_reference_is_declared_and_every_variable_used() -> None:
    code = "\n".join(re.sub(r"#.*", "", text) for text in TEXT.values())
    resources = set(re.findall(r"(?<![\w.\"])(aws_\w+\.\w+|random_\w+\.\w+)\b", code))
    assert resources
    assert sorted(resources - set(RESOURCES)) == []
    data = set(re.findall(r"\bdata\.(aws_\w+\.\w+)", code))
    assert data == set(DATA)
    assert set(re.findall(r"\bvar\.(\w+)", code)) == set(VARIABLES)
    assert all(variable.get("description") for variable in VARIABLES.values())
    assert all(output.get("description") for output in blocks("output").values())


@pytest.mark.parametrize(
    "kind", ["public_access_block", "server_side_encryption_configuration", "versioning", "policy"]
)
def test_the_bucket_is_guarded(kind: str) -> None:
    assert body(f"aws_s3_bucket_{kind}.tistream")["bucket"] == "${aws_s3_bucket.tistream.id}"


def test_nothing_of_the_bucket_is_public_or_plain() -> None:
    block = body("aws_s3_bucket_public_access_block.tistream")
    flags = ("block_public_acls", "block_public_policy", "ignore_public_acls", "restrict_public_buckets")
    assert all(block[flag] is True for flag in flags)
    rule = only(body("aws_s3_bucket_server_side_encryption_configuration.tistream")["rule"])
    assert rule["bucket_key_enabled"] is True
    assert only(rule["apply_server_side_encryption_by_default"])["sse_algorithm"] == "aws:kms"
    assert body("aws_s3_bucket.tistream")["force_destroy"] is False


def test_the_bucket_never_expires_the_log() -> None:
    rule = only(body("aws_s3_bucket_lifecycle_configuration.tistream")["rule"])
    assert set(only(rule["expiration"])) == {"expired_object_delete_marker"}


def test_the_database_is_in_two_zones_encrypted_and_private() -> None:
    database = body("aws_db_instance.catalog")
    assert database["multi_az"] is True
    assert database["storage_encrypted"] is True
    assert database["deletion_protection"] is True
    assert database["publicly_accessible"] is False
    assert database["skip_final_snapshot"] is False
    assert body("aws_kms_key.tistream")["enable_key_rotation"] is True
    assert "cidr_ipv4" not in body("aws_vpc_security_group_ingress_rule.catalog")


def test_roles_may_do_what_the_services_do_and_no_more() -> None:
    def actions(name: str) -> set[str]:
        return {action for s in DATA[f"aws_iam_policy_document.{name}"]["statement"] for action in s["actions"]}

    assert actions("bucket_access") == {
        *("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket"),
        *("kms:Decrypt", "kms:GenerateDataKey"),
    }
    assert actions("issue") == {"sts:AssumeRole"}
    assert body("aws_iam_role_policy.issue")["role"] == '${aws_iam_role.services["api"].id}'
    assert actions("pusher") == {"s3:PutObject", "kms:GenerateDataKey"}
    assert actions("read_notifications") == {"sqs:ReceiveMessage", "sqs:DeleteMessage"}


def test_only_the_bucket_writes_to_the_queue_of_notifications_and_only_of_pushers_files() -> None:
    statement = only(DATA["aws_iam_policy_document.notifications"]["statement"])
    assert statement["actions"] == ["sqs:SendMessage"]
    assert ["${aws_s3_bucket.tistream.arn}"] in [condition["values"] for condition in statement["condition"]]
    queue = only(body("aws_s3_bucket_notification.notifications")["queue"])
    assert queue["filter_prefix"] == "${var.prefix}/data_change_buffer/"
    assert body("aws_sqs_queue.notifications")["sqs_managed_sse_enabled"] is True


def test_the_role_of_pushers_allows_what_sessions_ask_for_and_no_more() -> None:
    """A session may do what role and session policy both allow: as one is narrowed, so must be the other."""
    values = {
        "${aws_s3_bucket.tistream.arn}": "arn:aws:s3:::changes",
        "${var.prefix}": VARIABLES["prefix"]["default"],
        "${aws_kms_key.tistream.arn}": "arn:aws:kms:eu-central-1:123456789012:key/1b2c3d4e",
    }

    def resolved(text: str) -> str:
        return re.sub(r"\$\{[^}]*\}", lambda match: str(values[match[0]]), text)

    allowed = [
        (action, resolved(resource))
        for statement in DATA["aws_iam_policy_document.pusher"]["statement"]
        for action in statement["actions"]
        for resource in statement["resources"]
    ]
    terms = PushTerms(
        bucket="changes",
        prefix=VARIABLES["prefix"]["default"],
        role_arn="arn:aws:iam::123456789012:role/tistream-pusher",
        kms_key_arn=values["${aws_kms_key.tistream.arn}"],
    )
    of_sessions = [
        (statement["Action"], resource)
        for statement in json.loads(session_policy(terms, Tenant(3, 4)))["Statement"]
        for resource in ([statement["Resource"]] if isinstance(statement["Resource"], str) else statement["Resource"])
    ]
    used = {
        (action, pattern)
        for action, resource in of_sessions
        for may, pattern in allowed
        if may == action and fnmatchcase(resource.removesuffix("*"), pattern)
    }
    assert len(used) == len(of_sessions) == 3
    assert used == set(allowed), "the role allows something that no session asks for"


def test_the_api_alone_may_take_the_role_of_pushers() -> None:
    (trust,) = DATA["aws_iam_policy_document.assume_pusher"]["statement"]
    assert (trust["actions"], only(trust["principals"])["identifiers"]) == (
        ["sts:AssumeRole"],
        ['${aws_iam_role.services["api"].arn}'],
    )
    assert config.PushSettings().duration_s <= body("aws_iam_role.pusher").get("max_session_duration", 3600)


def test_the_catalog_takes_encrypted_connections_only() -> None:
    parameters = {p["name"]: str(p["value"]) for p in body("aws_db_parameter_group.catalog")["parameter"]}
    assert parameters["require_secure_transport"] == "1"
