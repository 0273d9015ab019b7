"""The head of a sealed object: 256 bytes in the clear, from which a holder of the keys opens the blocks.

docs/sealing.md draws it. The catalog keeps the head of each object that it names: with it a range is read with one
request, and an older object that was put back is noticed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from tistream.errors import CorruptObject
from tistream.limits import FILE_BYTES_MAX
from tistream.sealing.core.derive import KEY_BYTES, EpochId

FORMAT = 1
MAGIC = b"TiStSea" + bytes([FORMAT])
HEAD_BYTES = 256
SECRET_BYTES = 80  #: an ephemeral public key of 32, a ciphertext of 32, a tag of 16; or a salt and zeros
HASH_BYTES = 32
NO_HASH = bytes(HASH_BYTES)

Buffer = bytes | bytearray | memoryview

_HEAD = struct.Struct("<8sB3xIQQ80s32s32s32s32s16x")
_PROVED = _HEAD.size - 16 - HASH_BYTES  # up to the proof


class SealedBy(IntEnum):
    """Who made the file key, and how a reader gets it."""

    SERVICE = 1  #: derived from the epoch key and the salt in `secret`
    PUSHER = 2  #: derived from what `secret` holds for the epoch's private key


@dataclass(frozen=True, slots=True, kw_only=True)
class SealHead:
    """A head, decoded. `content`, `before` and `proof` are zeros where they are not used."""

    by: SealedBy
    of: EpochId
    size: int  #: bytes of the content
    secret: bytes  #: 80 bytes
    commitment: bytes
    content: bytes = NO_HASH  #: hash of the content under the tenant's comparison key
    before: bytes = NO_HASH  #: proof of the store's file before
    proof: bytes = NO_HASH  #: of the writer

    @property
    def salt(self) -> bytes:
        """Of an object that a service wrote."""
        return self.secret[:KEY_BYTES]

    def encode(self) -> bytes:
        """Its 256 bytes."""
        return _HEAD.pack(
            MAGIC,
            self.by,
            self.of.root_no,
            self.of.epoch,
            self.size,
            self.secret,
            self.commitment,
            self.content,
            self.before,
            self.proof,
        )

    def proved(self) -> bytes:
        """The part that a proof is made over."""
        return self.encode()[:_PROVED]


def is_sealed(data: Buffer) -> bool:
    """Whether these are the first bytes of a sealed object, of this format or a later one."""
    return bytes(data[: len(MAGIC) - 1]) == MAGIC[:-1]


def decode_head(data: Buffer, name: str) -> SealHead:
    """The head at the beginning of an object, or as the catalog keeps it. CorruptObject, naming the object, for bytes
    that `encode` does not make."""
    raw = bytes(data[:HEAD_BYTES])
    if len(raw) < HEAD_BYTES or not is_sealed(raw):
        raise CorruptObject("the object is not sealed, or cut off within its head", key=name, size=len(raw))
    if raw[: len(MAGIC)] != MAGIC:
        raise CorruptObject("the object is sealed in a format that this release does not know", key=name)
    _, by, root_no, epoch, size, secret, commitment, content, before, proof = _HEAD.unpack(raw)
    if by not in (SealedBy.SERVICE, SealedBy.PUSHER) or size > FILE_BYTES_MAX:
        raise CorruptObject("the head of a sealed object is damaged", key=name, by=by, size=size)
    head = SealHead(
        by=SealedBy(by),
        of=EpochId(root_no=root_no, epoch=epoch),
        size=size,
        secret=secret,
        commitment=commitment,
        content=content,
        before=before,
        proof=proof,
    )
    if head.encode() != raw or (head.by is SealedBy.SERVICE and any(secret[KEY_BYTES:])):
        raise CorruptObject("the head of a sealed object is damaged", key=name)
    return head
