"""Derives keys by HKDF-SHA512, without state: each is for what its label and its numbers say.

An input is a label, a zero byte, numbers of 8 bytes, then text: no two inputs have the same bytes.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tistream.errors import invariant
from tistream.ids import Tenant

KEY_BYTES = 32


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class EpochId:
    """An epoch of a root. Sealed objects name it in plain text."""

    root_no: int
    epoch: int


@dataclass(frozen=True, slots=True)
class FileKey:
    """What the blocks of one object are sealed with, and the commitment that excludes every other key."""

    key: bytes = field(repr=False)
    commitment: bytes


def epoch_key(root: bytes, tenant: Tenant, of: EpochId) -> bytes:
    """The key from which services derive those of the files that they write."""
    return _derived(root, labelled("epoch", *numbers_of(tenant, of)))


def epoch_pair(root: bytes, tenant: Tenant, of: EpochId) -> X25519PrivateKey:
    """The key pair to whose public half pushers seal."""
    return X25519PrivateKey.from_private_bytes(_derived(root, labelled("epoch pair", *numbers_of(tenant, of))))


def public_tag(root: bytes, tenant: Tenant, of: EpochId, public_key: bytes) -> bytes:
    """Proves that a public key was made by a holder of the root: without it, who can write to the catalog could hand
    out a key of his own."""
    tag_key = _derived(root, labelled("tag", tenant.cluster_id, tenant.tenant_id, of.root_no))
    return hmac.digest(tag_key, labelled("public key", of.epoch) + public_key, "sha256")


def own_file_key(epoch_key: bytes, salt: bytes, object_key: str) -> FileKey:
    """Of an object that a service writes under this salt."""
    return _file_key(epoch_key, salt, object_key)


def pushed_file_key(secret: bytes, object_key: str) -> FileKey:
    """Of an object that a pusher writes; `secret` is what it seals to the epoch's public key."""
    return _file_key(secret, b"", object_key)


def writer_key(deployment_secret: bytes, tenant: Tenant, store_id: int, incarnation: int) -> bytes:
    """With which an incarnation of a store proves that it wrote a batch file."""
    return _derived(deployment_secret, labelled("writer", tenant.cluster_id, tenant.tenant_id, store_id, incarnation))


def comparison_key(deployment_secret: bytes, tenant: Tenant) -> bytes:
    """For hashes by which an upload that is repeated is recognized."""
    return _derived(deployment_secret, labelled("comparison", tenant.cluster_id, tenant.tenant_id))


def _file_key(secret: bytes, salt: bytes, object_key: str) -> FileKey:
    both = _derived(secret, labelled("file") + object_key.encode("utf-8"), salt=salt, length=2 * KEY_BYTES)
    return FileKey(both[:KEY_BYTES], both[KEY_BYTES:])


def _derived(secret: bytes, info: bytes, *, salt: bytes = b"", length: int = KEY_BYTES) -> bytes:
    invariant(len(secret) == KEY_BYTES, "a key has another length", bytes=len(secret))
    return HKDF(algorithm=SHA512(), length=length, salt=salt or None, info=info).derive(secret)


def numbers_of(tenant: Tenant, of: EpochId) -> tuple[int, ...]:
    """The numbers of an epoch of a tenant's root."""
    return tenant.cluster_id, tenant.tenant_id, of.root_no, of.epoch


def labelled(label: str, *numbers: int) -> bytes:
    """The beginning of what is derived, hashed or bound for one purpose: see the module."""
    return b"tistream/1/" + label.encode("ascii") + b"\0" + b"".join(n.to_bytes(8, "big") for n in numbers)
