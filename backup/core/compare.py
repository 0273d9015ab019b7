"""Compares two sorted streams of pairs range by range: by checksum first, then by key where a checksum differs (pure).

    source        ──┐  cut at common keys     equal checksums ──> next range
    destination   ──┴──> a range of both ──┤
                                              different ────────> the keys that differ

An expiry is compared where the destination's is known, within a tolerance: a replica's expiry is computed from the time
that remained when it was written. For the same reason an entry that is about to expire may be absent on one side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from backup.core.pairs import PAIRS, checksum
from tistream.codec.crc import Checksum
from tistream.errors import CorruptObject

#: pairs of a destination; a null `expire_ts` is not known
FOUND = pa.schema([*list(PAIRS)[:-1], pa.field("expire_ts", pa.uint64())])
_HASH_DIGITS = 16


class Fault(StrEnum):
    """How a key differs."""

    CHANGED = "changed"  #: it has another value
    MISSING = "missing"  #: the destination lacks it
    EXTRA = "extra"  #: the source lacks it
    EXPIRY = "expiry"  #: it ends at another time


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One key that differs."""

    key: bytes
    fault: Fault
    source: str | None  #: the beginning of the SHA-256 of the value, in hex; None = the key is not there
    destination: str | None
    source_expire_ts: int | None = None
    destination_expire_ts: int | None = None  #: None: the key is not there, or its expiry is not known


@dataclass(slots=True, kw_only=True)
class Comparison:
    """What a comparison has found so far."""

    source: Checksum = Checksum()  # noqa: RUF009
    destination: Checksum = Checksum()  # noqa: RUF009
    ranges: int = 0
    differing_ranges: int = 0
    faults: dict[Fault, int] = field(default_factory=lambda: dict.fromkeys(Fault, 0))
    about_to_expire: int = 0  #: keys that one side lacks because they end about now; no differences
    differences: list[Difference] = field(default_factory=list)  #: the first of them, in key order

    @property
    def equal(self) -> bool:
        """Whether no key differs."""
        return not any(self.faults.values())


def compare(
    source: Iterator[pa.Table],
    destination: Iterator[pa.Table],
    *,
    now_s: Callable[[], int],
    ttl_tolerance_s: int = 2,
    shown_max: int = 10,
) -> Comparison:
    """Compare all pairs of `source` (schema PAIRS) with those of `destination` (schema FOUND), both by ascending keys.
    `now_s`: the Unix time of the destination now. CorruptObject when keys do not ascend."""
    comparison = Comparison()
    for a, b in _ranges(_rising(source, "source", PAIRS), _rising(destination, "destination", FOUND)):
        sums = checksum(a), checksum(b)
        comparison.source, comparison.destination = comparison.source + sums[0], comparison.destination + sums[1]
        comparison.ranges += 1
        if sums[0] != sums[1] or not _same_expiries(a, b, ttl_tolerance_s):
            comparison.differing_ranges += not _same_keys(
                comparison, a, b, now_s() + ttl_tolerance_s, ttl_tolerance_s, shown_max
            )
    return comparison


def _ranges(source: Iterator[pa.Table], destination: Iterator[pa.Table]) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Both streams in ranges that begin and end at the same keys."""
    streams = (source, destination)
    heads = [next(source, None), next(destination, None)]
    while any(head is not None for head in heads):
        bound = min(head["key"][head.num_rows - 1].as_py() for head in heads if head is not None)
        parts = [PAIRS.empty_table(), FOUND.empty_table()]
        for side, head in enumerate(heads):
            if head is None:
                continue
            count = pc.sum(pc.less_equal(head["key"], pa.scalar(bound, pa.binary()))).as_py()
            parts[side] = head.slice(0, count)
            heads[side] = head.slice(count) if count < head.num_rows else next(streams[side], None)
        yield parts[0], parts[1]


def _rising(stream: Iterator[pa.Table], side: str, schema: pa.Schema) -> Iterator[pa.Table]:
    """The tables that have rows. CorruptObject when a key is not above the one before."""
    last: bytes | None = None
    for table in stream:
        if not table.num_rows:
            continue
        keys = table["key"].combine_chunks()
        rises = pc.all(pc.less(keys[:-1], keys[1:])).as_py()
        if rises is False or (last is not None and keys[0].as_py() <= last):
            raise CorruptObject(f"the keys of the {side} do not ascend", first=keys[0].as_py(), after=last)
        last = keys[len(keys) - 1].as_py()
        yield table.select(schema.names).cast(schema)


def _same_expiries(a: pa.Table, b: pa.Table, tolerance_s: int) -> bool:
    """Whether the expiries of the same keys agree where both are known."""
    both = pl.DataFrame({"a": _expiries(a), "b": _expiries(b)})
    return bool(both.filter(_other_expiry("a", "b", tolerance_s)).is_empty())


def _expiries(pairs: pa.Table) -> pl.Series:
    return pl.Series(
        pairs["expire_ts"].to_numpy() if not pairs["expire_ts"].null_count else pairs["expire_ts"].to_pylist(),
        dtype=pl.Int64,
    )


def _other_expiry(a: str, b: str, tolerance_s: int) -> pl.Expr:
    """A null, which is not known, is never another."""
    ends = (pl.col(a) == 0) != (pl.col(b) == 0)
    return (ends | ((pl.col(a) - pl.col(b)).abs() > tolerance_s)).fill_null(False)


def _same_keys(comparison: Comparison, a: pa.Table, b: pa.Table, limit: int, tolerance_s: int, shown_max: int) -> bool:
    """Note the keys that differ; whether there is none."""
    left, right = (
        pl.DataFrame(pl.from_arrow(side)).with_columns(pl.col("expire_ts").cast(pl.Int64), there=True)
        for side in (a, b)
    )
    both = left.join(right, on="key", how="full", coalesce=True, suffix="_b").sort("key")
    here, there = pl.col("there").is_not_null(), pl.col("there_b").is_not_null()
    ending, ending_b = ((pl.col(name) > 0) & (pl.col(name) <= limit) for name in ("expire_ts", "expire_ts_b"))
    one_ends = ((here & ~there & ending) | (~here & there & ending_b)).fill_null(False)
    comparison.about_to_expire += both.filter(one_ends).height
    rules = {
        Fault.MISSING: here & ~there & ~one_ends,
        Fault.EXTRA: ~here & there & ~one_ends,
        Fault.CHANGED: here & there & (pl.col("value") != pl.col("value_b")),
        Fault.EXPIRY: here
        & there
        & (pl.col("value") == pl.col("value_b"))
        & _other_expiry("expire_ts", "expire_ts_b", tolerance_s),
    }
    words = pl.coalesce(*(pl.when(rule).then(pl.lit(fault.value)) for fault, rule in rules.items()))
    wrong = both.with_columns(fault=words).filter(pl.col("fault").is_not_null())
    for name, count in wrong.group_by("fault").len().iter_rows():
        comparison.faults[Fault(name)] += count
    room = max(shown_max - len(comparison.differences), 0)
    comparison.differences += [_difference(row) for row in wrong.head(room).iter_rows(named=True)]
    return bool(wrong.is_empty())


def _difference(row: dict[str, Any]) -> Difference:
    return Difference(
        key=row["key"],
        fault=Fault(row["fault"]),
        source=value_hash(row["value"]),
        destination=value_hash(row["value_b"]),
        source_expire_ts=row["expire_ts"],
        destination_expire_ts=row["expire_ts_b"],
    )


def value_hash(value: bytes | None) -> str | None:
    """The beginning of the SHA-256 of a value, in hex; None where there is none."""
    return None if value is None else hashlib.sha256(value).hexdigest()[:_HASH_DIGITS]
