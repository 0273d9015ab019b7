"""Row groups depend on the rows alone, however they come."""

from __future__ import annotations

import random
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from apiserver import table_files
from reading.asof.read import RowsRequest
from tests.kit.manual_clock import ManualClock
from tistream.errors import InvalidInput, StoreUnavailable
from tistream.ids import Tenant


def batches_of(table: pa.Table, rand: random.Random) -> list[pa.RecordBatch]:
    """The rows in pieces of random sizes, some of them empty."""
    whole, batches, at = table.combine_chunks().to_batches()[0], [], 0
    while at < table.num_rows:
        count = rand.choice([0, 1, 2, 7, 40])
        batches.append(whole.slice(at, count))
        at += count
    return batches


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
    groupings = [
        list(table_files._groups(pa.RecordBatchReader.from_batches(table.schema, batches_of(table, rand))))
        for _ in range(3)
    ]
    assert groupings[0] == groupings[1] == groupings[2]
    assert pa.concat_tables(groupings[0]).equals(table)
    for group in groupings[0]:
        sizes = [len(row["text"] or "") + 4 * len(row["list"]) for row in group.to_pylist()]
        assert group.num_rows <= 25
        assert sum(sizes[:-1]) < 300, "a group ends with the row that fills it"


def test_no_rows_are_no_group() -> None:
    schema = pa.schema([("id", pa.int64())])
    assert list(table_files._groups(pa.RecordBatchReader.from_batches(schema, []))) == []


def test_files_that_are_being_made_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tables of 6 bytes do not fit into 10: not while both are made, and not one beside the other."""
    services: Any = SimpleNamespace(clock=ManualClock(0))
    files = table_files.TableFiles(services, bytes_max=10)
    tables = [
        RowsRequest(tenant=Tenant(1, 1), database="d", table=name, as_of="5", format="arrow")
        for name in ("a", "b", "c")
    ]

    def make(request: RowsRequest) -> table_files.TableFile:
        hashed = table_files._Hashed(file := BytesIO(), files._grow)
        hashed.write(b"123456")
        with pytest.raises(StoreUnavailable if request.table == "a" else InvalidInput):
            (table_files._Hashed(BytesIO(), files._grow) if request.table == "a" else hashed).write(b"12345")
        files._growing -= hashed.size
        return table_files.TableFile(file, hashed.size, "e")

    monkeypatch.setattr(files, "_make", make)
    files.get(tables[0])
    files.get(tables[1])
    assert [request.table for request in files._made] == ["b"]
    assert files._growing == 0
