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

from tistream.errors import CorruptObject, TooLarge
from tistream.ids import Tenant
from tistream.objectstore.bounded import small_object
from tistream.objectstore.layout import WrapKey, parse, wraps_prefix
from tistream.objectstore.protocol import ObjectStore
from tistream.sealing.kms.protocol import context_of

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
    return {root_no: _read(store, key) for root_no, key in newest.items()}


def _read(store: ObjectStore, key: WrapKey) -> Wrap:
    try:
        data = small_object(store, str(key), WRAP_BYTES_MAX)
    except TooLarge as e:
        raise CorruptObject("a wrapped root is too large to be one", object=str(key)) from e
    return decode_wrap(key, data)


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
            created_ms=_whole_number(fields["created_ms"]),
        )
        is_whole = fields["format"] == FORMAT and fields["root"] == key.root_no
        # The KMS would open another tenant's wrap in its own context, and so one tenant's root would seal for another.
        is_own = wrap.context == context_of(wrap.context["deployment"], key.tenant)
    except (orjson.JSONDecodeError, binascii.Error, KeyError, TypeError, ValueError) as e:
        raise CorruptObject("a wrapped root is damaged", object=str(key), cause=type(e).__name__) from e
    if not is_whole or not 0 < len(wrap.wrapped) <= _WRAPPED_BYTES_MAX:
        raise CorruptObject("a wrapped root is damaged, or of another format", object=str(key))
    if not is_own:
        raise CorruptObject("a wrapped root is of another tenant", object=str(key))
    return wrap


def _whole_number(value: object) -> int:
    if type(value) is not int:  # a bool is an int too
        raise TypeError("not a whole number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value
