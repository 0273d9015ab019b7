"""From decoded changes to the bytes of an answer: lines in commit order, DDL in its place, the watermark last.

A DDL committed at c stands after every row with commit_ts <= c and before every later one. The watermark line is
written only when the page holds all changes up to that watermark.
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

_LINE = pa.large_binary()


def render(
    fmt: Format,
    changes: Sequence[TableChanges],
    ddl: Sequence[DdlEvent],
    quarantined: Sequence[Quarantined] = (),
    watermark: int | None = None,
    *,
    separator: bytes | None = None,
) -> pa.Buffer:
    """The page's bytes: every line with its terminator, or the lines with `separator` between them.

    `changes` carry their order over the whole page (see `split.order_messages`).
    """
    rows, commit_ts = _in_order(fmt, changes)
    extra = [(e.commit_ts, line) for e in ddl for line in fmt.ddl(e)]
    if fmt.name == "ndjson":
        extra += [(q.commit_ts, _error_line(q)) for q in quarantined]
    parts = _with_extra(rows, commit_ts, sorted(extra, key=lambda x: x[0]))
    mark = fmt.watermark(watermark) if watermark is not None else None
    if mark is not None:
        parts.append(pa.array([mark], _LINE))
    if not any(len(part) for part in parts):
        return pa.py_buffer(b"")
    if separator is None:
        parts.append(pa.array([b""], _LINE))  # joined on, it ends the last line
    lines = pa.concat_arrays(parts)
    whole = pa.LargeListArray.from_arrays(pa.array([0, len(lines)], pa.int64()), lines)
    joined = pc.binary_join(whole, pa.scalar(fmt.terminator if separator is None else separator, _LINE))
    return joined[0].as_buffer()


def _in_order(fmt: Format, changes: Sequence[TableChanges]) -> tuple[pa.LargeBinaryArray, npt.NDArray[np.uint64]]:
    """One line per message and its commit_ts, in the order of the page."""
    present = [c for c in changes if len(c)]
    if not present:
        return pa.array([], _LINE), np.zeros(0, np.uint64)
    order = np.argsort(np.concatenate([c.order for c in present]), kind="stable")
    lines = pa.concat_arrays([fmt.rows(c) for c in present]).take(pa.array(order))
    return lines, np.concatenate([c.commit_ts for c in present])[order]


def _with_extra(
    rows: pa.LargeBinaryArray, commit_ts: npt.NDArray[np.uint64], extra: Sequence[tuple[int, bytes]]
) -> list[pa.LargeBinaryArray]:
    """The rows cut apart, with each extra line behind the rows with commit_ts at or below its own."""
    at = np.searchsorted(commit_ts, np.array([ts for ts, _ in extra], np.uint64), side="right")
    parts: list[pa.LargeBinaryArray] = []
    done = 0
    for place, (_, line) in zip(at.tolist(), extra, strict=True):
        parts += [rows.slice(done, place - done), pa.array([line], _LINE)]
        done = place
    return [*parts, rows.slice(done)]


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
