"""Detects tables that have rows in a log but no definition: a schema snapshot that does not fit.

Rows of a table that is neither in the tenant's schema snapshot nor created by a DDL of the log cannot be pulled. That
is normal for TiDB's own tables. It also happens, without an error, when the log backup was started later than the empty
snapshot claims, so it is reported. Pure. A pusher that resumes in the middle of a log does not know earlier definitions
and reports nothing.
"""

from __future__ import annotations

import numpy as np
import orjson
import pyarrow as pa

from schemas.meta import Definition, read_meta
from tistream.codec.table_key import SYSTEM_IDS_FROM, is_record, table_ids
from tistream.ts import TS_MAX

_SHOWN = 10


class UndefinedTables:
    """Physical tables with rows and no definition. `snapshot`: the tenant's schema snapshot, as JSON."""

    def __init__(self, snapshot: bytes) -> None:
        self._defined: set[int] = set()
        self._seen: set[int] = set()
        for table in orjson.loads(snapshot)["tables"]:
            self._define(table["info"])

    def see(self, rows: pa.RecordBatch) -> None:
        """Take change rows, those of the meta range first."""
        for definition in read_meta(pa.Table.from_batches([rows]), 0, TS_MAX):
            if isinstance(definition, Definition) and definition.table_id and definition.info is not None:
                self._define(orjson.loads(definition.info))
        keys = rows["key"]
        ids = np.unique(table_ids(keys)[is_record(keys)])
        self._seen.update(ids[ids < SYSTEM_IDS_FROM].tolist())

    @property
    def ids(self) -> list[int]:
        """Physical ids, ascending."""
        return sorted(self._seen - self._defined)

    def __str__(self) -> str:
        """One line for people; empty when there are none."""
        ids = self.ids
        if not ids:
            return ""
        shown = ", ".join(map(str, ids[:_SHOWN])) + (", ..." if len(ids) > _SHOWN else "")
        return (
            f"{len(ids)} tables ({shown}) have rows but are neither in the schema snapshot nor created by a DDL of the"
            " log: unless they are TiDB's own, the log backup was started too late for this snapshot"
        )

    def _define(self, info: dict[str, object]) -> None:
        parts = info.get("partition") or {}
        assert isinstance(parts, dict)
        held = [info, *(parts.get("definitions") or []), *(parts.get("adding_definitions") or [])]
        self._defined.update(int(part["id"]) for part in held)
