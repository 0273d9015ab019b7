"""A log with databases and tables of names that TiDB takes and that paths, headers or formats may trip over."""

from __future__ import annotations

import json
from functools import partial

import pyarrow as pa

from tests.kit.log_builder import LogBuilder
from tests.kit.recording import RECORDING
from tests.kit.row_encoder import encode_v2, record_key
from tistream.codec.seed_file import SEED
from tistream.model import change

PLAIN = "plain"
ODD = (
    "a/b", "/", "x%2Fy", "%", "a%20b", "%2e%2e", ".", "..", "...", "`..`", "``", "back`tick", "订单", "заказы",
    "emoji😀", "Ünï", "q?x#y", "space name", "semi;colon", "changes", "changes:stream", "rows", "quote'd",
    '"dq"', "<b>", "a,b",
    "br[ack]et", "star*", "new\nline", "cr\r\nX-Injected: 1", "tab\t", "a\\b", "\u202eevil", "\x1b[31m", "dot.ted",
    "+a+b",
)  # fmt: skip


def odd_log(names: tuple[str, ...] = (PLAIN, *ODD)) -> partial[LogBuilder]:
    """Makes a LogBuilder whose log begins with a database for each name, with one table of that name and one row."""
    schema = json.loads((RECORDING / "schema_snapshot.json").read_bytes())
    start, column = int(schema["ts"]), {"Flag": 3, "Tp": 8, "Flen": 20, "Decimal": -1, "Charset": "binary"}
    rows = []
    for n, name in enumerate(names):
        both = {"O": name, "L": name.lower()}
        text = {"charset": "utf8mb4", "collate": "utf8mb4_bin", "state": 5}
        schema["dbs"].append({"id": 70_000 + n, "db_name": both, **text})
        key = {"id": 1, "name": {"O": "id", "L": "id"}, "offset": 0, "state": 5, "version": 2}
        key["type"] = {**column, "Collate": "binary", "Elems": None}
        info = {"id": 60_000 + n, "name": both, "cols": [key], "pk_is_handle": True, "index_info": [], **text}
        schema["tables"].append({"db_id": 70_000 + n, "info": info})
        ts = start + 1000 + n
        rows.append(
            {"table_id": 60_000 + n, "op": int(change.Op.PUT), "key": record_key(60_000 + n, n), "start_ts": ts - 1,
             "commit_ts": ts, "value": encode_v2({}), "old_value": None, "expire_ts": 0, "flags": 0}
        )  # fmt: skip
    table = pa.Table.from_pylist(rows, schema=change.COMMITTED)
    return partial(LogBuilder, rows=table, meta=change.COMMITTED.empty_table(), schema=json.dumps(schema).encode())


def seeded(log: LogBuilder) -> LogBuilder:
    """The log, built, with an empty seed: rows as of a timestamp are known."""
    log.build(1).seed(SEED.empty_table())
    return log
