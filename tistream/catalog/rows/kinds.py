"""What a tenant's keys are: a cluster of TiDB, or a keyspace of API V2 that holds RawKV or TxnKV data.

    tidb   tables of TiDB: schemas, rows, SQL names
    raw    RawKV: a key, a value, an expiry; each write is complete in itself
    txn    TxnKV: keys and values written by transactions, without a schema

A raw or txn tenant is a keyspace, or a key range of one. Users see keys without mode and keyspace (*user keys*); the
log, the batch files and the tasks have both in front.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tistream.codec.raw.keys import PREFIX_BYTES, KeyMode, keyspace_prefix, keyspace_range
from tistream.errors import InvalidInput, invariant
from tistream.keyrange import KeyRange


class TenantKind(StrEnum):
    """What a tenant's keys are."""

    TIDB = "tidb"
    RAW = "raw"
    TXN = "txn"

    @property
    def is_keyspace(self) -> bool:
        """Whether its keys and values are shown as they are, without tables."""
        return self is not TenantKind.TIDB


class AnotherKind(InvalidInput):
    """Tables were asked of a keyspace, or keys and values of a tenant of TiDB."""

    code = "TS-1093"
    hint = "The list of tenants shows the kind of each. A raw or txn tenant has keys and values, and no tables."


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyspace:
    """A keyspace of API V2, by its id or by its name; the pusher's first contact binds a name to its id."""

    id: int | None = None
    name: str | None = None

    def __str__(self) -> str:
        return self.name if self.name is not None else str(self.id)


def mode_of(kind: TenantKind) -> KeyMode:
    """The mode of the keys of a raw or txn tenant."""
    invariant(kind.is_keyspace, "a tidb tenant has no key mode", kind=kind)
    return KeyMode.RAW if kind is TenantKind.RAW else KeyMode.TXN


def stored_range(kind: TenantKind, keyspace_id: int, user: KeyRange) -> KeyRange:
    """A range of user keys as the log has it."""
    prefix, whole = keyspace_prefix(mode_of(kind), keyspace_id), keyspace_range(mode_of(kind), keyspace_id)
    return KeyRange(prefix + user.start, prefix + user.end if user.end else whole.end)


def user_range(kind: TenantKind, keyspace_id: int, stored: KeyRange) -> KeyRange:
    """A range within the keyspace, as users see it."""
    whole = keyspace_range(mode_of(kind), keyspace_id)
    return KeyRange(stored.start[PREFIX_BYTES:], b"" if stored.end == whole.end else stored.end[PREFIX_BYTES:])
