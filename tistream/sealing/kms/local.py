"""A key in a file of this machine, instead of a KMS: the embedded default.

Removing the file takes the key back, and putting it there again grants it. The file is read for each request.
"""

from __future__ import annotations

import secrets
import stat
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tistream.sealing.kms.protocol import ROOT_BYTES, Answer, Context, KeyRefused, canonical

_MAGIC = b"TiStWr1\0"
_NONCE_BYTES = 12
_KEY_BYTES = 32
_TAG_BYTES = 16


class LocalKms:
    """Wraps with the 64 hexadecimal digits of a file (AES-256-GCM)."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def generate(self, context: Context) -> Answer:
        return self.wrap(secrets.token_bytes(ROOT_BYTES), context)

    def wrap(self, root: bytes, context: Context) -> Answer:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        wrapped = _MAGIC + nonce + self._key().encrypt(nonce, root, canonical(context))
        return Answer(root=root, wrapped=wrapped, request_id="")

    def unwrap(self, wrapped: bytes, context: Context) -> Answer:
        at = len(_MAGIC) + _NONCE_BYTES
        if not wrapped.startswith(_MAGIC) or len(wrapped) != at + ROOT_BYTES + _TAG_BYTES:
            raise KeyRefused("the root is wrapped by another kind of key", path=str(self._path))
        try:
            root = self._key().decrypt(wrapped[len(_MAGIC) : at], wrapped[at:], canonical(context))
        except InvalidTag as e:
            raise KeyRefused("the file has another key than the root is wrapped with", path=str(self._path)) from e
        return Answer(root=root, wrapped=wrapped, request_id="")

    def _key(self) -> AESGCM:
        try:
            if stat.S_IMODE(self._path.stat().st_mode) & 0o077:
                raise KeyRefused("the key file is open to other users: chmod 600", path=str(self._path))
            key = bytes.fromhex(self._path.read_text("ascii").strip())
        except FileNotFoundError as e:
            raise KeyRefused("the key file is not there", path=str(self._path)) from e
        except (OSError, ValueError) as e:  # the text of neither has a digit of the key
            raise KeyRefused("the key file cannot be read as hexadecimal digits", path=str(self._path)) from e
        if len(key) != _KEY_BYTES:
            raise KeyRefused("the key file must have 64 hexadecimal digits", path=str(self._path))
        return AESGCM(key)
