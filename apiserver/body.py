"""From decoded changes to the bytes of an answer: lines in commit order, DDL in its place, the watermark last.

A DDL committed at c stands after every row with commit_ts <= c and before every later one. The watermark line is
written only when the page holds all changes up to the served watermark.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from apiserver.changes import TableChanges
from apiserver.decode import Quarantined
from apiserver.formats import Format
from schemas.model import DdlEvent
from tistream import ts as tso


def lines(
    fmt: Format,
    changes: Sequence[TableChanges],
    ddl: Sequence[DdlEvent],
    quarantined: Sequence[Quarantined] = (),
    watermark: int | None = None,
) -> pa.LargeBinaryArray:
    """All lines of the page, without terminators."""
    encoded = [fmt.rows(c).cast(pa.large_binary()) for c in changes if len(c)]
    order = np.concatenate([c.order for c in changes if len(c)]) if encoded else np.zeros(0, np.int64)
    commit = np.concatenate([c.commit_ts for c in changes if len(c)]) if encoded else np.zeros(0, np.uint64)
    by_order = np.argsort(order, kind="stable")
    rows = pa.concat_arrays(encoded).take(pa.array(by_order)) if encoded else pa.array([], pa.large_binary())
    extra = [(e.commit_ts, line) for e in ddl for line in fmt.ddl(e)]
    if fmt.name == "ndjson":
        extra += [(q.commit_ts, _error_line(q)) for q in quarantined]
    merged = _insert(rows, commit[by_order], sorted(extra, key=lambda x: x[0]))
    mark = fmt.watermark(watermark) if watermark is not None else None
    return pa.concat_arrays([merged, pa.array([mark], pa.large_binary())]) if mark is not None else merged


def join(array: pa.Array, terminator: bytes) -> pa.Buffer:
    """The lines as one buffer, with the terminator between them (the caller ends the last one)."""
    if not len(array):
        return pa.py_buffer(b"")
    whole = pa.LargeListArray.from_arrays(pa.array([0, len(array)], pa.int64()), array.cast(pa.large_binary()))
    joined = pc.binary_join(whole, pa.scalar(terminator, pa.large_binary()))
    return joined[0].as_buffer()


def _insert(rows: pa.Array, commit_ts: npt.NDArray[np.uint64], extra: Sequence[tuple[int, bytes]]) -> pa.Array:
    """Put each extra line behind the rows with commit_ts at or below its own."""
    if not extra:
        return rows
    at = np.searchsorted(commit_ts, np.array([ts for ts, _ in extra], np.uint64), side="right")
    parts: list[pa.Array] = []
    done = 0
    for place, (_, line) in zip(at, extra, strict=True):
        parts += [rows.slice(done, int(place) - done), pa.array([line], pa.large_binary())]
        done = int(place)
    return pa.concat_arrays([*parts, rows.slice(done)])


def _error_line(q: Quarantined) -> bytes:
    return orjson.dumps(
        {
            "type": "error",
            "database": q.database,
            "table": q.table,
            "table_id": q.table_id,
            "column": q.column,
            "key": q.key.hex(),
            "commit_ts": str(q.commit_ts),
            "commit_time": tso.to_text(q.commit_ts),
            "offset": q.offset,
            "cause": q.cause,
        }
    )
