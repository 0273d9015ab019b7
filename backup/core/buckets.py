r"""Rows of a table as text, and their checksums by bucket: the same sums that SQL can compute in the database (pure).

    row      =1 US =say "no" US !           each cell after a `=`, a NULL is `!`, cells are joined by the unit separator
    \x1f bucket   CRC32 of the primary key's cells, modulo BUCKETS; of all cells where there is no key sums     of each
    bucket: rows, XOR and sum of CRC32(row)

A row that was changed stays in its bucket, so only the buckets that differ are read again, row by row. Buckets need no
order, which two servers have only where collations and keys are the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tistream.codec.crc import crc32s

BUCKETS = 256
CELL, NULL, SEPARATOR = "=", "!", "\x1f"
Sums = dict[int, tuple[int, int, int]]
"""Bucket -> (rows, XOR, sum)."""
Row = tuple[Any, ...]
Numbers = npt.NDArray[np.uint64]


def bucket_sums(batches: Iterable[pa.Table], names: Sequence[str], key: Sequence[str]) -> Sums:
    """The sums of a table's rows; all columns are text."""
    rows, xors, sums = (np.zeros(BUCKETS, np.uint64) for _ in range(3))
    for batch in batches:
        if batch.num_rows:
            crcs, at = crc32s(_joined(batch, names)), buckets_of(batch, key)
            np.add.at(rows, at, np.uint64(1))
            np.bitwise_xor.at(xors, at, crcs)
            np.add.at(sums, at, crcs)
    return {n: (int(rows[n]), int(xors[n]), int(sums[n])) for n in np.flatnonzero(rows).tolist()}


def buckets_of(batch: pa.Table, key: Sequence[str]) -> npt.NDArray[np.int64]:
    """The bucket of each row, by its key; by all columns without one."""
    return (crc32s(_joined(batch, key or batch.column_names)) % np.uint64(BUCKETS)).astype(np.int64)


def _joined(batch: pa.Table, names: Sequence[str]) -> pa.BinaryArray:
    """The cells of each row as one text."""
    cells = []
    for name in names:
        texts = batch[name].combine_chunks().cast(pa.string())
        cells.append(pc.fill_null(pc.binary_join_element_wise(CELL, texts, ""), NULL))
    return pc.binary_join_element_wise(*cells, SEPARATOR).cast(pa.binary())


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDifference:
    """A row that differs, by its key; a side that lacks it has None."""

    key: Row
    log: Row | None
    database: Row | None


def differing_rows(
    log: Iterable[Row], database: Iterable[Row], *, key: Sequence[int], floats: Sequence[int]
) -> list[RowDifference]:
    """The rows of both sides that have no equal on the other. `key`: places of the primary key's columns; without,
    whole rows are compared. `floats`: places whose texts are compared as numbers."""
    sides: tuple[dict[Row, list[Row]], dict[Row, list[Row]]] = ({}, {})
    for side, rows in zip(sides, (log, database), strict=True):
        for row in rows:
            plain = tuple(_number(cell) if at in floats else cell for at, cell in enumerate(row))
            side.setdefault(tuple(plain[at] for at in key) or plain, []).append(plain)
    row_differences = []
    for name in sides[0].keys() | sides[1].keys():
        ours, theirs = (sorted(side.get(name, []), key=repr) for side in sides)
        if ours != theirs:
            row_differences.append(
                RowDifference(key=name, log=next(iter(ours), None), database=next(iter(theirs), None))
            )
    return row_differences


def first_of(row_differences: Sequence[RowDifference]) -> RowDifference:
    """The one with the smallest key; numbers before texts."""
    return min(row_differences, key=lambda each: [_order(cell) for cell in each.key])


def _order(cell: object) -> tuple[bool, float, str]:
    try:
        return False, float(str(cell)), ""
    except ValueError:
        return True, 0.0, str(cell)


def _number(cell: str | None) -> float | None:
    return None if cell is None else float(cell)
