"""A dead letter: a refused change as one line of JSON, with the name of its file.

    {cluster}-{tenant}/{changefeed}/{commit_ts}-{hash of the key}.json

Both derive from the change, its place in the log and the cause, not from lanes, workers or the time of writing. So a
repeated try has the same name for the same change. The cause may be worded differently at each try; `DeadLetters` keeps
the first.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from dataclasses import dataclass

import numpy as np
import orjson
import pyarrow as pa

from destinations.protocol import DestinationRefused, Share
from reading.formats import FormatOptions
from reading.formats.lines import Block, write
from reading.formats.ndjson import Ndjson
from reading.kv.formats import EntryNdjson
from reading.rows.decode import decode_rows
from reading.rows.scope import Scope
from schemas.history import History
from tistream import ts as tso
from tistream.codec.key_format import KeyFormat
from tistream.errors import TiStreamError
from tistream.model.change import Op

VERSION = 1
_DIGITS = 32  # of the hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """See the module."""

    name: str
    data: bytes


def letter_of(share: Share, row: pa.Table, history: History | None, cause: DestinationRefused) -> Letter:
    """The letter of one row (schema change.COMMITTED). `history`: None for a keyspace."""
    key, commit_ts = row["key"][0].as_py(), row["commit_ts"][0].as_py()
    line = {
        "version": VERSION,
        "cluster_id": share.tenant.cluster_id,
        "tenant_id": share.tenant.tenant_id,
        "changefeed_id": share.changefeed_id,
        "commit_ts": str(commit_ts),
        "commit_time": tso.to_text(commit_ts),
        "cause": {"code": cause.code, "message": _message(cause)},
        **(_entry(row) if history is None else _table_row(share, row, history, cause)),
    }
    digest = hashlib.sha256(key).hexdigest()[:_DIGITS]
    folder = f"{share.tenant.cluster_id}-{share.tenant.tenant_id}/{share.changefeed_id}"
    return Letter(name=f"{folder}/{commit_ts:020d}-{digest}.json", data=orjson.dumps(line) + b"\n")


def _message(cause: DestinationRefused) -> str:
    why = str(cause.facts.get("cause", ""))
    return cause.message if why in cause.message else f"{cause.message}: {why}"


def _entry(row: pa.Table) -> dict[str, object]:
    """An entry of a keyspace, as pulls with `key_format=base64` have it."""
    (batch,) = row.combine_chunks().to_batches()
    _, data = write([Block(at=np.arange(1), pieces=EntryNdjson(KeyFormat.BASE64).pieces(batch))])
    return {"change": orjson.Fragment(data.tobytes())}


def _table_row(share: Share, row: pa.Table, history: History, cause: DestinationRefused) -> dict[str, object]:
    """A row of a table: its change as pulls have it, null when it cannot be decoded, and what the log has."""
    stored = {name: row[name][0].as_py() for name in ("op", "table_id", "key", "value", "old_value", "start_ts")}
    return {
        "database": str(cause.facts["db"]),
        "table": str(cause.facts["table"]),
        "change": _decoded(share, row, history),
        "stored": {
            "op": Op(stored["op"]).name.lower(),
            "table_id": stored["table_id"],
            "start_ts": str(stored["start_ts"]),
            "key": _base64(stored["key"]),
            "value": _base64(stored["value"]),
            "old_value": _base64(stored["old_value"]),
        },
    }


def _decoded(share: Share, row: pa.Table, history: History) -> object:
    decoding = decode_rows(history, row, Scope(tenant=share.tenant))
    if decoding.quarantined:
        return None
    try:
        blocks = [block for changes in decoding.changes for block in Ndjson(FormatOptions()).rows(changes)]
        _, data = write(blocks)
    except TiStreamError:  # a value that no text has
        return None
    return orjson.Fragment(data.tobytes()) if len(data) else None


def _base64(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()
