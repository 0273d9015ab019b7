"""AWS KMS: GenerateDataKey, Encrypt and Decrypt with an encryption context.

A request is tried once: the keyring decides when to ask again. The answers in _REFUSALS mean that the key is refused.
All others, such as throttling or expired credentials of the process, mean that the KMS is away for now.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tistream.runtime.aws import aws_client
from tistream.sealing.kms.protocol import ROOT_BYTES, Answer, Context, KeyRefused, KmsUnavailable

_CONNECT_S, _READ_S = 2.0, 5.0
_REFUSALS = {
    "AccessDeniedException",
    "DisabledException",
    "IncorrectKeyException",
    "InvalidCiphertextException",
    "InvalidKeyUsageException",
    "KMSInvalidStateException",  # its deletion is scheduled, or its key material was removed
    "NotFoundException",
}


class AwsKms:
    """A key or an alias of AWS KMS, with the credentials of the process."""

    def __init__(self, key_id: str, *, region: str | None = None, endpoint: str | None = None) -> None:
        """`region`: None = that of the environment. `endpoint`: another address than AWS's, for tests."""
        self._key_id, self._region, self._endpoint = key_id, region, endpoint
        self._lock = threading.Lock()
        self._kms: Any = None

    def generate(self, context: Context) -> Answer:
        answer = self._ask(
            lambda kms: kms.generate_data_key(
                KeyId=self._key_id, NumberOfBytes=ROOT_BYTES, EncryptionContext=dict(context)
            )
        )
        return _answer(answer, root=answer["Plaintext"], wrapped=answer["CiphertextBlob"])

    def wrap(self, root: bytes, context: Context) -> Answer:
        answer = self._ask(lambda kms: kms.encrypt(KeyId=self._key_id, Plaintext=root, EncryptionContext=dict(context)))
        return _answer(answer, root=root, wrapped=answer["CiphertextBlob"])

    def unwrap(self, wrapped: bytes, context: Context) -> Answer:
        answer = self._ask(
            lambda kms: kms.decrypt(KeyId=self._key_id, CiphertextBlob=wrapped, EncryptionContext=dict(context))
        )
        return _answer(answer, root=answer["Plaintext"], wrapped=wrapped)

    def _ask(self, request: Callable[[Any], Any]) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return request(self._client())
        except ClientError as e:
            answer = e.response
            code = str(answer.get("Error", {}).get("Code", ""))
            facts = {"kms_code": code, "request_id": str(answer.get("ResponseMetadata", {}).get("RequestId", ""))}
            if code in _REFUSALS:
                raise KeyRefused(f"the KMS refuses the key: {code}", **facts) from e
            raise KmsUnavailable(f"the KMS answered {code}", **facts) from e
        except BotoCoreError as e:
            raise KmsUnavailable(f"the KMS does not answer: {type(e).__name__}") from e

    def _client(self) -> Any:
        with self._lock:
            if self._kms is None:
                self._kms = aws_client(
                    "kms", region=self._region, endpoint=self._endpoint, connect_s=_CONNECT_S, read_s=_READ_S
                )
            return self._kms


def _answer(answer: Any, *, root: bytes, wrapped: bytes) -> Answer:
    request_id = str(answer.get("ResponseMetadata", {}).get("RequestId", ""))
    if len(root) != ROOT_BYTES:
        raise KeyRefused("the KMS answered with something else than a root", bytes=len(root), request_id=request_id)
    return Answer(root=root, wrapped=wrapped, request_id=request_id)
