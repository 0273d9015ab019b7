"""Seals content block by block, so that any range of it is a range of blocks.

A block is bound to its tenant, object, head, number and to whether it is the last one: it opens nowhere else.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tistream.errors import CorruptObject, InvalidInput
from tistream.ids import Tenant
from tistream.objectstore.keys import too_short
from tistream.sealing.core.derive import FileKey, labelled
from tistream.sealing.core.head import HEAD_BYTES, Buffer, SealHead

BLOCK_BYTES = 1 << 16
TAG_BYTES = 16
_STORED = BLOCK_BYTES + TAG_BYTES


@dataclass(frozen=True, slots=True)
class BlockRange:
    """The blocks that hold a range of the content."""

    offset: int  #: of the first one, in the sealed object
    length: int  #: stored bytes
    first: int  #: number of the first block
    skip: int  #: bytes before the range in the first block
    size: int  #: bytes of the range


def sealed_size(size: int) -> int:
    """Bytes of the sealed object with so much content."""
    return HEAD_BYTES + size + TAG_BYTES * _count(size)


def block_range(head: SealHead, offset: int, length: int, name: str) -> BlockRange:
    """Where this range of the content is. CorruptObject when the content is shorter."""
    if offset < 0 or length < 0:
        raise InvalidInput("a range begins at 0 or later and has no negative length", offset=offset, length=length)
    if offset + length > head.size:
        raise too_short(name, offset, length, head.size)
    first = min(offset // BLOCK_BYTES, _count(head.size) - 1)
    last = max(first, (offset + length - 1) // BLOCK_BYTES)
    end = min((last + 1) * BLOCK_BYTES, head.size) + (last + 1) * TAG_BYTES
    return BlockRange(HEAD_BYTES + first * _STORED, end - first * _STORED, first, offset - first * BLOCK_BYTES, length)


class BlockSealer:
    """The blocks of one object under its file key."""

    def __init__(self, file_key: FileKey, head: SealHead, tenant: Tenant, name: str) -> None:
        """`name`: the object's key below bucket and prefix."""
        self._aes, self._head, self._name = AESGCM(file_key.key), head, name
        self._encoded = head.encode()
        self._count = _count(head.size)
        place = name.encode("utf-8")
        ids = labelled("block", tenant.cluster_id, tenant.tenant_id, len(place))
        self._bound = hashlib.sha256(ids + place + self._encoded).digest()

    def seal(self, content: Buffer) -> memoryview:
        """The whole object: head and blocks. `content` has the size of the head."""
        sealed, view = bytearray(sealed_size(self._head.size)), memoryview(content)
        sealed[:HEAD_BYTES] = self._encoded
        out = memoryview(sealed)
        for number in range(self._count):
            block = view[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]
            at = HEAD_BYTES + number * _STORED
            self._aes.encrypt_into(_nonce(number), block, self._data_of(number), out[at : at + len(block) + TAG_BYTES])
        return out.toreadonly()

    def open(self, stored: Buffer, first: int = 0) -> bytearray:
        """Decrypt whole blocks, beginning with block `first`. CorruptObject when a block was changed, moved or cut
        off."""
        view = memoryview(stored)
        count = -(-len(view) // _STORED)
        size = len(view) - count * TAG_BYTES
        if size < 0 or first + count > self._count:
            raise CorruptObject("the blocks of a sealed object are cut off", key=self._name, stored=len(view))
        content = bytearray(size)
        out = memoryview(content)
        for i in range(count):
            block = view[i * _STORED : (i + 1) * _STORED]
            at = i * BLOCK_BYTES
            try:
                if len(block) < TAG_BYTES:
                    raise InvalidTag
                self._aes.decrypt_into(
                    _nonce(first + i), block, self._data_of(first + i), out[at : at + len(block) - TAG_BYTES]
                )
            except InvalidTag as e:
                raise CorruptObject(
                    "a block of a sealed object was changed, moved or cut off", key=self._name, block=first + i
                ) from e
        return content

    def _data_of(self, number: int) -> bytes:
        return self._bound + number.to_bytes(8, "big") + bytes([number == self._count - 1])


def _count(size: int) -> int:
    return max(1, -(-size // BLOCK_BYTES))


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")
