"""The committed log of a raw or txn tenant, from entries that a test writes down: keyspace 1, tenant 1/1.

api_world(folder, rows=entry_rows(entries), builder=EntryLog)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from tests.kit.log_builder import LogBuilder
from tests.kit.made_rows import table_of
from tistream.catalog.rows.kinds import Keyspace, TenantKind
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.model import change
from tistream.model.change import FLAG_OLD_VALUE_UNKNOWN, FLAG_SCANNED, Op

PREFIX = b"r\x00\x00\x01"


class Entry(NamedTuple):
    """A write, as its user sees it."""

    ts: int
    key: bytes
    value: bytes | None  #: None: deleted
    expire_ts: int = 0
    scanned_from_ts: int | None = None


@dataclass
class EntryLog(LogBuilder):
    """A log with one DATA task, active from the beginning unless only the name of its keyspace is known."""

    kind: TenantKind = TenantKind.RAW
    keyspace: Keyspace = Keyspace(id=1)  # noqa: RUF009

    def register(self) -> EntryLog:
        register_tenant(self.catalog, self.tenant, kind=self.kind, keyspace=self.keyspace)
        return self

    def activate(self) -> EntryLog:
        return self.register()


def entry_rows(entries: Sequence[Entry], prefix: bytes = PREFIX) -> pa.Table:
    """The entries as rows of the log. `prefix`: mode and keyspace."""
    return table_of(
        change.COMMITTED,
        op=[Op.DELETE if e.value is None else Op.PUT for e in entries],
        key=[prefix + e.key for e in entries],
        start_ts=[e.ts if e.scanned_from_ts is None else e.scanned_from_ts for e in entries],
        commit_ts=[e.ts for e in entries],
        value=[e.value for e in entries],
        expire_ts=[e.expire_ts for e in entries],
        flags=[FLAG_OLD_VALUE_UNKNOWN | (0 if e.scanned_from_ts is None else FLAG_SCANNED) for e in entries],
    )
