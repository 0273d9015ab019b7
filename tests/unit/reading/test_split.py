"""What kind of change a row is, which updates are split, and the order of the messages."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from reading.core.changes import DELETE, INSERT, UPDATE, TableChanges
from reading.core.split import build_changes, classify, differs, order_messages, split_updates, unique_columns
from schemas.model import Index, IndexColumn, Table
from tests.kit.made_rows import log_row, log_table
from tests.kit.schema_models import a_column, a_table
from tistream.model import change
from tistream.model.change import Op

VARCHAR = 15


def index(name: str, *offsets: int, unique: bool = True, primary: bool = False) -> Index:
    columns = tuple(IndexColumn(name=str(o), offset=o) for o in offsets)
    return Index(id=len(name), name=name, columns=columns, unique=unique, primary=primary)


def table(*indexes: Index, pk_is_handle: bool = True) -> Table:
    return a_table(
        a_column(0, "id", flag=3),
        a_column(1, "u", VARCHAR, charset="utf8mb4"),
        a_column(2, "v", VARCHAR, charset="utf8mb4"),
        a_column(3, "g", generated=True),
        a_column(4, "w"),
        indexes=indexes,
        pk_is_handle=pk_is_handle,
    )


Image = tuple[int | None, str | None, str | None, int | None]
NOTHING: Image = (None, None, None, None)


def batch(images: list[Image]) -> pa.RecordBatch:
    kinds = [pa.int32(), pa.string(), pa.string(), pa.int32()]
    arrays = [pa.array([i[n] for i in images], kind) for n, kind in enumerate(kinds)]
    return pa.record_batch(arrays, names=["id", "u", "v", "w"])


def changes(of: Table, rows: list[tuple[int, int, int, bytes, Image, Image]]) -> TableChanges:
    """Rows (commit_ts, start_ts, physical id, key, after, before)."""
    values = []
    for commit, start, pid, key, after, before in rows:
        images = {"value": None if after is NOTHING else b"x", "old_value": None if before is NOTHING else b""}
        op = int(Op.DELETE if after is NOTHING else Op.PUT)
        values.append(log_row(pid, commit, key, op=op, start_ts=start, **images))
    return build_changes(of, log_table(*values), batch([r[4] for r in rows]), batch([r[5] for r in rows]))


def in_order(parts: list[TableChanges]) -> list[tuple[int, int, str, bytes]]:
    """(commit_ts, physical id, kind, key) of all messages by `order`."""
    messages = [
        (int(order), (int(commit), int(pid), {INSERT: "insert", UPDATE: "update", DELETE: "delete"}[kind], key.as_py()))
        for c in parts
        for order, commit, pid, kind, key in zip(c.order, c.commit_ts, c.physical_id, c.kind, c.key, strict=True)
    ]
    assert sorted(order for order, _ in messages) == list(range(len(messages)))
    return [message for _, message in sorted(messages)]


def test_classify_drops_jobs_without_effect() -> None:
    op = np.array([Op.PUT, Op.PUT, Op.DELETE, Op.PUT, Op.DELETE, Op.PUT, Op.NONE], np.uint8)
    no_value = np.array([False, False, True, True, True, True, True])
    no_old = np.array([True, False, False, True, True, False, False])
    kinds = classify(op, no_value, no_old, np.zeros(7, np.uint8)).tolist()
    assert kinds == [INSERT, UPDATE, DELETE, 255, 255, 255, 255]


def test_without_old_values_a_put_is_an_insert_and_a_delete_a_delete() -> None:
    op, nothing = np.array([Op.PUT, Op.DELETE, Op.PUT], np.uint8), np.array([True, True, True])
    flags = np.full(3, change.FLAG_OLD_VALUE_UNKNOWN | change.FLAG_NOT_A_CHANGE, np.uint8)
    assert classify(op, np.array([False, True, True]), nothing, flags).tolist() == [INSERT, DELETE, 255]


def test_dropped_rows_leave_no_message() -> None:
    row = (1, "a", "b", 2)
    built = changes(table(), [(5, 1, 9, b"k1", NOTHING, NOTHING), (5, 1, 9, b"k2", row, NOTHING)])
    assert built.kind.tolist() == [INSERT]
    assert built.key.to_pylist() == [b"k2"]
    assert built.after["u"].to_pylist() == ["a"]


def test_no_rows() -> None:
    assert len(changes(table(), [])) == 0
    assert order_messages([changes(table(), [])], split=True) == []


def test_unique_columns_are_those_of_all_unique_indexes_that_rows_hold() -> None:
    assert unique_columns(table()) == (0,)
    assert unique_columns(table(index("u", 1), index("n", 2, unique=False))) == (0, 1)
    assert unique_columns(table(index("ug", 1, 3), pk_is_handle=False)) == (1,)  # 3 is virtual
    assert unique_columns(table(index("w", 4), pk_is_handle=False)) == (3,)  # place among the visible ones


@pytest.mark.parametrize(
    ("after", "before", "apart"),
    [
        ((1, "a", "x", 0), (1, "a", "y", 0), False),
        ((1, "b", "x", 0), (1, "a", "x", 0), True),
        ((1, None, "x", 0), (1, "a", "x", 0), True),
        ((1, None, "x", 0), (1, None, "y", 1), False),
        ((2, "a", "x", 0), (1, "a", "x", 0), True),
    ],
)
def test_an_update_is_split_when_a_unique_key_changed(after: Image, before: Image, apart: bool) -> None:
    built = split_updates(changes(table(index("u", 1)), [(5, 1, 9, b"k", after, before)]))
    assert built.kind.tolist() == ([DELETE, INSERT] if apart else [UPDATE])
    assert built.split.tolist() == ([True, True] if apart else [False])
    assert built.key.to_pylist() == [b"k"] * len(built)
    assert built.after.to_pylist()[-1]["v"] == after[2]
    assert built.before.to_pylist()[0]["v"] == before[2]


def test_order_inside_a_transaction() -> None:
    of = table(index("u", 1))
    row, other = (1, "a", "x", 0), (1, "b", "x", 0)
    plain = (1, "a", "y", 0)
    parts = order_messages(
        [
            changes(
                of,
                [
                    (5, 1, 9, b"k1", row, NOTHING),
                    (5, 1, 9, b"k4", NOTHING, row),
                    (5, 1, 9, b"k2", other, row),
                    (5, 1, 9, b"k3", plain, row),
                    (5, 1, 9, b"k0", row, other),
                    (5, 1, 8, b"k9", row, NOTHING),
                    (4, 1, 9, b"k9", row, NOTHING),
                ],
            ),
            changes(of, [(5, 0, 9, b"k7", row, NOTHING), (5, 1, 9, b"k5", row, NOTHING)]),
        ],
        split=True,
    )
    assert in_order(parts) == [
        (4, 9, "insert", b"k9"),
        (5, 9, "insert", b"k7"),  # an earlier start_ts
        (5, 8, "insert", b"k9"),
        (5, 9, "delete", b"k4"),
        (5, 9, "delete", b"k0"),  # halves of updates stay where the update was
        (5, 9, "delete", b"k2"),
        (5, 9, "update", b"k3"),
        (5, 9, "insert", b"k1"),
        (5, 9, "insert", b"k5"),
        (5, 9, "insert", b"k0"),  # their inserts follow all others
        (5, 9, "insert", b"k2"),
    ]


def test_without_splitting_updates_stay_updates() -> None:
    row, other = (1, "a", "x", 0), (1, "b", "x", 0)
    parts = order_messages([changes(table(index("u", 1)), [(5, 1, 9, b"k", other, row)])], split=False)
    assert in_order(parts) == [(5, 9, "update", b"k")]


def test_differs_compares_lists_of_floats() -> None:
    kind = pa.list_(pa.float32())
    left = pa.array([[0.0], [1.0, 2.0], [1.0], None, None, [], [3.0]], kind).slice(1)
    right = pa.array([[1.0, 2.0], [1.0, 2.0], None, [1.0], [], [4.0]], kind)
    assert differs(left, right).tolist() == [False, True, False, True, False, True]
