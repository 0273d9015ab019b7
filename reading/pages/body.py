"""Renders decoded changes as lines in commit order, with DDL in its place and the watermark last.

A DDL committed at c comes after every row with commit_ts <= c and before every later one. The watermark line is written
only when the page holds all changes up to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from reading.core.changes import TableChanges
from reading.formats import Format
from reading.formats.lines import Block, write
from reading.formats.pieces import LARGE, bare
from reading.formats.rows import json_bytes
from reading.rows.decode import Quarantined
from schemas.model import DdlEvent
from tistream import ts as tso


def render(
    fmt: Format,
    changes: Sequence[TableChanges],
    ddl: Sequence[DdlEvent],
    quarantined: Sequence[Quarantined] = (),
    watermark: int | None = None,
    *,
    separator: bytes | None = None,
    most: int | None = None,
) -> pa.Buffer:
    """The page's bytes: every line with its terminator, or the lines with `separator` between them. BodyTooLarge above
    `most` bytes.

    `changes` carry their order over the whole page (see `split.order_messages`).
    """
    extra = [(e.commit_ts, line) for e in ddl for line in fmt.ddl(e)]
    if fmt.name == "ndjson":
        extra += [(q.commit_ts, _error_line(q)) for q in quarantined]
    extra.sort(key=lambda x: x[0])
    mark = fmt.watermark(watermark) if watermark is not None else None
    if mark is not None:
        extra.append((tso.TS_MAX, mark))
    blocks = _placed(fmt, changes, extra)
    end = fmt.terminator if separator is None else separator
    _, data = write(blocks, end=end, most=most)
    return pa.py_buffer(data if separator is None else data[: len(data) - len(end)])


def _placed(fmt: Format, changes: Sequence[TableChanges], extra: Sequence[tuple[int, bytes]]) -> list[Block]:
    """The lines of the page with their places: changes in their order, each extra line (ascending) after the changes
    with commit_ts at or below its own."""
    present = [c for c in changes if len(c)]
    order = np.argsort(np.concatenate([np.zeros(0, np.int64), *(c.order for c in present)]), kind="stable")
    commit_ts = np.concatenate([np.zeros(0, np.uint64), *(c.commit_ts for c in present)])[order]
    before = np.searchsorted(commit_ts, np.array([ts for ts, _ in extra], np.uint64), side="right")
    count = np.arange(len(order))
    place = np.empty(len(order), np.int64)
    place[order] = count + np.searchsorted(before, count, side="right")
    blocks = [Block(at=before + np.arange(len(extra)), pieces=[bare(pa.array([line for _, line in extra], LARGE))])]
    for part in present:
        mine, place = place[: len(part)], place[len(part) :]
        blocks += [replace(block, at=mine[block.at]) for block in fmt.rows(part)]
    return blocks


def _error_line(q: Quarantined) -> bytes:
    return json_bytes(
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
