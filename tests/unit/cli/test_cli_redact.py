"""Secrets do not reach the log; what only looks like one does."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest
import structlog

from tistream.cli import log as logs
from tistream.cli.redact import HIDDEN, clean_text, without_secrets
from tistream.config import LogSettings

SECRET = "s3cr3t-W0rd/+="


def cleaned(**fields: Any) -> dict[str, Any]:
    return dict(without_secrets(None, "info", dict(fields)))


@pytest.mark.parametrize(
    "name",
    [
        *("password", "db_password", "secret", "client_secret", "token", "session-token", "Authorization", "cookie"),
        *("credentials", "api_key", "apikey", "access_key", "secret_access_key", "aws_access_key_id", "private_key"),
        *("data_key", "signature"),
    ],
)
def test_fields_that_are_named_as_secrets(name: str) -> None:
    assert cleaned(**{name: SECRET}) == {name: HIDDEN}
    assert cleaned(facts={"inner": {name: SECRET}}) == {"facts": {"inner": {name: HIDDEN}}}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("mysql+pymysql://u:s3cr3t@h:3306/d", f"mysql+pymysql://u:{HIDDEN}@h:3306/d"),
        ("http://u:s3cr3t@h/x and more", f"http://u:{HIDDEN}@h/x and more"),
        ("GET /o?X-Amz-Date=1&X-Amz-Signature=abc&x=1", f"GET /o?X-Amz-Date=1&X-Amz-Signature={HIDDEN}&x=1"),
        (
            "/o?X-Amz-Credential=AKIA/2&X-Amz-Security-Token=t%2F",
            f"/o?X-Amz-Credential={HIDDEN}&X-Amz-Security-Token={HIDDEN}",
        ),
        ("/x?token=abc&limit=5", f"/x?token={HIDDEN}&limit=5"),
        ("Authorization: Bearer abc.def-ghi", f"Authorization: Bearer {HIDDEN}"),
        ("basic dXNlcjpwYXNz!", f"basic {HIDDEN}!"),
        ("key AKIAIOSFODNN7EXAMPLE is disabled", f"key {HIDDEN} is disabled"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7", f"aws_secret_access_key = {HIDDEN}"),
        ('{"aws_session_token": "FwoGZXIv"}', f'{{"aws_session_token": "{HIDDEN}"}}'),
    ],
)
def test_places_in_texts_where_secrets_stand(text: str, left: str) -> None:
    assert clean_text(text) == left
    assert cleaned(event=text, more=[text], error=ValueError(text)) == {"event": left, "more": [left], "error": left}


@pytest.mark.parametrize(
    "fields",
    [
        {"object_key": "committed/cluster-1/tenant-1/s-000001/000000000001.seg"},
        {"start_key": "7480", "end_key": "", "split_key": "74", "key": "readyz"},
        {"url": "s3://bucket/prefix?endpoint=http://h:9000&region=r"},
        {"url": "http://127.0.0.1:8711/v1/tenants?cursor=abc"},
        {"tokens": 5, "tso": 449_000_000_000_000_000, "ok": True, "none": None, "ms": 1.5},
        {"event": "the bearer of bad news", "password": ""},
        {"time": "2026-11-22T00:57:07.228078Z"},
    ],
)
def test_what_is_no_secret_stays(fields: dict[str, Any]) -> None:
    assert cleaned(**fields) == fields


def test_nothing_gets_through_a_configured_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    before = structlog.get_config()
    try:
        logs.configure(LogSettings(level="info", format="json"))
        logger = structlog.get_logger()
        try:
            raise ValueError(f"cannot reach mysql+pymysql://u:{SECRET.replace('/', '')}@h/d")
        except ValueError:
            logger.exception("it failed", password=SECRET, url=f"http://u:{SECRET.replace('/', '')}@h/")
    finally:
        structlog.configure(**before)
    (line,) = out.getvalue().splitlines()
    assert "s3cr3t" not in line
    assert json.loads(line)["password"] == HIDDEN
    assert "cannot reach" in json.loads(line)["exception"]
