"""API keys as text: their form, their hashes, and their removal from stored bytes.

    tsk_<id>_<secret><checksum>      an API key
    tsl_<secret>                     a login code: opens the console once
    tss_<secret>                     a console session: the value of its cookie

All parts are base32 in lower case, so a key is one word for a double click and for secret scanners. The id (64 random
bits) is public. The secret has 192 random bits, so its plain SHA-256 may be stored. The checksum (CRC-32 of everything
before it) tells a damaged key from an unknown one without a catalog read. Pure: random bits are the caller's.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from dataclasses import dataclass

from tistream.errors import Unauthenticated

ID_BYTES = 8
SECRET_BYTES = 24
_CHECK_CHARS = 7
_KEY = re.compile(r"tsk_([a-z2-7]{13})_([a-z2-7]{39})([a-z2-7]{7})")
_SECRETS = re.compile(rb"(tsk_[a-z2-7]{13}_|ts[ls]_)[a-z2-7]{39,46}")
_HIDDEN = rb"\1(shown once)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A well-formed key, not authenticated yet."""

    key_id: str
    secret_hash: str  #: SHA-256 of the secret, hexadecimal


def format_key(key_id: bytes, secret: bytes) -> str:
    """The text of a key of ID_BYTES and SECRET_BYTES random bytes."""
    body = f"tsk_{_word(key_id)}_{_word(secret)}"
    return body + _checksum(body)


def parse_key(text: str) -> ApiKey:
    """Parse a key. Unauthenticated when malformed; errors do not contain the text."""
    match = _KEY.fullmatch(text)
    if match is None:
        raise Unauthenticated("This is not an API key: keys look like tsk_..._...")
    key_id, secret, check = match.groups()
    if _checksum(f"tsk_{key_id}_{secret}") != check:
        raise Unauthenticated("The API key is damaged: its checksum does not match. It may have been cut or mistyped.")
    return ApiKey(key_id=key_id, secret_hash=hash_of(secret))


def format_token(kind: str, secret: bytes) -> str:
    """A login code (`tsl`) or session token (`tss`) of SECRET_BYTES random bytes."""
    return f"{kind}_{_word(secret)}"


def hash_of(text: str) -> str:
    """The stored hash of a secret, a code or a token."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def without_secrets(data: bytes) -> bytes:
    """The bytes with the secret of every key, code and token replaced."""
    return _SECRETS.sub(_HIDDEN, data)


def _word(data: bytes) -> str:
    return base64.b32encode(data).rstrip(b"=").decode("ascii").lower()


def _checksum(body: str) -> str:
    return _word(zlib.crc32(body.encode("ascii")).to_bytes(4, "big"))[:_CHECK_CHARS]
