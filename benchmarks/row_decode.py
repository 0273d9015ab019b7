"""Decoding rows of ten columns: the vectorised decoder against one row at a time in plain Python.

Once with the same columns in every row, once with 150 different sets of NULL columns, which change the header of a row.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa

from benchmarks.harness import Result, compare
from tests.kit.row_encoder import encode_v2, record_key
from tests.kit.row_reference import decode_row
from tistream.codec.row.decode import Decoded, decode
from tistream.codec.row.encode import cell, pack_time
from tistream.codec.row.layout import ColumnSpec, RowLayout

ROWS = 8_000
NULL_LAYOUTS = 150

LAYOUT = RowLayout(
    name="benchmark.rows",
    columns=(
        ColumnSpec(id=1, name="id", tp=8, not_null=True),
        ColumnSpec(id=2, name="amount", tp=3),
        ColumnSpec(id=3, name="name", tp=15, flen=40),
        ColumnSpec(id=4, name="price", tp=246, flen=12, decimal=2),
        ColumnSpec(id=5, name="created", tp=12, decimal=0),
        ColumnSpec(id=6, name="score", tp=5),
        ColumnSpec(id=7, name="hash", tp=8, unsigned=True),
        ColumnSpec(id=8, name="note", tp=15, flen=40),
        ColumnSpec(id=9, name="updated", tp=7, decimal=6),
        ColumnSpec(id=10, name="flag", tp=1),
    ),
    int_handle=1,
)


def _values(rng: random.Random) -> dict[int, Any]:
    return {
        2: rng.randrange(-(10**9), 10**9),
        3: "x" * rng.randrange(5, 30),
        4: Decimal(rng.randrange(10**12)).scaleb(-2),
        5: pack_time(2020, rng.randrange(1, 13), rng.randrange(1, 29), 12, 30, 59),
        6: rng.random(),
        7: rng.randrange(2**64),
        8: "é" * rng.randrange(20),
        9: pack_time(2024, 2, 29, 1, 2, 3, rng.randrange(10**6)),
        10: rng.randrange(-128, 128),
    }


def _rows(null_sets: list[frozenset[int]], seed: int = 1) -> tuple[list[bytes], list[bytes]]:
    rng = random.Random(seed)
    by_id = {column.id: column for column in LAYOUT.columns}
    rows = []
    for _ in range(ROWS):
        nulls = rng.choice(null_sets)
        rows.append(encode_v2({i: None if i in nulls else cell(by_id[i], v) for i, v in _values(rng).items()}))
    return [record_key(7, handle) for handle in range(ROWS)], rows


def _ratio(name: str, null_sets: list[frozenset[int]], target: float) -> Result:
    keys, rows = _rows(null_sets)
    key_array, row_array = pa.array(keys, pa.binary()), pa.array(rows, pa.binary())

    def one_at_a_time() -> list[list[Any]]:
        return [decode_row(LAYOUT, key, row) for key, row in zip(keys, rows, strict=True)]

    def same(a: Decoded, b: list[list[Any]]) -> bool:
        return not a.errors and list(map(list, zip(*(c.to_pylist() for c in a.batch.columns), strict=True))) == b

    return compare(name, lambda: decode(LAYOUT, key_array, row_array), one_at_a_time, proof=same, target=target)


def run() -> Iterator[Result]:
    """Two ratios."""
    yield _ratio("row-decode/one-layout", [frozenset()], target=15)
    rng = random.Random(2)
    sets: set[frozenset[int]] = set()
    while len(sets) < NULL_LAYOUTS:
        sets.add(frozenset(i for i in range(2, 11) if rng.random() < 0.3))
    yield _ratio("row-decode/150-null-layouts", sorted(sets, key=sorted), target=8)
