"""Row groups depend on the rows alone, however they come."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from apiserver.asof import table_files


def batches_of(table: pa.Table, rand: random.Random) -> list[pa.RecordBatch]:
    """The rows in pieces of random sizes, some of them empty."""
    whole, found, at = table.combine_chunks().to_batches()[0], [], 0
    while at < table.num_rows:
        count = rand.choice([0, 1, 2, 7, 40])
        found.append(whole.slice(at, count))
        at += count
    return found


@pytest.mark.parametrize("seed", range(30))
def test_groups_do_not_tell_how_rows_came(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "_GROUP_ROWS", 25)
    monkeypatch.setattr(table_files, "_GROUP_BYTES", 300)
    rand = random.Random(seed)
    texts = [rand.choice([None, "", "x" * rand.randrange(60), "y" * 400]) for _ in range(200)]
    table = pa.table(
        {
            "id": pa.array(range(200)),
            "text": pa.array(texts, pa.string()),
            "list": pa.array([[1.0] * rand.randrange(4) for _ in range(200)], pa.list_(pa.float32())),
            "label": pa.array([rand.choice("ab") for _ in range(200)]).dictionary_encode(),
        }
    )
    found = [
        list(table_files._groups(pa.RecordBatchReader.from_batches(table.schema, batches_of(table, rand))))
        for _ in range(3)
    ]
    assert found[0] == found[1] == found[2]
    assert pa.concat_tables(found[0]).equals(table)
    for group in found[0]:
        sizes = [len(row["text"] or "") + 4 * len(row["list"]) for row in group.to_pylist()]
        assert group.num_rows <= 25
        assert sum(sizes[:-1]) < 300, "a group ends with the row that fills it"


def test_no_rows_are_no_group() -> None:
    schema = pa.schema([("id", pa.int64())])
    assert list(table_files._groups(pa.RecordBatchReader.from_batches(schema, []))) == []
