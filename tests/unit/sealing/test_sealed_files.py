"""Sealed objects: what is written is read, by another reader too; what was changed, moved or cut off is refused."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.sealed_reader import read_sealed
from tistream.errors import CorruptObject
from tistream.ids import Tenant
from tistream.sealing.core import blocks as blocks_module
from tistream.sealing.core.blocks import BLOCK_BYTES, TAG_BYTES, BlockSealer, sealed_size
from tistream.sealing.core.derive import (
    EpochId,
    FileKey,
    comparison_key,
    epoch_key,
    epoch_pair,
    own_file_key,
    public_tag,
    writer_key,
)
from tistream.sealing.core.head import HEAD_BYTES, Buffer, SealHead, decode_head, is_sealed
from tistream.sealing.files import (
    PublicKey,
    SealedObject,
    SealedReader,
    Writer,
    check_writer,
    open_object,
    seal_own,
    seal_pushed,
)

ROOT, OTHER_ROOT = bytes(range(32)), bytes(range(1, 33))
MINE, OTHER = Tenant(7, 3), Tenant(7, 4)
OF = EpochId(root_no=2, epoch=484_000)
NAME = "committed/cluster-7/tenant-3/sorter-1-000001/000000000001.seg"
STORED = BLOCK_BYTES + TAG_BYTES
SECRET = b"\x5a" * 32
SIZES = (0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES, 3 * BLOCK_BYTES + 77)

Seal = Callable[[bytes], SealedObject]


def content(size: int) -> bytes:
    """No two blocks are equal."""
    return b"".join(i.to_bytes(4, "big") for i in range(-(-size // 4)))[:size]


def public() -> PublicKey:
    key = epoch_pair(ROOT, MINE, OF).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return PublicKey(of=OF, key=key)


def by_service(data: bytes, name: str = NAME) -> SealedObject:
    return seal_own(data, ROOT, MINE, OF, name)


def by_pusher(data: bytes, name: str = NAME) -> SealedObject:
    return seal_pushed(data, public(), MINE, name)


def root_of(tenant: Tenant, root_no: int) -> bytes:
    assert root_no == OF.root_no
    return ROOT


def opened(data: Buffer, tenant: Tenant = MINE, name: str = NAME, kept: SealHead | None = None) -> bytes:
    return bytes(open_object(data, root_of, tenant, name, kept=kept))


def refused(data: Buffer, tenant: Tenant = MINE, name: str = NAME, kept: SealHead | None = None) -> str:
    """The words of the refusal."""
    with pytest.raises(CorruptObject) as error:
        opened(data, tenant, name, kept)
    assert error.value.facts["key"] == name
    return str(error.value)


both_writers = pytest.mark.parametrize("seal", [by_service, by_pusher], ids=["service", "pusher"])


@both_writers
@pytest.mark.parametrize("size", SIZES)
def test_what_is_sealed_is_opened_by_both_readers(seal: Seal, size: int) -> None:
    plain = content(size)
    sealed = seal(plain)
    assert len(sealed.data) == sealed_size(size)
    assert opened(sealed.data, kept=sealed.head) == plain
    assert read_sealed(bytes(sealed.data), ROOT, 7, 3, NAME) == plain
    assert is_sealed(sealed.data)
    assert not is_sealed(plain)
    assert decode_head(sealed.head.encode(), NAME) == sealed.head


@both_writers
def test_two_writes_of_one_content_have_nothing_in_common(seal: Seal) -> None:
    """Equal blocks of one object neither: a nonce is used once under a key."""
    plain = bytes(4 * BLOCK_BYTES)
    stored = [bytes(seal(plain).data[HEAD_BYTES:]) for _ in range(2)]
    pieces = [each[at : at + 16] for each in stored for at in range(0, len(each), STORED)]
    assert len(set(pieces)) == len(pieces) == 8
    assert bytes(16) not in pieces


@given(size=st.sampled_from(SIZES), data=st.data())
def test_any_range_is_opened_from_the_blocks_that_hold_it(size: int, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, size))
    length = data.draw(st.integers(0, size - offset))
    plain = content(size)
    sealed = by_service(plain)
    reader = SealedReader(sealed.head, MINE, NAME)
    blocks = reader.blocks(offset, length)
    stored = bytes(sealed.data[blocks.offset : blocks.offset + blocks.length])
    assert len(stored) == blocks.length <= length + 2 * STORED
    assert bytes(reader.open(blocks, stored, root_of)) == plain[offset : offset + length]


def test_a_range_beyond_the_content_or_with_a_part_of_its_blocks_is_refused() -> None:
    sealed = by_service(content(BLOCK_BYTES + 10))
    reader = SealedReader(sealed.head, MINE, NAME)
    with pytest.raises(CorruptObject, match="shorter than it should be"):
        reader.blocks(BLOCK_BYTES, 11)
    blocks = reader.blocks(5, 10)
    with pytest.raises(CorruptObject, match="cut off"):
        reader.open(blocks, sealed.data[blocks.offset : blocks.offset + blocks.length - 1], root_of)


@both_writers
def test_a_head_is_refused_after_a_change_of_any_byte(seal: Seal) -> None:
    sealed = seal(content(100))
    for at in range(HEAD_BYTES):
        changed = bytearray(sealed.data)
        changed[at] ^= 1
        if at == 12:  # the number of the root
            with pytest.raises(CorruptObject):
                open_object(changed, lambda *_: OTHER_ROOT, MINE, NAME)
        elif 12 < at < 16:
            with pytest.raises(CorruptObject):
                open_object(changed, lambda *_: ROOT, MINE, NAME)
        else:
            refused(changed)


@both_writers
def test_blocks_that_were_changed_moved_or_cut_off_are_refused(seal: Seal) -> None:
    plain = content(3 * BLOCK_BYTES + 5)
    sealed = bytes(seal(plain).data)
    head, blocks = sealed[:HEAD_BYTES], [sealed[at : at + STORED] for at in range(HEAD_BYTES, len(sealed), STORED)]
    assert opened(head + b"".join(blocks)) == plain
    a, b, c, last = blocks
    for other in ([b, a, c, last], [a, b, b, last], [a, b, c], [a, b, last], [a, b, c, last, last], [a, b, c, c], []):
        refused(head + b"".join(other))
    refused(sealed[:-1])
    refused(sealed + b"\0")
    refused(head)
    refused(head[:100])
    for at in (0, STORED - 1, STORED, len(sealed) - HEAD_BYTES - 1):
        changed = bytearray(sealed)
        changed[HEAD_BYTES + at] ^= 128
        refused(changed)
    refused(bytes(seal(plain).data[:HEAD_BYTES]) + b"".join(blocks))  # of another write


@both_writers
def test_an_object_opens_at_its_place_only(seal: Seal) -> None:
    sealed = seal(content(100))
    refused(sealed.data, name=NAME + "2")
    refused(sealed.data, tenant=OTHER)
    with pytest.raises(CorruptObject):
        open_object(sealed.data, lambda *_: OTHER_ROOT, MINE, NAME)


@both_writers
def test_plaintext_is_no_sealed_object(seal: Seal) -> None:
    assert "not sealed" in refused(content(5_000))


@both_writers
def test_an_older_object_is_not_the_one_that_the_catalog_names(seal: Seal) -> None:
    older, newer = seal(b"older"), seal(b"newer")
    assert opened(older.data) == b"older"
    assert "the catalog names" in refused(older.data, kept=newer.head)


def test_blocks_are_bound_to_the_tenant() -> None:
    """Beside the key, which is the tenant's own already."""
    key = own_file_key(epoch_key(ROOT, MINE, OF), b"s" * 32, NAME)
    head = by_service(b"four").head
    stored = BlockSealer(key, head, MINE, NAME).seal(b"four")[HEAD_BYTES:]
    assert bytes(BlockSealer(key, head, MINE, NAME).open(stored)) == b"four"
    for tenant, name in ((OTHER, NAME), (Tenant(8, 3), NAME), (MINE, NAME[:-1])):
        with pytest.raises(CorruptObject):
            BlockSealer(key, head, tenant, name).open(stored)


def test_a_range_ends_with_its_last_block() -> None:
    """A middle block is not taken for the last one of a shorter object, whose size is in the head."""
    key = own_file_key(epoch_key(ROOT, MINE, OF), b"s" * 32, NAME)
    long, short = (replace(by_service(b"").head, size=n * BLOCK_BYTES) for n in (2, 1))
    stored = BlockSealer(key, long, MINE, NAME).seal(content(2 * BLOCK_BYTES))
    with pytest.raises(CorruptObject):
        BlockSealer(key, short, MINE, NAME).open(stored[HEAD_BYTES : HEAD_BYTES + STORED])


def test_a_head_with_another_commitment_opens_nothing() -> None:
    """Although its blocks are sealed with the key that a reader derives."""
    sealed = by_service(b"")
    key = own_file_key(epoch_key(ROOT, MINE, OF), sealed.head.salt, NAME)
    wrong = replace(sealed.head, commitment=bytes(32))
    forged = BlockSealer(FileKey(key.key, bytes(32)), wrong, MINE, NAME).seal(b"")
    assert bytes(BlockSealer(key, wrong, MINE, NAME).open(forged[HEAD_BYTES:])) == b""
    assert "from another place" in refused(forged)


def test_a_pusher_opens_nothing() -> None:
    """With all that it has: its public key, the writer key, the comparison key."""
    sealed = by_pusher(b"what it wrote")
    for has in (public().key, writer_key(SECRET, MINE, 1, 1), comparison_key(SECRET, MINE)):
        with pytest.raises(CorruptObject):
            open_object(sealed.data, lambda *_, has=has: has, MINE, NAME)


def test_each_file_of_a_pusher_names_the_one_before() -> None:
    key = writer_key(SECRET, MINE, 5, 2)
    names = [NAME.replace("0001.seg", f"000{n}.seg") for n in range(1, 4)]
    heads: list[SealHead] = []
    for name in names:
        writer = Writer(key=key) if not heads else Writer(key=key, before=heads[-1].proof)
        heads.append(seal_pushed(b"rows", public(), MINE, name, writer=writer).head)
    for name, head, before in zip(names, heads, [bytes(32), *(h.proof for h in heads)], strict=False):
        check_writer(head, Writer(key=key, before=before), name)
    with pytest.raises(CorruptObject, match="does not follow"):
        check_writer(heads[2], Writer(key=key, before=heads[0].proof), names[2])
    foreign = writer_key(SECRET, MINE, 5, 3)
    for head, who, name in (
        (heads[1], foreign, names[1]),
        (heads[1], key, names[2]),
        (replace(heads[1], before=heads[1].proof), key, names[1]),
        (by_pusher(b"rows", names[1]).head, key, names[1]),
        (by_service(b"rows", names[1]).head, key, names[1]),
    ):
        with pytest.raises(CorruptObject, match="not written by the pusher"):
            check_writer(head, Writer(key=who, before=heads[0].proof), name)


def test_equal_contents_are_recognized_by_who_has_the_comparison_key() -> None:
    key = comparison_key(SECRET, MINE)
    first, second = (seal_pushed(b"seed", public(), MINE, NAME, comparison_key=key).head for _ in range(2))
    assert first.content == second.content == hmac.digest(key, b"seed", "sha256")
    assert first.secret != second.secret
    assert comparison_key(SECRET, OTHER) != key


def test_keys_differ_by_everything_that_they_are_for() -> None:
    epochs = [EpochId(root_no=r, epoch=e) for r in (1, 2) for e in (1, 2)]
    owners = (MINE, OTHER, Tenant(3, 7))
    pairs = {epoch_pair(ROOT, t, of).private_bytes_raw() for t in owners for of in epochs}
    keys = {epoch_key(ROOT, t, of) for t in owners for of in epochs}
    writers = {writer_key(SECRET, t, s, i) for t in owners for s in (1, 2) for i in (1, 2)}
    assert (len(pairs), len(keys), len(writers), len(pairs | keys | writers)) == (12, 12, 12, 36)


def test_a_public_key_that_the_root_did_not_make_has_no_tag() -> None:
    tag = public_tag(ROOT, MINE, OF, public().key)
    mine = X25519PrivateKey.from_private_bytes(b"m" * 32).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    later = EpochId(root_no=OF.root_no, epoch=OF.epoch + 1)
    others = {
        public_tag(ROOT, MINE, OF, mine),
        public_tag(ROOT, MINE, later, public().key),
        public_tag(ROOT, OTHER, OF, public().key),
        public_tag(OTHER_ROOT, MINE, OF, public().key),
    }
    assert len(others) == 4
    assert tag not in others


def test_a_block_number_is_part_of_the_nonce(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: one nonce for all blocks. Its blocks open, and equal ones are equal."""
    monkeypatch.setattr(blocks_module, "_nonce", lambda number: bytes(12))
    with pytest.raises(AssertionError):
        test_two_writes_of_one_content_have_nothing_in_common(by_service)
