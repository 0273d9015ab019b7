"""Changefeeds to object storage: what the files of a recording's changes say, as TiCDC's say it."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from destinations.storage.destination import StorageDestination
from destinations.storage.files import Files, FolderFiles
from destinations.tables import tables_without_key
from reading.rows.scope import Scope
from tests.kit.recording import committed_rows, expected, recorded_history
from tests.kit.storage_sink import CANAL, SHARE, MemoryFiles, forever, objects_of, settings_of, stretches, write_killed
from tests.kit.ticdc import message_text, takes_effect_early

TableName = tuple[str, str]


# ---- a recording in a folder


@dataclass(frozen=True)
class Sink:
    """What a changefeed wrote."""

    objects: dict[str, bytes]

    def data_files(self) -> list[tuple[TableName, int, str, bytes]]:
        """(table, version, key, bytes) of the data files, in order of version, date and number."""
        keys = [key for key in self.objects if key.rpartition("/")[2].startswith("CDC0")]
        entries = [((parts := key.split("/"))[0], parts[1], int(parts[2]), key) for key in keys]
        return [((db, table), version, key, self.objects[key]) for db, table, version, key in sorted(entries)]

    def records(self) -> dict[TableName, bytes]:
        """The records of each table."""
        data_of_table: dict[TableName, bytes] = {}
        for table, _, _, data in self.data_files():
            data_of_table[table] = data_of_table.get(table, b"") + data
        return data_of_table


def followed(files: Files, options: str) -> None:
    """Write the recording, by workers that are killed in every stretch."""
    history, rand = recorded_history(), random.Random(options)
    moments = sorted(rand.sample(committed_rows()["commit_ts"].to_pylist(), 8))
    bounds = [0, *moments, history.resolved_ts]
    settings = settings_of(options, file_bytes=40_000)
    for stretch in stretches(history, committed_rows(), bounds):
        write_killed(settings, files, stretch, until=rand.randint(1, 60))
    last = StorageDestination(settings, SHARE, files)
    last.note_checkpoint(history.resolved_ts, forever)
    last.close()


@pytest.fixture(scope="module")
def canal(tmp_path_factory: pytest.TempPathFactory) -> Sink:
    root = tmp_path_factory.mktemp("canal")
    followed(FolderFiles(root, 0), f"{CANAL}&enable-partition-separator=false")
    return Sink(objects_of(root))


def messages(sink: Sink) -> Iterator[tuple[TableName, int, dict[str, Any]]]:
    """(table, version of its folder, message) of every row."""
    for table, version, _, data in sink.data_files():
        yield from ((table, version, json.loads(line)) for line in data.decode().split("\r\n")[:-1])


def by_table(stem: str) -> dict[TableName, list[dict[str, Any]]]:
    """The rows that TiCDC encoded, in its order."""
    by_name = defaultdict(list)
    for entry in expected(stem):
        if entry["kind"] == "row":
            by_name[entry["db"], entry["table"]].append(entry)
    return by_name


def test_the_rows_of_a_table_are_those_of_ticdc_once_and_in_order(canal: Sink) -> None:
    expected_of = by_table("ticdc-canal-json-tidb")
    by_name: dict[TableName, list[dict[str, Any]]] = defaultdict(list)
    for table, _, message in messages(canal):
        by_name[table].append(message)
    assert by_name.keys() == expected_of.keys()
    for table, entries in expected_of.items():
        ours = by_name[table]
        theirs = [json.loads(message_text(entry["msg"])) for entry in entries]
        assert [message.pop("ts") for message in ours] == [message["es"] for message in ours], "built at the commit"
        for message in theirs:
            del message["ts"]
        assert ours == theirs, table


def test_each_version_of_a_table_has_its_schema_file(canal: Sink) -> None:
    columns: dict[str, list[set[str]]] = {}
    for (db, table), version, message in messages(canal):
        place = f"{db}/{table}/meta/schema_{version}_"
        if place not in columns:
            described = [json.loads(data) for key, data in canal.objects.items() if key.startswith(place)]
            assert described, f"no schema file for {place}"
            columns[place] = [{c["ColumnName"] for c in each["TableColumns"]} for each in described]
            assert all(each["TableVersion"] == version for each in described)
        assert message["data"][0].keys() in columns[place], place
        assert message["_tidb"]["commitTs"] > version


def ddl_times() -> dict[TableName, list[int]]:
    """The times of TiCDC's DDL by table, without tables with DDL for which TiCDC reports another time."""
    times_of, early = defaultdict(list), set()
    for entry in expected("ticdc-canal-json-tidb"):
        if entry["kind"] == "ddl":
            times_of[entry["db"], entry["table"]].append(int(entry["commit_ts"]))
            if takes_effect_early(json.loads(entry["msg"])["sql"]):
                early.add((entry["db"], entry["table"]))
    return {table: times for table, times in times_of.items() if table not in early}


def test_the_version_of_a_folder_is_the_last_ddl_of_the_table(canal: Sink) -> None:
    ddl_times_of, start, checked = ddl_times(), recorded_history().start_ts, 0
    for table, version, message in messages(canal):
        if table in ddl_times_of:
            before = [ts for ts in ddl_times_of[table] if ts < message["_tidb"]["commitTs"]]
            assert version == max(before) if before else version < start, table
            checked += bool(before)
    assert checked > 9_000


def test_each_ddl_is_in_one_schema_file_at_its_time(canal: Sink) -> None:
    there: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for key, data in canal.objects.items():
        if "/meta/schema_" in key:
            file = json.loads(data)
            there[file["TableVersion"]] += [(key.rpartition("/")[0], sql) for sql in file["Query"].split("; ")]
    of_databases = 0
    for entry in expected("ticdc-canal-json-tidb"):
        message = json.loads(entry["msg"]) if entry["kind"] == "ddl" else None
        if message is not None and not takes_effect_early(message["sql"]):
            folder = "/".join(part for part in (message["database"], message["table"], "meta") if part)
            sql = message["sql"].rstrip(";")
            places = [place for place, query in there[int(entry["commit_ts"])] if query.rstrip(";") == sql]
            assert len(places) == 1, message
            assert places == [folder] or "EXCHANGE PARTITION" in sql, message  # TiCDC names the other table
            of_databases += not message["table"]
    assert of_databases >= 4


def test_index_files_name_the_newest_file_and_the_checkpoint_is_there(canal: Sink) -> None:
    newest: dict[str, str] = {}
    for key in canal.objects:
        folder, _, name = key.rpartition("/")
        if name.startswith("CDC0"):
            newest[folder] = max(name, newest.get(folder, ""))
    index = {k.removesuffix("/meta/CDC.index"): v.decode() for k, v in canal.objects.items() if k.endswith("index")}
    assert index == {folder: name + "\n" for folder, name in newest.items()}
    assert max(newest.values()) > "CDC000005.json", "some folder has many files"
    assert json.loads(canal.objects["metadata"]) == {"checkpoint-ts": recorded_history().resolved_ts}


def test_no_file_is_larger_than_asked_for(canal: Sink) -> None:
    large = {k: v for k, v in canal.objects.items() if "/CDC0" in k and len(v) > 40_000}
    assert all(data.count(b"\r\n") == 1 for data in large.values())


@pytest.mark.parametrize(
    ("stem", "options"),
    [
        ("ticdc-csv", "protocol=csv"),
        ("ticdc-csv-full", "protocol=csv&include-commit-ts=true&output-old-value=true&binary-encoding-method=hex"),
    ],
)
def test_csv_records_are_those_of_ticdc(stem: str, options: str) -> None:
    files = MemoryFiles()
    followed(files, f"{options}&enable-partition-separator=false&date-separator=none")
    records = Sink(files.objects).records()
    for table, entries in by_table(stem).items():
        ours = records[table]
        if any("error" in entry for entry in entries):  # its encoder gives up where ours writes an empty label
            continue
        theirs = "".join(message_text(entry["msg"]) for entry in entries).encode()
        assert ours == theirs, table


def test_parquet_has_a_row_for_each_change_in_native_types() -> None:
    files = MemoryFiles()
    followed(files, "protocol=parquet")
    sink = Sink(files.objects)
    expected_changes = by_table("ticdc-open")["shop", "acct"]
    tables = [(table, key, pq.read_table(pa.BufferReader(data))) for table, _, key, data in sink.data_files()]
    acct = pa.concat_tables([rows for table, _, rows in tables if table == ("shop", "acct")])
    assert acct["_commit_ts"].to_pylist() == [int(entry["commit_ts"]) for entry in expected_changes]
    assert acct["_op"].to_pylist() == [entry["type"] for entry in expected_changes]
    types = {str(field.type) for *_, rows in tables for field in rows.schema}
    assert {"double", "date32[day]", "timestamp[us, tz=UTC]", "duration[us]"} <= types
    partitions = {key.split("/")[3] for table, key, _ in tables if table == ("shop", "p_range")}
    assert len(partitions) > 1
    assert all(partition.isdigit() for partition in partitions)


def test_tables_without_a_key_are_named() -> None:
    history = recorded_history()
    names = {table.name for table in tables_without_key(history, history.resolved_ts, Scope(tenant=SHARE.tenant))}
    assert "k_nopk" in names
    assert not names & {"acct", "k_uknn", "k_comp"}
