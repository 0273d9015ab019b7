"""Keys of AWS KMS, over HTTP against ministack's, and of a file.

ministack compares the encryption context and refuses disabled and deleted keys. It enforces no key policy and never
throttles: those answers come from a double of ours, in the form of the service's own. It also opens a wrap with a
changed bit, and one that another of its keys made, with wrong bytes: only a file's wraps are tested for both.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from boto3.session import Session

from simulator.chaos.servers.durable_s3 import DurableS3
from simulator.chaos.servers.s3server import CREDENTIALS, REGION
from tistream.errors import InvalidInput, TiStreamError
from tistream.ids import Tenant
from tistream.sealing.kms.address import open_kms
from tistream.sealing.kms.aws import AwsKms
from tistream.sealing.kms.local import LocalKms
from tistream.sealing.kms.protocol import KeyRefused, Kms, KmsUnavailable, context_of

CONTEXT = context_of("prod", Tenant(1, 2))
OTHERS = [context_of("prod", Tenant(1, 3)), context_of("prod", Tenant(2, 2)), context_of("test", Tenant(1, 2)), {}]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = DurableS3(tmp_path_factory.mktemp("kms"))
    server.start()
    yield server.server.endpoint
    server.kill()


@pytest.fixture
def client(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in {**CREDENTIALS, "AWS_DEFAULT_REGION": REGION}.items():
        monkeypatch.setenv(name, value)
    return Session().client("kms", endpoint_url=endpoint, region_name=REGION)


@pytest.fixture(params=["aws", "alias", "file"])
def kms(request: pytest.FixtureRequest, client: Any, endpoint: str, tmp_path: Path) -> Kms:
    if request.param == "file":
        return key_file(tmp_path / "key", "5a" * 32)
    key = client.create_key()["KeyMetadata"]
    if request.param == "aws":
        return open_kms(key["Arn"], endpoint=endpoint)
    name = f"alias/tenant-{key['KeyId']}"
    client.create_alias(AliasName=name, TargetKeyId=key["KeyId"])
    return open_kms(name, endpoint=endpoint)


def key_file(path: Path, text: str) -> Kms:
    path.write_text(text, "ascii")
    path.chmod(0o600)
    return open_kms(f"local:{path}")


def test_a_root_is_wrapped_and_opened_for_its_context_only(kms: Kms) -> None:
    made, again = kms.generate(CONTEXT), kms.generate(CONTEXT)
    assert len(made.root) == 32
    assert made.root != again.root
    assert made.root not in made.wrapped
    assert kms.unwrap(made.wrapped, CONTEXT).root == made.root
    for context in OTHERS:
        with pytest.raises(KeyRefused):
            kms.unwrap(made.wrapped, context)


def test_a_root_is_wrapped_for_another_key(kms: Kms, tmp_path: Path) -> None:
    """A change of key: the root stays."""
    other = key_file(tmp_path / "other", "6b" * 32)
    made = kms.generate(CONTEXT)
    moved = other.wrap(made.root, CONTEXT)
    assert other.unwrap(moved.wrapped, CONTEXT).root == made.root
    assert kms.unwrap(kms.wrap(made.root, CONTEXT).wrapped, CONTEXT).root == made.root
    with pytest.raises(KeyRefused):
        other.unwrap(made.wrapped, CONTEXT)
    with pytest.raises(KeyRefused):
        kms.unwrap(moved.wrapped, CONTEXT)


def test_a_key_is_taken_back_and_granted(client: Any, endpoint: str) -> None:
    key_id = client.create_key()["KeyMetadata"]["KeyId"]
    arn = client.describe_key(KeyId=key_id)["KeyMetadata"]["Arn"]
    kms = open_kms(arn, endpoint=endpoint)
    made = kms.generate(CONTEXT)
    assert made.request_id
    client.disable_key(KeyId=key_id)
    with pytest.raises(KeyRefused) as refusal:
        kms.unwrap(made.wrapped, CONTEXT)
    assert refusal.value.facts["kms_code"] == "DisabledException"
    client.enable_key(KeyId=key_id)
    assert kms.unwrap(made.wrapped, CONTEXT).root == made.root
    client.schedule_key_deletion(KeyId=key_id, PendingWindowInDays=7)
    with pytest.raises(KeyRefused):
        kms.unwrap(made.wrapped, CONTEXT)
    with pytest.raises(KeyRefused):
        open_kms(arn[:-4] + "0000", endpoint=endpoint).generate(CONTEXT)


class _Refusing(BaseHTTPRequestHandler):
    """Answers each request with an error of KMS."""

    status, error = 400, ""

    def do_POST(self) -> None:
        body = json.dumps({"__type": self.error, "message": "as the policy says"}).encode()
        self.send_response(self.status)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("x-amzn-RequestId", "id-of-the-log")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def refusing() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.usefixtures("client")
def test_refusals_are_told_from_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[tuple[int, str, type[TiStreamError]]] = [
        (400, "AccessDeniedException", KeyRefused),
        (400, "KMSInvalidStateException", KeyRefused),
        (400, "ThrottlingException", KmsUnavailable),
        (400, "ExpiredTokenException", KmsUnavailable),
        (500, "KMSInternalException", KmsUnavailable),
        (503, "DependencyTimeoutException", KmsUnavailable),
        (500, "KeyUnavailableException", KmsUnavailable),
    ]
    with refusing() as url:
        kms = AwsKms("alias/x", region=REGION, endpoint=url)
        for status, code, kind in answers:
            monkeypatch.setattr(_Refusing, "status", status)
            monkeypatch.setattr(_Refusing, "error", code)
            with pytest.raises(kind) as error:
                kms.unwrap(b"w" * 64, CONTEXT)
            assert (error.value.facts["kms_code"], error.value.facts["request_id"]) == (code, "id-of-the-log")


@pytest.mark.usefixtures("client")
def test_a_kms_that_is_not_there_is_away() -> None:
    with pytest.raises(KmsUnavailable, match="does not answer"):
        AwsKms("alias/x", region=REGION, endpoint="http://127.0.0.1:9").generate(CONTEXT)


def test_a_wrap_that_is_cut_off_opens_nothing(kms: Kms) -> None:
    wrapped = kms.generate(CONTEXT).wrapped
    for length in (1, 9, 20, len(wrapped) // 2):
        with pytest.raises(KeyRefused):
            kms.unwrap(wrapped[:length], CONTEXT)


def test_a_wrap_by_a_file_that_is_changed_opens_nothing(tmp_path: Path) -> None:
    kms = key_file(tmp_path / "key", "5a" * 32)
    wrapped = kms.generate(CONTEXT).wrapped
    for at in range(len(wrapped)):
        with pytest.raises(KeyRefused):
            kms.unwrap(wrapped[:at] + bytes([wrapped[at] ^ 1]) + wrapped[at + 1 :], CONTEXT)
    with pytest.raises(KeyRefused):
        kms.unwrap(wrapped + b"x", CONTEXT)


def test_a_file_is_taken_back_and_granted(tmp_path: Path) -> None:
    path = tmp_path / "key"
    kms = key_file(path, "5a" * 32)
    made = kms.generate(CONTEXT)
    path.rename(tmp_path / "away")
    with pytest.raises(KeyRefused, match="not there"):
        kms.unwrap(made.wrapped, CONTEXT)
    (tmp_path / "away").rename(path)
    assert kms.unwrap(made.wrapped, CONTEXT).root == made.root
    path.chmod(0o640)
    with pytest.raises(KeyRefused, match="chmod 600"):
        kms.unwrap(made.wrapped, CONTEXT)
    for text in ("5a" * 31, "not hexadecimal" * 4):
        with pytest.raises(KeyRefused) as error:
            key_file(path, text).generate(CONTEXT)
        assert text[:10] not in str(error.value)


@pytest.mark.parametrize(
    "address",
    [
        *("", "local:key", "local:", "alias/", "alias/a b", "https://kms.example", "arn:aws:s3:::bucket"),
        *("arn:aws:kms:eu.evil.example/:111122223333:key/a", "arn:aws:kms:eu-central-1:1:key/a", "key/a"),
    ],
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(InvalidInput):
        open_kms(address)


def test_forms_of_addresses() -> None:
    assert isinstance(open_kms("local:/etc/tistream/key"), LocalKms)
    for arn in (
        "arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab",
        "arn:aws-us-gov:kms:us-gov-west-1:111122223333:alias/tenants/7",
        "arn:aws:kms:eu-central-1:111122223333:key/mrk-1234abcd12ab34cd56ef1234567890ab",
        "alias/tenant_7",
    ):
        assert isinstance(open_kms(arn), AwsKms)
