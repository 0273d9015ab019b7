"""Wrapped roots in the bucket: with them, and with the KMS key, everything of a tenant can be read without a catalog.

    keys/cluster-1/tenant-2/000001.json      a root, as the KMS key has wrapped it
    keys/cluster-1/tenant-2/000001-1.json    the same root, wrapped by the next KMS key

Each is written once. Deleting all of a tenant's, in bucket and catalog, makes what it has sealed unreadable.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

import orjson

from tistream.errors import CorruptObject
from tistream.ids import Tenant
from tistream.objectstore.bounded import small_object
from tistream.objectstore.layout import WrapKey, parse, wraps_prefix
from tistream.objectstore.protocol import ObjectStore

FORMAT = 1
WRAP_BYTES_MAX = 1 << 16
_WRAPPED_BYTES_MAX = 6_144  # what AWS KMS answers at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrap:
    """A wrapped root."""

    key: WrapKey
    kms: str  #: address of the KMS key that wrapped it
    wrapped: bytes
    context: dict[str, str]
    created_ms: int  #: Unix milliseconds

    def encode(self) -> bytes:
        """The object's bytes: the same for the same wrap."""
        return orjson.dumps(
            {
                "format": FORMAT,
                "root": self.key.root_no,
                "kms": self.kms,
                "context": self.context,
                "created_ms": self.created_ms,
                "wrapped": base64.b64encode(self.wrapped).decode("ascii"),
            },
            option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2,
        )


def put_wrap(store: ObjectStore, wrap: Wrap) -> None:
    """Put it, if it is absent. ObjectConflict when another wrap is there."""
    store.put(str(wrap.key), wrap.encode())


def newest_wraps(store: ObjectStore, tenant: Tenant) -> dict[int, Wrap]:
    """Number of a root -> its newest wrap. CorruptObject, naming the object, for one that is not as `encode` makes
    it."""
    newest: dict[int, WrapKey] = {}
    for info in store.list(wraps_prefix(tenant)):
        key = parse(info.key)
        if isinstance(key, WrapKey) and key.n >= newest.get(key.root_no, key).n:
            newest[key.root_no] = key
    return {root_no: decode_wrap(key, small_object(store, str(key), WRAP_BYTES_MAX)) for root_no, key in newest.items()}


def decode_wrap(key: WrapKey, data: bytes) -> Wrap:
    """The wrap in an object of this key."""
    try:
        fields = orjson.loads(data)
        context = fields["context"]
        wrap = Wrap(
            key=key,
            kms=_text(fields["kms"]),
            wrapped=base64.b64decode(_text(fields["wrapped"]), validate=True),
            context={_text(name): _text(context[name]) for name in sorted(context)},
            created_ms=int(fields["created_ms"]),
        )
        is_whole = fields["format"] == FORMAT and fields["root"] == key.root_no
    except (orjson.JSONDecodeError, binascii.Error, KeyError, TypeError, ValueError) as e:
        raise CorruptObject("a wrapped root is damaged", object=str(key), cause=type(e).__name__) from e
    if not is_whole or not 0 < len(wrap.wrapped) <= _WRAPPED_BYTES_MAX:
        raise CorruptObject("a wrapped root is damaged, or of another format", object=str(key))
    return wrap


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value
