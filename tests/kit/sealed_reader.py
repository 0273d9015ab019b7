"""Opens sealed objects by docs/sealing.md, RFC 5869 and RFC 9180 alone, with nothing of `tistream.sealing`.

It is slow, and it reads whole objects. What both read alike is what the page says.
"""

from __future__ import annotations

import hashlib
import hmac
import struct

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat


def hkdf(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869 with SHA-512."""
    return _expand(hmac.digest(salt or bytes(64), secret, "sha512"), info, length)


def _expand(key: bytes, info: bytes, length: int) -> bytes:
    made, last = b"", b""
    for i in range(1, -(-length // 64) + 1):
        last = hmac.digest(key, last + info + bytes([i]), "sha512")
        made += last
    return made[:length]


def numbered(label: str, *numbers: int) -> bytes:
    return b"tistream/1/" + label.encode() + b"\x00" + b"".join(struct.pack(">Q", n) for n in numbers)


def hpke_open(pair: X25519PrivateKey, sealed: bytes, info: bytes) -> bytes:
    """RFC 9180, base mode, DHKEM(X25519, HKDF-SHA256), HKDF-SHA512, AES-256-GCM; the first message of a context."""
    enc, ciphertext = sealed[:32], sealed[32:]
    own = pair.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    kem = b"KEM\x00\x20"
    shared = pair.exchange(X25519PublicKey.from_public_bytes(enc))
    prk = hmac.digest(bytes(32), b"HPKE-v1" + kem + b"eae_prk" + shared, "sha256")
    labeled = b"\x00\x20" + b"HPKE-v1" + kem + b"shared_secret" + enc + own
    secret = hmac.digest(prk, labeled + b"\x01", "sha256")
    suite = b"HPKE\x00\x20\x00\x03\x00\x02"

    def extract(salt: bytes, label: bytes, ikm: bytes) -> bytes:
        return hmac.digest(salt or bytes(64), b"HPKE-v1" + suite + label + ikm, "sha512")

    context = b"\x00" + extract(b"", b"psk_id_hash", b"") + extract(b"", b"info_hash", info)
    schedule = extract(secret, b"secret", b"")
    key = _expand(schedule, b"\x00\x20" + b"HPKE-v1" + suite + b"key" + context, 32)
    nonce = _expand(schedule, b"\x00\x0c" + b"HPKE-v1" + suite + b"base_nonce" + context, 12)
    return AESGCM(key).decrypt(nonce, ciphertext, b"")


def read_sealed(data: bytes, root: bytes, cluster: int, tenant: int, name: str) -> bytes:
    """The content."""
    head, place = data[:256], name.encode()
    assert head[:8] == b"TiStSea\x01"
    kind = head[8]
    root_no, epoch, size = struct.unpack_from("<IQQ", head, 12)
    secret, commitment = head[32:112], head[112:144]
    ids = (cluster, tenant, root_no, epoch)
    if kind == 1:
        epoch_key = hkdf(root, b"", numbered("epoch", *ids), 32)
        both = hkdf(epoch_key, secret[:32], numbered("file") + place, 64)
    else:
        pair = X25519PrivateKey.from_private_bytes(hkdf(root, b"", numbered("epoch pair", *ids), 32))
        info = b"tistream/1/pushed\x00" + struct.pack(">4Q", *ids) + place
        both = hkdf(hpke_open(pair, secret, info), b"", numbered("file") + place, 64)
    assert both[32:] == commitment
    bound = hashlib.sha256(
        b"tistream/1/block\x00" + struct.pack(">3Q", cluster, tenant, len(place)) + place + head
    ).digest()
    content, blocks = b"", data[256:]
    count = max(1, -(-size // 65536))
    for number in range(count):
        block = blocks[number * 65552 : (number + 1) * 65552]
        aad = bound + struct.pack(">Q", number) + bytes([number == count - 1])
        content += AESGCM(both[:32]).decrypt(struct.pack(">IQ", 0, number), block, aad)
    assert len(content) == size
    return content
