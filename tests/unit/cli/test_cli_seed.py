"""Files of rows for a seed: read from both forms, and refused when they are something else."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tistream.cli.seed import check_tables, read_rows
from tistream.codec.seed_file import SEED
from tistream.codec.table_key import index_key, record_key
from tistream.errors import InvalidInput

ROWS = [(record_key(7, 2), b"\x80two"), (record_key(7, 1), b"\x80one"), (index_key(7, 1, b"12345678"), b"0")]


def as_ndjson(path: Path, **more: object) -> Path:
    path.write_text("\n".join(json.dumps({"key": k.hex(), "value": v.hex(), **more}) for k, v in ROWS))
    return path


def as_parquet(path: Path) -> Path:
    keys, values = zip(*ROWS, strict=True)
    pq.write_table(pa.table({"value": pa.array(values), "key": pa.array(keys)}), path)
    return path


def test_both_forms_give_the_records_in_key_order(tmp_path: Path) -> None:
    for rows in (read_rows(as_ndjson(tmp_path / "a.ndjson"), 50), read_rows(as_parquet(tmp_path / "a.parquet"), 50)):
        assert rows.schema == SEED
        assert rows.to_pylist() == [
            {"key": record_key(7, h), "start_ts": 50, "commit_ts": 50, "value": v}
            for h, v in ((1, b"\x80one"), (2, b"\x80two"))
        ]


def test_a_commit_ts_in_the_file_counts(tmp_path: Path) -> None:
    rows = read_rows(as_ndjson(tmp_path / "a.ndjson", commit_ts="41", start_ts="40"), 50)
    assert rows["commit_ts"].to_pylist() == [41, 41]


def test_rows_of_other_tables_are_refused(tmp_path: Path) -> None:
    rows = read_rows(as_ndjson(tmp_path / "a.ndjson"), 50)
    check_tables(rows, {7, 8}, "d.t")
    with pytest.raises(InvalidInput, match="other tables"):
        check_tables(rows, {8}, "d.t")


@pytest.mark.parametrize("text", ['{"a": 1}', '{"key": "zz", "value": "00"}', "not json"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.ndjson"
    path.write_text(text)
    with pytest.raises(InvalidInput, match="key and value"):
        read_rows(path, 50)
