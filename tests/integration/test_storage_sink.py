"""Changefeeds to object storage: a recording's changes as files, written by workers that are killed on the way."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from destinations import protocol
from destinations.protocol import DestinationRefused, DestinationUnavailable, LeaseOver, Stretch
from destinations.storage import destination as destinations
from destinations.storage.core import schema_files
from destinations.storage.core.record import parsed
from destinations.storage.destination import StorageDestination, open_storage
from destinations.storage.files import Files, FolderFiles
from destinations.storage.seen import Seen
from destinations.storage.settings import StorageSettings, read_settings
from destinations.tables import tables_without_key
from destinations.uri import parse_sink_uri
from reading.scope import Scope
from simulator.chaos.servers.s3server import S3Server
from tests.kit.recording import committed_rows, expected, recorded_history
from tests.kit.storage_sink import (
    SHARE,
    MemoryFiles,
    forever,
    objects_of,
    stretches,
    write_all,
    write_killed,
)
from tests.kit.ticdc import message_text, takes_effect_early

TableName = tuple[str, str]


def settings_of(options: str, place: str = "file:///unused", **changed: Any) -> StorageSettings:
    return replace(read_settings(parse_sink_uri(f"{place}?{options}")), **changed)


CANAL = "protocol=canal-json&enable-tidb-extension=true"


# ---- a recording in a folder


@dataclass(frozen=True)
class Sink:
    """What a changefeed wrote."""

    objects: dict[str, bytes]

    def data_files(self) -> list[tuple[TableName, int, str, bytes]]:
        """(table, version, key, bytes) of the data files, in order of version, date and number."""
        keys = [key for key in self.objects if key.rpartition("/")[2].startswith("CDC0")]
        found = [((parts := key.split("/"))[0], parts[1], int(parts[2]), key) for key in keys]
        return [((db, table), version, key, self.objects[key]) for db, table, version, key in sorted(found)]

    def records(self) -> dict[TableName, bytes]:
        """The records of each table."""
        found: dict[TableName, bytes] = {}
        for table, _, _, data in self.data_files():
            found[table] = found.get(table, b"") + data
        return found


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
    found = defaultdict(list)
    for entry in expected(stem):
        if entry["kind"] == "row":
            found[entry["db"], entry["table"]].append(entry)
    return found


def test_the_rows_of_a_table_are_those_of_ticdc_once_and_in_order(canal: Sink) -> None:
    wanted = by_table("ticdc-canal-json-tidb")
    found: dict[TableName, list[dict[str, Any]]] = defaultdict(list)
    for table, _, message in messages(canal):
        found[table].append(message)
    assert found.keys() == wanted.keys()
    for table, entries in wanted.items():
        ours = found[table]
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
    found, early = defaultdict(list), set()
    for entry in expected("ticdc-canal-json-tidb"):
        if entry["kind"] == "ddl":
            found[entry["db"], entry["table"]].append(int(entry["commit_ts"]))
            if takes_effect_early(json.loads(entry["msg"])["sql"]):
                early.add((entry["db"], entry["table"]))
    return {table: times for table, times in found.items() if table not in early}


def test_the_version_of_a_folder_is_the_last_ddl_of_the_table(canal: Sink) -> None:
    known, start, checked = ddl_times(), recorded_history().start_ts, 0
    for table, version, message in messages(canal):
        if table in known:
            before = [ts for ts in known[table] if ts < message["_tidb"]["commitTs"]]
            assert version == max(before) if before else version < start, table
            checked += bool(before)
    assert checked > 9_000


def test_each_ddl_is_in_one_schema_file_at_its_time(canal: Sink) -> None:
    there = defaultdict(list)
    for key, data in canal.objects.items():
        if "/meta/schema_" in key:
            found = json.loads(data)
            there[found["TableVersion"]] += [(key.rpartition("/")[0], sql) for sql in found["Query"].split("; ")]
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
    found = Sink(files.objects).records()
    for table, entries in by_table(stem).items():
        ours = found[table]
        if any("error" in entry for entry in entries):  # its encoder gives up where ours writes an empty label
            continue
        theirs = "".join(message_text(entry["msg"]) for entry in entries).encode()
        assert ours == theirs, table


def test_parquet_has_a_row_for_each_change_in_native_types() -> None:
    files = MemoryFiles()
    followed(files, "protocol=parquet")
    sink = Sink(files.objects)
    wanted = by_table("ticdc-open")["shop", "acct"]
    tables = [(table, key, pq.read_table(pa.BufferReader(data))) for table, _, key, data in sink.data_files()]
    mine = pa.concat_tables([rows for table, _, rows in tables if table == ("shop", "acct")])
    assert mine["_commit_ts"].to_pylist() == [int(entry["commit_ts"]) for entry in wanted]
    assert mine["_op"].to_pylist() == [entry["type"] for entry in wanted]
    types = {str(field.type) for *_, rows in tables for field in rows.schema}
    assert {"double", "date32[day]", "timestamp[us, tz=UTC]", "duration[us]"} <= types
    partitions = {key.split("/")[3] for table, key, _ in tables if table == ("shop", "p_range")}
    assert len(partitions) > 1
    assert all(partition.isdigit() for partition in partitions)


# ---- kills at every write


@pytest.fixture(scope="module")
def around_ddl() -> list[Stretch]:
    """Two stretches with rows and DDL of a table."""
    history = recorded_history()
    ddl = [e.commit_ts for e in history.events(history.start_ts, history.resolved_ts) if e.table == "evolve"]
    found = list(stretches(history, committed_rows(), [ddl[0] - 1, ddl[3], ddl[6]]))
    assert all(stretch.rows.num_rows > 10 and len(stretch.events) >= 3 for stretch in found)
    return found


def settled(settings: StorageSettings, planned: list[Stretch]) -> dict[str, bytes]:
    """What stands there when nothing goes wrong."""
    files = MemoryFiles()
    write_all(settings, files, planned)
    return files.objects


Change = Callable[[pytest.MonkeyPatch], None]
SMALL = settings_of(CANAL, file_bytes=2_000)
LARGER = settings_of(CANAL, file_bytes=9_000)


def differences(planned: list[Stretch], mutate: Change | None = None) -> Iterator[str]:
    """How a killed and repeated changefeed differs from one that was never killed, for every write of the first
    stretch. The retry has other settings, as after an update."""
    wanted = settled(SMALL, planned)
    puts = len(settled(SMALL, planned[:1])) + 1
    with pytest.MonkeyPatch.context() as patch:
        if mutate is not None:
            mutate(patch)
        for until in range(puts):
            files = MemoryFiles()
            write_killed(SMALL, files, planned[0], until, retry=LARGER)
            write_all(SMALL, files, planned[1:])
            if files.objects != wanted:
                odd = {k for k in files.objects.keys() | wanted.keys() if files.objects.get(k) != wanted.get(k)}
                yield f"killed after {until} puts: {sorted(odd)[:3]}"


def test_a_kill_at_any_write_leaves_what_none_leaves(around_ddl: list[Stretch]) -> None:
    assert len(settled(SMALL, around_ddl)) > 20
    assert list(differences(around_ddl)) == []


def cuts_not_recorded(patch: pytest.MonkeyPatch) -> None:
    def forgetful(text: str) -> Any:
        record = parsed(text)
        return replace(record, places=[replace(place, counts=()) for place in record.places])

    patch.setattr(destinations, "parsed", forgetful)


def numbers_not_recorded(patch: pytest.MonkeyPatch) -> None:
    async def unknown(self: object, text: str) -> None:
        return None

    patch.setattr(StorageDestination, "_recorded", unknown)


def built_by_the_clock(patch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(1, 1_000_000))
    plain = StorageDestination.__init__

    def ticking(self: Any, settings: StorageSettings, *rest: Any) -> None:
        options = replace(settings.options, built_at_commit=False, built_ms=next(ticks))
        plain(self, replace(settings, options=options), *rest)

    patch.setattr(StorageDestination, "__init__", ticking)


def ddl_not_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(destinations, "of_events", lambda events: [])


def ddl_written_twice(patch: pytest.MonkeyPatch) -> None:
    tries = iter(range(1_000_000))
    plain = schema_files.of_events

    def again(events: Any) -> Any:
        return [replace(file, version=file.version + next(tries) % 2) for file in plain(events)]

    patch.setattr(destinations, "of_events", again)


@pytest.mark.parametrize(
    "mutate", [cuts_not_recorded, numbers_not_recorded, built_by_the_clock, ddl_not_written, ddl_written_twice]
)
def test_mutants_differ(around_ddl: list[Stretch], mutate: Change) -> None:
    assert next(differences(around_ddl, mutate), "")


def test_a_lane_that_moves_between_workers_never_takes_a_number_twice(around_ddl: list[Stretch]) -> None:
    """And the mutant that trusts what it knew before the lane was elsewhere does."""
    history, rows = recorded_history(), committed_rows()
    ts = [t for t in rows["commit_ts"].to_pylist() if around_ddl[0].after < t <= around_ddl[1].upto]
    planned = list(stretches(history, rows, [around_ddl[0].after, *sorted(set(ts))[20::20]]))
    assert len(planned) >= 4
    wanted = settled(SMALL, planned)
    assert alternately(planned) == wanted
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Seen, "forget", lambda self: None)
        assert alternately(planned) != wanted


def alternately(planned: list[Stretch]) -> dict[str, bytes]:
    files = MemoryFiles()
    workers = [StorageDestination(SMALL, SHARE, files) for _ in range(2)]
    for n, stretch in enumerate(planned):
        worker = workers[n % 2]
        worker.write(worker.plan(stretch, ""), forever)
    for worker in workers:
        worker.close()
    return files.objects


def test_numbers_go_on_where_an_index_is_behind_or_its_file_was_taken_away(around_ddl: list[Stretch]) -> None:
    first = around_ddl[0]
    files = MemoryFiles()
    write_all(SMALL, files, [first])
    before = dict(files.objects)
    for key in [key for key in files.objects if key.endswith("CDC.index")]:
        files.objects[key] = b"CDC000001.json\n"
    for key in [key for key in files.objects if key.endswith("CDC000001.json")]:
        del files.objects[key]
    write_all(SMALL, files, [first])  # as if it were another
    old = {key: data for key, data in before.items() if "/CDC0" in key and not key.endswith("CDC000001.json")}
    assert old
    assert {key: files.objects[key] for key in old} == old, "a file was written over"
    new = [key for key in files.objects if "/CDC0" in key and key not in before]
    assert len(new) == len([key for key in before if "/CDC0" in key])


def test_a_record_that_is_too_long_is_kept_beside(around_ddl: list[Stretch], monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = settled(SMALL, around_ddl)
    monkeypatch.setattr(destinations, "RECORD_MAX", 20)
    files = MemoryFiles()
    lengths = []
    for stretch in around_ddl:
        write_killed(SMALL, files, stretch, 5, retry=LARGER, record_of=lambda text: lengths.append(len(text)) or text)
    beside = [key for key in files.objects if key.startswith(".tistream/")]
    assert len(beside) == 1, "the one of the last stretch"
    del files.objects[beside[0]]
    assert files.objects == wanted
    assert max(lengths) < 200 < protocol.RECORD_MAX


def test_old_rows_keep_their_folder_when_the_history_is_cut(around_ddl: list[Stretch]) -> None:
    """A history that no longer knows the DDL of a table finds the version by the schema files."""
    first, second = around_ddl
    wanted = settled(SMALL, around_ddl)
    files = MemoryFiles()
    write_all(SMALL, files, [first])
    assert second.history is not None
    write_all(SMALL, files, [replace(second, history=second.history.pruned(second.after))])
    assert files.objects == wanted


# ---- refusals and failures


def test_a_row_that_cannot_be_decoded_is_refused_and_nothing_is_written(around_ddl: list[Stretch]) -> None:
    rows = around_ddl[0].rows
    values = rows["value"].to_pylist()
    assert around_ddl[0].history is not None
    ids = around_ddl[0].history.physical_ids("shop", None, around_ddl[0].after, around_ddl[0].upto)
    mine = [table_id in ids for table_id in rows["table_id"].to_pylist()]
    bad = next(n for n, value in enumerate(values) if value is not None and mine[n])
    values[bad] = b"\x7f"
    broken = rows.set_column(rows.schema.get_field_index("value"), "value", pa.array(values, pa.binary()))
    files = MemoryFiles()
    destination = StorageDestination(SMALL, SHARE, files)
    with pytest.raises(DestinationRefused) as caught:
        destination.plan(replace(around_ddl[0], rows=broken), "")
    facts = caught.value.facts
    assert facts["key"] == rows["key"][bad].as_py().hex()
    assert facts["commit_ts"] == rows["commit_ts"][bad].as_py()
    assert (facts["db"], bool(facts["table"]), bool(facts["cause"])) == ("shop", True, True)
    assert not files.objects
    destination.close()


def test_nothing_is_sent_when_the_lease_is_over(around_ddl: list[Stretch]) -> None:
    files = MemoryFiles()
    destination = StorageDestination(SMALL, SHARE, files)
    plan = destination.plan(around_ddl[0], "")
    left = iter([5.0, 5.0])
    with pytest.raises(LeaseOver):
        destination.write(plan, lambda: next(left, 0.0))
    assert files.puts == 2
    destination.close()


def test_tables_without_a_key_are_named() -> None:
    history = recorded_history()
    found = {table.name for table in tables_without_key(history, history.resolved_ts, Scope(tenant=SHARE.tenant))}
    assert "k_nopk" in found
    assert not found & {"acct", "k_uknn", "k_comp"}


# ---- a bucket


@pytest.mark.parametrize("odd", ["t 1", "bücher", "a/b", "50%", "x+y&z"])
def test_odd_names_stand_in_a_folder_and_in_a_bucket(server: S3Server, tmp_path: Path, odd: str) -> None:
    for uri in (f"file://{tmp_path}?protocol=csv", bucket_uri(server, "odd")):
        destination = open_storage(parse_sink_uri(uri), replace(SHARE, changefeed_id=odd))
        files = destination._files
        destination._run(put_and_get(files, odd))
        destination.close()


async def put_and_get(files: Any, name: str) -> None:
    from destinations.storage.core.names import data_folder, listed_after

    folder = data_folder(name, name, 1, 0, "")
    for data in (b"one", b"two"):
        await files.put(f"{folder}/CDC000001.csv", data)
    assert await files.get(f"{folder}/CDC000001.csv") == b"two"
    assert [key async for key in files.list(folder, listed_after(folder, ""))] == [f"{folder}/CDC000001.csv"]


def bucket_uri(server: S3Server, bucket: str, options: str = CANAL) -> str:
    if bucket != "missing":
        server.create_bucket(f"sink-{bucket}")
    access = "region=us-east-1&access-key=a&secret-access-key=b"
    return f"s3://sink-{bucket}/some/prefix?{options}&endpoint={server.endpoint}&{access}"


def test_a_bucket_holds_what_a_folder_holds(server: S3Server, around_ddl: list[Stretch]) -> None:
    settings = replace(read_settings(parse_sink_uri(bucket_uri(server, "recorded"))), file_bytes=2_000)
    files = destinations.open_files(settings, destinations.SystemClock())
    destination = StorageDestination(settings, SHARE, files)
    destination.check()
    write_killed(settings, files, around_ddl[0], until=9)
    destination.write(destination.plan(around_ddl[1], ""), forever)
    wanted = settled(SMALL, around_ddl)

    async def everything() -> dict[str, bytes | None]:
        keys = [key async for key in files.list("shop", "")]
        return {key: await files.get(key) for key in keys}

    assert destination._run(everything()) == wanted
    destination.close()


def test_a_bucket_that_cannot_be_used_says_why(server: S3Server) -> None:
    destination = open_storage(parse_sink_uri(bucket_uri(server, "missing")), SHARE)
    with pytest.raises(DestinationUnavailable, match="bucket is not there"):
        destination.check()
    destination.close()


def test_a_folder_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DestinationUnavailable, match="Not a directory"):
        open_storage(parse_sink_uri(f"file://{tmp_path}/file?protocol=csv"), SHARE)
