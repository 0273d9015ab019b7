"""Files and manifests of backups: what was written is read, and damage is refused with its place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backup import files
from backup.core.manifest import NAME, BackupFile, Manifest, check_conversion, encode_manifest, read_manifest
from backup.core.pairs import PAIRS
from backup.files import FileWriter, check_file, read_file
from tistream.errors import CorruptObject, InvalidInput
from tistream.keyrange import KeyRange
from tistream.objectstore.local import LocalStore
from tistream.objectstore.protocol import ObjectStore
from tistream.tikv.core.api_versions import Api


def pairs(begin: int, end: int) -> pa.Table:
    numbers = range(begin, end)
    columns = [
        pa.array([b"k%06d" % n for n in numbers], pa.binary()),
        pa.array([b"%d" % n * 3 for n in numbers], pa.binary()),
        pa.array([2_000_000_000 + n if n % 4 == 0 else 0 for n in numbers], pa.uint64()),
    ]
    return pa.Table.from_arrays(columns, schema=PAIRS)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileWriter:
    monkeypatch.setattr(files, "BLOCK_BYTES", 16 << 10)
    writer = FileWriter(LocalStore(tmp_path), 7, file_bytes=100 << 10)
    for begin in range(0, 10_000, 3_000):
        writer.add(pairs(begin, min(begin + 3_000, 10_000)))
    writer.finish()
    return writer


def manifest(writer: FileWriter) -> Manifest:
    return Manifest(
        made_from="cluster",
        cluster_id=(1 << 63) + 5,
        keyspace_id=3,
        source_api=Api.V1TTL,
        api=Api.V2,
        range=KeyRange(b"\x00", b"\xff"),
        backup_ts=460_000_000_000_000_001,
        files=tuple(writer.files),
    )


def test_what_was_written_is_read(written: FileWriter, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert len(written.files) > 1
    assert all(len(file.blocks) > 1 for file in written.files)
    read = [block for file in written.files for block in read_file(store, file)]
    assert pa.concat_tables(read).combine_chunks() == pairs(0, 10_000).combine_chunks()
    manifest_read = read_manifest(encode_manifest(manifest(written)))
    assert manifest_read == manifest(written)
    assert (manifest_read.lasting.pairs, manifest_read.expiring.pairs) == (7_500, 2_500)
    for file in written.files:
        check_file(store, file)


def test_any_reader_of_parquet_reads_a_file(written: FileWriter, tmp_path: Path) -> None:
    assert pq.read_table(tmp_path / written.files[0].name)["key"][1].as_py() == b"k000001"


def test_a_damaged_file_is_refused_with_its_name_and_place(written: FileWriter, tmp_path: Path) -> None:
    store, file = LocalStore(tmp_path), written.files[1]
    path = tmp_path / file.name
    data = path.read_bytes()
    at = pq.ParquetFile(path).metadata.row_group(2).column(1).data_page_offset + 60
    path.chmod(0o600)
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(CorruptObject) as e:
        list(read_file(store, file))
    assert (e.value.facts["object"], e.value.facts["block"]) == (file.name, 2)
    first = sum(block.pairs for block in file.blocks[:2])
    assert e.value.facts["rows"] == f"{first} to {first + file.blocks[2].pairs - 1}"
    path.write_bytes(data[:-9])
    with pytest.raises(CorruptObject, match="another size"):
        list(read_file(store, file))


def read_whole(store: ObjectStore, file: BackupFile) -> None:
    for _ in read_file(store, file):
        pass


def test_a_value_or_an_expiry_that_was_changed_is_refused(written: FileWriter, tmp_path: Path) -> None:
    store, file = LocalStore(tmp_path), written.files[0]
    whole = pa.concat_tables(read_file(store, file))
    for column, read in ((1, read_whole), (2, check_file)):
        values = whole.column(column).to_pylist()
        values[0] = b"forged" if column == 1 else 0
        forged = whole.set_column(column, PAIRS.field(column), pa.array(values, PAIRS.field(column).type))
        data, _ = files.encode_file(forged)
        path = tmp_path / file.name
        path.chmod(0o600)
        path.write_bytes(data)
        with pytest.raises(CorruptObject) as e:
            read(store, replace(file, size=len(data)))
        assert e.value.facts["object"] == file.name


def test_a_changed_manifest_is_refused(written: FileWriter) -> None:
    body = orjson.loads(encode_manifest(manifest(written)))
    with pytest.raises(CorruptObject, match="sha256"):
        read_manifest(orjson.dumps({**body, "backup_ts": "1"}))
    with pytest.raises(CorruptObject) as e:
        read_manifest(b"{}")
    assert e.value.facts["object"] == NAME


def test_conversions_are_those_that_lose_nothing() -> None:
    check_conversion(Api.V1TTL, Api.V2)
    for source, target in ((Api.V2, Api.V1), (Api.V1TTL, Api.V1), (Api.V2, Api.V1TTL)):
        with pytest.raises(InvalidInput):
            check_conversion(source, target)
