"""Writes a base: the saved form of a schema history with all of its tables (pure; see `schemas.saved`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from schemas import saved
from schemas.ddl import Change
from schemas.ids import NamedIds
from schemas.merge import Drafts
from schemas.model import Database, Table
from schemas.start import Entry, index_of
from tistream.keyrange import KeyRange


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseHead:
    """What the head of a base says of its start, apart from the tables."""

    ts: int
    schema_version: int
    databases: Mapping[int, Database]
    named: NamedIds
    left_out: tuple[KeyRange, ...]
    job_table: Table


def pack_base(
    begins: BaseHead,
    entries: Sequence[Entry],
    blocks: Iterable[tuple[int, bytes]],
    *,
    resolved_ts: int | None = None,
    drafts: Mapping[int, Drafts] = MappingProxyType({}),
    changes: Iterable[Change] = (),
) -> bytes:
    """The bytes of a base: the tables of `entries`, in `blocks` of (number of tables, packed bytes), and what came
    since. Without `resolved_ts` nothing did."""
    packed = list(blocks)
    head = {
        "kind": "base",
        "resolved_ts": begins.ts if resolved_ts is None else resolved_ts,
        "job_table": begins.job_table,
        "start": {
            "ts": begins.ts,
            "schema_version": begins.schema_version,
            "databases": sorted(begins.databases.values(), key=lambda db: db.id),
            "named": sorted(begins.named.table_of.items()),
            "highest_id": begins.named.highest,
            "left_out": [(part.start.hex(), part.end.hex()) for part in begins.left_out],
        },
        "drafts": saved.drafts_json(drafts),
        "tables": index_of(entries),
        "blocks": {"rows": [rows for rows, _ in packed], "lengths": [len(block) for _, block in packed]},
    }
    return saved.pack(head, changes, (block for _, block in packed))
