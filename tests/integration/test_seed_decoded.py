"""Decoded rows as seeds: a snapshot of a recorded table that is seeded again gives the same rows, and the same keys."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.shape import of_json, shape_of, to_json
from tests.kit.api_world import ApiWorld, api_world, rows_path
from tests.kit.log_builder import recording_end
from tests.kit.recording import recorded_history, replayed
from tistream.cli.seed import read_decoded
from tistream.errors import InvalidInput

END = recording_end()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    with api_world(tmp_path_factory.mktemp("asof")) as new_world:
        new_world.log.build(10).seed()
        yield new_world


def saved(world: ApiWorld, folder: Path, db: str, table: str, form: str) -> Path:
    path = folder / f"rows.{form}"
    path.write_bytes(world.ok(rows_path(db, table), as_of=END, format=form).content)
    return path


@pytest.mark.parametrize("form", ["parquet", "ndjson"])
def test_a_snapshot_seeded_again_has_the_upstreams_keys_and_rows(world: ApiWorld, tmp_path: Path, form: str) -> None:
    """Of every recorded table: seeded, its bytes are those of the snapshot; its keys are those that TiDB wrote."""
    history, seeded, rows, refused = recorded_history(), [], [], []
    for db in history.databases(END):
        for table in history.tables(db.name, END):
            if table.kind != "table":
                continue
            shape = of_json(to_json(shape_of(table)))
            path = saved(world, tmp_path, db.name, table.name, form)
            if not path.read_bytes():
                continue
            try:
                decoded = read_decoded(path, END, shape)
            except InvalidInput as e:
                refused.append((table.name, e.message))
                continue
            want = pa.concat_tables([replayed(i, END) for i in sorted(table.physical_ids)])
            assert decoded["key"].to_pylist() == want["key"].to_pylist(), table.name
            seeded.append((db.name, table))
            rows.append(decoded)
    assert len(seeded) > 40, refused
    with api_world(tmp_path) as seeded_world:
        seeded_world.log.build(2)
        for (db_name, table), decoded in zip(seeded, rows, strict=True):
            seeded_world.log.seed(decoded, ts=END, table_id=table.id)
            for word in ("ndjson", "parquet"):
                body = seeded_world.ok(rows_path(db_name, table.name), as_of=END, format=word).content
                theirs = world.ok(rows_path(db_name, table.name), as_of=END, format=word).content
                if word == "ndjson" and form == "parquet":
                    continue  # zero dates are NULL in Parquet
                assert rows_of(body, word) == rows_of(theirs, word), table.name


def rows_of(body: bytes, word: str) -> Any:
    return body if word == "ndjson" else pq.read_table(io.BytesIO(body)).to_pylist()
