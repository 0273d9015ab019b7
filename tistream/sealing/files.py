"""Seals and opens whole objects and ranges of them.

    services   seal_own      under a salt, with an opened root
    pushers    seal_pushed   to a public key: what they wrote they cannot open
    readers    open_object, SealedReader   with an opened root

Nothing but the root is ever kept: epoch and file keys are derived for each object, and end with it. A write is sealed
once, and its bytes are sent again as often as it takes: other bytes would be another write.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from tistream.errors import CorruptObject
from tistream.ids import Tenant
from tistream.sealing.core.blocks import BlockRange, BlockSealer, block_range
from tistream.sealing.core.derive import (
    KEY_BYTES,
    EpochId,
    FileKey,
    epoch_key,
    epoch_pair,
    labelled,
    numbers_of,
    own_file_key,
    pushed_file_key,
)
from tistream.sealing.core.head import HEAD_BYTES, NO_HASH, SECRET_BYTES, Buffer, SealedBy, SealHead, decode_head

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA512, AEAD.AES_256_GCM)

#: (tenant, number of a root) -> the opened root. It raises when the root is refused or the KMS is away.
RootOf = Callable[[Tenant, int], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """What a pusher has: the public half of an epoch's pair."""

    of: EpochId
    key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Who pushes: its key proves each file, and each file names the proof of the one before."""

    key: bytes
    before: bytes = NO_HASH


@dataclass(frozen=True, slots=True)
class SealedObject:
    """An object as it is put, and its head as the catalog keeps it."""

    data: memoryview
    head: SealHead


def seal_own(content: Buffer, root: bytes, tenant: Tenant, of: EpochId, name: str) -> SealedObject:
    """Seal what a service writes at this key (`name`, below bucket and prefix)."""
    salt = secrets.token_bytes(KEY_BYTES)
    file_key = own_file_key(epoch_key(root, tenant, of), salt, name)
    secret = salt.ljust(SECRET_BYTES, b"\0")
    head = SealHead(by=SealedBy.SERVICE, of=of, size=len(content), secret=secret, commitment=file_key.commitment)
    return SealedObject(BlockSealer(file_key, head, tenant, name).seal(content), head)


def seal_pushed(
    content: Buffer,
    public: PublicKey,
    tenant: Tenant,
    name: str,
    *,
    writer: Writer | None = None,
    comparison_key: bytes | None = None,
) -> SealedObject:
    """Seal what a pusher writes at this key; with a `comparison_key` the head tells whether two contents are equal."""
    secret = secrets.token_bytes(KEY_BYTES)
    file_key = pushed_file_key(secret, name)
    sealed_secret = _SUITE.encrypt(
        secret, X25519PublicKey.from_public_bytes(public.key), info=_hpke_info(tenant, public.of, name)
    )
    head = SealHead(
        by=SealedBy.PUSHER,
        of=public.of,
        size=len(content),
        secret=sealed_secret,
        commitment=file_key.commitment,
        content=NO_HASH if comparison_key is None else hmac.digest(comparison_key, content, "sha256"),
        before=NO_HASH if writer is None else writer.before,
    )
    if writer is not None:
        head = replace(head, proof=_proof(head, writer.key, name))
    return SealedObject(BlockSealer(file_key, head, tenant, name).seal(content), head)


def open_object(
    data: Buffer, root_of: RootOf, tenant: Tenant, name: str, *, kept: SealHead | None = None
) -> memoryview:
    """The content of a sealed object. CorruptObject when it is not as it was written; with `kept`, the head that the
    catalog has of it, also when it is another object than the catalog names."""
    head = decode_head(data, name)
    if kept is not None and head != kept:
        raise CorruptObject("the object is not the one that the catalog names", key=name)
    return SealedReader(head, tenant, name).whole(data, root_of)


class SealedReader:
    """Opens an object whose head is known, or ranges of it: one request each, for `blocks(...)`, given to `open`."""

    def __init__(self, head: SealHead, tenant: Tenant, name: str) -> None:
        self._head, self._tenant, self._name = head, tenant, name

    def blocks(self, offset: int, length: int) -> BlockRange:
        """What to read of the sealed object. CorruptObject when the content is shorter."""
        return block_range(self._head, offset, length, self._name)

    def open(self, blocks: BlockRange, stored: Buffer, root_of: RootOf) -> memoryview:
        """The range of the content."""
        if len(stored) != blocks.length:
            raise CorruptObject("the blocks of a sealed object are cut off", key=self._name, stored=len(stored))
        content = _opener(self._head, root_of, self._tenant, self._name).open(stored, blocks.first)
        return memoryview(content)[blocks.skip : blocks.skip + blocks.size]

    def whole(self, data: Buffer, root_of: RootOf) -> memoryview:
        """The content of the whole object."""
        return self.open(self.blocks(0, self._head.size), memoryview(data)[HEAD_BYTES:], root_of)


def check_writer(head: SealHead, writer: Writer, name: str) -> None:
    """CorruptObject unless this writer wrote the object, and next after the file whose proof is `writer.before`."""
    if head.by is not SealedBy.PUSHER or not hmac.compare_digest(head.proof, _proof(head, writer.key, name)):
        raise CorruptObject("the object was not written by the pusher of its store and incarnation", key=name)
    if head.before != writer.before:
        raise CorruptObject("the object does not follow the file before it: one of them was replaced", key=name)


def _opener(head: SealHead, root_of: RootOf, tenant: Tenant, name: str) -> BlockSealer:
    file_key = _file_key(head, root_of(tenant, head.of.root_no), tenant, name)
    # A head fits one key only: AES-GCM alone lets one ciphertext be valid under two.
    if not hmac.compare_digest(file_key.commitment, head.commitment):
        raise CorruptObject("the head of a sealed object was changed, or it is from another place", key=name)
    return BlockSealer(file_key, head, tenant, name)


def _file_key(head: SealHead, root: bytes, tenant: Tenant, name: str) -> FileKey:
    if head.by is SealedBy.SERVICE:
        return own_file_key(epoch_key(root, tenant, head.of), head.salt, name)
    try:
        pair = epoch_pair(root, tenant, head.of)
        secret = _SUITE.decrypt(head.secret, pair, info=_hpke_info(tenant, head.of, name))
    except (InvalidTag, ValueError) as e:
        raise CorruptObject("the head of a sealed object was changed, or it is from another place", key=name) from e
    return pushed_file_key(secret, name)


def _proof(head: SealHead, writer_key: bytes, name: str) -> bytes:
    place = name.encode("utf-8")
    return hmac.digest(writer_key, len(place).to_bytes(8, "big") + place + head.proved(), "sha256")


def _hpke_info(tenant: Tenant, of: EpochId, name: str) -> bytes:
    return labelled("pushed", *numbers_of(tenant, of)) + name.encode("utf-8")
