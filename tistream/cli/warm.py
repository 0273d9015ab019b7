"""Compiles the row decoders and text writers before the first reader needs them, in a thread of the service.

The kernels are machine code made by numba, cached on disk. Without a cache (an installation without `tistream compile`)
compiling all of them takes many seconds, for which the first reader would wait. So a row of every column type is
decoded and written as text once, cheapest and most common types first; a reader that needs a kernel meanwhile waits for
that kernel only. With a cache this takes a fraction of a second. Nothing depends on it.

Importing this module imports all that the thread needs: two threads that import one package wait for each other's
modules, and Python lets one of them fail.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pyarrow as pa
import structlog

from reading.core.split import order_messages
from reading.formats import create_format, parse_options
from reading.pages import body
from reading.rows.decode import decode_rows
from reading.rows.scope import Scope
from schemas.history import History
from schemas.model import Column, Database, Table
from schemas.snapshot import SchemaSnapshot
from tistream.codec import key_scan  # noqa: F401 - of `table_ids`, which imports it when it is called
from tistream.codec.memcomparable import encode_int
from tistream.ids import Tenant
from tistream.model import change

log = structlog.get_logger(__name__)

_NOT_NULL = 1
_PRIMARY = 2
_UNSIGNED = 32
#: (MySQL type, flags, length, decimals, charset): integers; then texts, times and numbers; last the slow ones
_INTEGERS = [(8, _NOT_NULL, 20, 0, ""), (8, _NOT_NULL | _UNSIGNED, 20, 0, "")]
_COMMON = [
    (15, _NOT_NULL, 64, 0, "utf8mb4"),
    (12, _NOT_NULL, 26, 6, ""),
    (246, _NOT_NULL, 20, 4, ""),
    (5, _NOT_NULL, 22, -1, ""),
    (4, _NOT_NULL, 12, -1, ""),
    (15, _NOT_NULL, 64, 0, "binary"),
    (247, _NOT_NULL, 1, 0, "utf8mb4"),
    (248, _NOT_NULL, 1, 0, "utf8mb4"),
    (16, _NOT_NULL, 8, 0, ""),
    (13, _NOT_NULL, 4, 0, ""),
    (11, _NOT_NULL, 17, 6, ""),
]
_RARE = [(245, _NOT_NULL, -1, 0, ""), (225, _NOT_NULL, 3, 0, "")]
_FORMATS = ("ndjson", "canal-json")
_EMPTY_ROWS = (b"\x80\x00\x00\x00\x00\x00", b"\x00")  # formats v2 and v1: every column takes its default


def start() -> threading.Thread:
    """Start in a daemon thread, which never keeps a process from ending."""
    thread = threading.Thread(target=_run, name="warm-up", daemon=True)
    thread.start()
    return thread


def _run() -> None:
    try:
        everything()
    except Exception as e:  # noqa: BLE001 - it only saves time
        log.warning("could not compile ahead", error=repr(e))


def everything() -> None:
    """Compile for every column type."""
    for columns in (_INTEGERS, _COMMON, _RARE):
        warm(columns)


def warm(columns: Sequence[tuple[int, int, int, int, str]]) -> None:
    """Decode and write rows of a table with these columns, and discard the text."""
    made = [
        Column(
            id=n, name=f"c{n}", offset=n - 1, tp=tp, flag=flag | (_PRIMARY if n == 1 else 0), flen=flen,
            decimal=decimal, charset=charset, collate="", elems=("a",) if tp in (247, 248) else (),
        )
        for n, (tp, flag, flen, decimal, charset) in enumerate([_INTEGERS[0], *columns], 1)
    ]  # fmt: skip
    table = Table(
        id=1, db_id=1, db="d", name="t", charset="", collate="", columns=tuple(made), indexes=(), pk_is_handle=True,
        is_common_handle=False,
    )  # fmt: skip
    snapshot = SchemaSnapshot(ts=1, databases={1: Database(id=1, name="d")}, tables={1: table})
    history = History(snapshot, table)
    history.advance(9)
    rows = [
        {
            "table_id": 1, "op": change.Op.PUT, "key": b"t" + encode_int(1) + b"_r" + encode_int(n), "start_ts": 2,
            "commit_ts": 3, "value": value, "old_value": old, "expire_ts": 0, "flags": 0,
        }
        for n, (value, old) in enumerate([(row, old) for row in _EMPTY_ROWS for old in (None, row)])
    ]  # fmt: skip
    decoded = decode_rows(history, pa.Table.from_pylist(rows, change.COMMITTED), Scope(tenant=Tenant(1, 1)))
    for name in _FORMATS:
        fmt = create_format(name, parse_options({}, built_ms=0))
        body.render(fmt, order_messages(decoded.changes, split=fmt.splits_updates), [], decoded.quarantined)
