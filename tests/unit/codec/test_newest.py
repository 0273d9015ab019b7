"""The newest version of each key, against a dict."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.kit.made_rows import table_of
from tistream.codec.newest import STATE, alive, merged, newest, pieces, states
from tistream.codec.table_key import record_key
from tistream.errors import CorruptObject
from tistream.model import change

Version = tuple[bytes, int, bytes | None]


def table(rows: list[Version]) -> pa.Table:
    return pa.table([list(c) for c in zip(*rows, strict=True)], schema=STATE) if rows else STATE.empty_table()


def rows_of(run: Iterator[pa.Table]) -> list[Version]:
    return [tuple(row.values()) for part in run for row in part.to_pylist()]


def replayed(rows: list[Version]) -> list[Version]:
    newest_rows: dict[bytes, Version] = {}
    for row in sorted(rows, key=lambda r: r[1]):
        newest_rows[row[0]] = row
    return sorted(newest_rows.values())


@pytest.mark.parametrize("seed", range(40))
def test_merged_runs_equal_a_dict(seed: int) -> None:
    rand = random.Random(seed)
    count = rand.randint(1, 40)
    keys = [rand.randbytes(rand.randint(0, 3)) for _ in range(count)]
    if seed % 2:  # integer handles, which are sorted as numbers
        keys = [record_key(rand.choice([3, 300]), rand.randint(-5, 5) * 1000) for _ in range(count)]
    if seed % 4 == 1:  # and one that is not
        keys.append(record_key(300, b"datums"))
    rows: list[Version] = [
        (rand.choice(keys), ts, rand.choice([None, b"", rand.randbytes(2)])) for ts in range(rand.randint(0, 200))
    ]
    cut: list[list[Version]] = [[] for _ in range(rand.randint(1, 5))]
    for row in rows:
        rand.choice(cut).append(row)
    runs = [pieces(newest(table(part)), rand.choice([1, 60, 5000])) for part in cut]
    assert rows_of(merged(runs)) == replayed(rows)
    runs = [pieces(newest(table(part)), rand.choice([1, 60, 5000])) for part in cut]
    assert rows_of(alive(merged(runs))) == [r for r in replayed(rows) if r[2] is not None]


def test_a_merge_holds_one_block_of_each_run() -> None:
    blocks = [0, 0]

    def run(which: int) -> Iterator[pa.Table]:
        for n in range(50):
            blocks[which] += 1
            yield table([(b"%03d" % (2 * n + which), 1, b"v")])

    out = merged([run(0), run(1)])
    next(out)
    assert max(blocks) <= 2
    assert sum(1 for _ in out) > 20


@pytest.mark.parametrize("other", [[], [b"z"]])
@pytest.mark.parametrize(
    "blocks", [[[b"b"], [b"a"]], [[b"a"], [b"a"]], [[b"b", b"a"]], [[b"a", b"a"]], [[b"a", b"c"], [b"b", b"d"]]]
)
def test_a_run_that_is_out_of_order_is_refused(blocks: list[list[bytes]], other: list[bytes]) -> None:
    """Merged, it would give a key that another run has deleted, or an old version of one."""
    runs = [iter([table([(key, 1, b"v") for key in block]) for block in each]) for each in (blocks, [other])]
    with pytest.raises(CorruptObject, match="not in key order"):
        rows_of(merged(runs))


def committed(op: change.Op, value: bytes | None) -> pa.Table:
    return table_of(change.COMMITTED, table_id=1, op=op, key=[b"k"], start_ts=1, commit_ts=2, value=[value])


def test_a_delete_is_a_version_without_a_value_and_an_empty_value_is_one() -> None:
    assert rows_of(iter([states(committed(change.Op.DELETE, None))])) == [(b"k", 2, None)]
    assert rows_of(iter([states(committed(change.Op.PUT, b""))])) == [(b"k", 2, b"")]


def test_a_put_without_a_value_is_never_passed_over() -> None:
    with pytest.raises(CorruptObject, match="no value") as caught:
        states(committed(change.Op.PUT, None))
    assert caught.value.facts["key"] == b"k"


def test_a_block_is_bounded_although_one_row_is_very_large() -> None:
    sizes = [10] * 1000 + [100_000] + [10] * 1000 + [600] * 50
    rows = pa.table(
        [[b"%06d" % n for n in range(len(sizes))], [1] * len(sizes), [bytes(size) for size in sizes]], schema=STATE
    )
    blocks = list(pieces(rows, 2000))
    assert pa.concat_tables(blocks).equals(rows)
    large = [b for b in blocks if sum(map(len, b["value"].to_pylist())) > 2000]
    assert [b.num_rows for b in large] == [1]
    assert len(blocks) < 60
