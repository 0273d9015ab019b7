"""Changefeeds to object storage: how files are written, by workers that are killed or late, to folders and buckets."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from destinations import protocol
from destinations.protocol import DestinationRefused, DestinationUnavailable, LeaseOver, NamesTaken, Stretch
from destinations.storage import destination as destinations
from destinations.storage import files as files_of_folders
from destinations.storage.core import schema_files
from destinations.storage.core.contents import ParquetFiles, TextFiles
from destinations.storage.core.parts import parsed
from destinations.storage.destination import Seen, StorageDestination, open_storage
from destinations.storage.files import FolderFiles, open_files, probe
from destinations.storage.settings import StorageSettings, read_settings
from destinations.uri import parse_sink_uri
from simulator.chaos.servers.s3server import S3Server
from tests.kit.recording import committed_rows, recorded_history
from tests.kit.storage_sink import CANAL, SHARE, MemoryFiles, forever, settings_of, stretches, write_all, write_killed
from tests.kit.waiting import eventually
from tistream.clock import SystemClock
from tistream.errors import InvalidInput
from tistream.outbound.policy import OPERATED

# ---- kills at every write


@pytest.fixture(scope="module")
def around_ddl() -> list[Stretch]:
    """Two stretches with rows and DDL of a table."""
    history = recorded_history()
    ddl = [e.commit_ts for e in history.events(history.start_ts, history.resolved_ts) if e.table == "evolve"]
    planned = list(stretches(history, committed_rows(), [ddl[0] - 1, ddl[3], ddl[6]]))
    assert all(stretch.rows.num_rows > 10 and len(stretch.events) >= 3 for stretch in planned)
    return planned


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
    want = settled(SMALL, planned)
    puts = len(settled(SMALL, planned[:1])) + 1
    with pytest.MonkeyPatch.context() as patch:
        if mutate is not None:
            mutate(patch)
        for until in range(puts):
            files = MemoryFiles()
            write_killed(SMALL, files, planned[0], until, retry=LARGER)
            write_all(SMALL, files, planned[1:])
            if files.objects != want:
                odd = {k for k in files.objects.keys() | want.keys() if files.objects.get(k) != want.get(k)}
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
    """A mutant that trusts its numbers from before the lane moved takes one twice."""
    history, rows = recorded_history(), committed_rows()
    ts = [t for t in rows["commit_ts"].to_pylist() if around_ddl[0].after < t <= around_ddl[1].upto]
    planned = list(stretches(history, rows, [around_ddl[0].after, *sorted(set(ts))[20::20]]))
    assert len(planned) >= 4
    expected_objects = settled(SMALL, planned)
    assert alternately(planned) == expected_objects
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Seen, "forget", lambda self: None)
        assert alternately(planned) != expected_objects


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
    expected_objects = settled(SMALL, around_ddl)
    monkeypatch.setattr(destinations, "RECORD_MAX", 20)
    files = MemoryFiles()
    lengths: list[int] = []

    def measured(record: str) -> str:
        lengths.append(len(record))
        return record

    for stretch in around_ddl:
        write_killed(SMALL, files, stretch, 5, retry=LARGER, record_of=measured)
    assert len(beside(files)) == len(around_ddl)
    last = StorageDestination(SMALL, SHARE, files)
    last.note_checkpoint(around_ddl[-1].after, forever)
    last.close()
    del files.objects["metadata"]
    (key,) = beside(files)  # of the last stretch
    del files.objects[key]
    assert files.objects == expected_objects
    assert max(lengths) < 200 < protocol.RECORD_MAX


def test_a_kept_record_is_there_for_a_lane_that_was_divided_from_its_own(
    around_ddl: list[Stretch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the lane has passed the stretch long since, with records of its own."""
    monkeypatch.setattr(destinations, "RECORD_MAX", 20)
    files, first = MemoryFiles(), around_ddl[0]
    lane = StorageDestination(SMALL, SHARE, files)
    record = lane.plan(first, "").record
    for stretch in around_ddl:
        lane.write(lane.plan(stretch, ""), forever)
        lane.note_checkpoint(first.after, forever)  # of all lanes: the other one stands there
    divided = StorageDestination(SMALL, replace(SHARE, number=1, of=2), files)
    assert divided.plan(first, record).record == record, "else its files are written twice"
    lane.close()
    divided.close()


def beside(files: MemoryFiles) -> list[str]:
    return [key for key in files.objects if key.startswith(".tistream/")]


def test_old_rows_keep_their_folder_when_the_history_is_cut(around_ddl: list[Stretch]) -> None:
    """A history that no longer knows the DDL of a table finds the version by the schema files."""
    first, second = around_ddl
    expected_objects = settled(SMALL, around_ddl)
    files = MemoryFiles()
    write_all(SMALL, files, [first])
    assert second.history is not None
    write_all(SMALL, files, [replace(second, history=second.history.pruned(second.after))])
    assert files.objects == expected_objects


# ---- refusals and failures


def test_a_row_that_cannot_be_decoded_is_refused_and_nothing_is_written(around_ddl: list[Stretch]) -> None:
    rows = around_ddl[0].rows
    values = rows["value"].to_pylist()
    assert around_ddl[0].history is not None
    ids = around_ddl[0].history.physical_ids("shop", None, around_ddl[0].after, around_ddl[0].upto)
    is_of_table = [table_id in ids for table_id in rows["table_id"].to_pylist()]
    bad = next(n for n, value in enumerate(values) if value is not None and is_of_table[n])
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


# ---- a bucket


@pytest.mark.parametrize("odd", ["t 1", "bücher", "a/b", "50%", "x+y&z"])
def test_odd_names_stand_in_a_folder_and_in_a_bucket(server: S3Server, tmp_path: Path, odd: str) -> None:
    for uri in (f"file://{tmp_path}?protocol=csv", bucket_uri(server, "odd")):
        destination = open_storage(parse_sink_uri(uri), replace(SHARE, changefeed_id=odd), OPERATED)
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
    files = open_files(settings, SystemClock(), OPERATED)
    destination = StorageDestination(settings, SHARE, files)
    destination.check()
    write_killed(settings, files, around_ddl[0], until=9)
    destination.write(destination.plan(around_ddl[1], ""), forever)
    expected_objects = settled(SMALL, around_ddl)

    async def everything() -> dict[str, bytes | None]:
        keys = [key async for key in files.list("shop", "")]
        return {key: await files.get(key) for key in keys}

    assert destination._run(everything()) == expected_objects
    destination.close()


def test_a_bucket_that_cannot_be_used_says_why(server: S3Server) -> None:
    destination = open_storage(parse_sink_uri(bucket_uri(server, "missing")), SHARE, OPERATED)
    with pytest.raises(DestinationUnavailable, match="bucket is not there"):
        destination.check()
    destination.close()


def test_a_folder_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with (
        closing(open_storage(parse_sink_uri(f"file://{tmp_path}/file?protocol=csv"), SHARE, OPERATED)) as destination,
        pytest.raises(DestinationUnavailable, match="Not a directory"),
    ):
        destination.check()


def test_a_folder_that_does_not_answer_is_given_up_with_a_bounded_number_of_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a FIFO without a writer blocks in the kernel, like a hung network disk."""
    monkeypatch.setattr(files_of_folders, "CALL_S", 0.2)
    monkeypatch.setattr(files_of_folders, "CALLS_MAX", 3)
    files, running = FolderFiles(tmp_path, 0), files_of_folders._RUNNING
    os.mkfifo(tmp_path / "held")
    for _ in range(5):
        began_s = time.monotonic()
        with pytest.raises(DestinationUnavailable, match="does not answer"):
            asyncio.run(files.get("held"))
        assert time.monotonic() - began_s < 5
    assert running[tmp_path] == 3
    (tmp_path / "held").write_bytes(b"")
    eventually(lambda: not running[tmp_path])
    asyncio.run(files.put("key", b"value"))
    assert asyncio.run(files.get("key")) == b"value"


@pytest.mark.parametrize("name", ["put", "create"])
def test_a_file_in_the_place_of_a_folder_is_no_file_of_that_name(tmp_path: Path, name: str) -> None:
    """A reader of the sink's folder can create such a file."""
    files = FolderFiles(tmp_path, 0)
    (tmp_path / "shop").write_bytes(b"")
    with pytest.raises(DestinationUnavailable, match="File exists"):
        asyncio.run(getattr(files, name)("shop/CDC000001.json", b"rows"))
    assert list((tmp_path / ".tmp").iterdir()) == []


def late_files_are_kept(planned: list[Stretch]) -> None:
    """Files of a former owner come under the next names, between the look of a stretch and its requests: none is
    replaced, each change is in some file, and one whose rows are all there is not written again."""
    first, files = planned[0], MemoryFiles()
    expected_objects = settled(SMALL, [first])
    data = {key: content for key, content in expected_objects.items() if "/CDC0" in key}
    folder = max({key.rpartition("/")[0] for key in data}, key=lambda at: sum(key.startswith(at) for key in data))
    of_folder = {key: content for key, content in data.items() if key.startswith(f"{folder}/")}
    assert len(of_folder) > 2
    there = dict(zip(of_folder, [b'{"late":1}\r\n' + of_folder[min(of_folder)], b'{"late":2}\r\n'], strict=False))
    with closing(StorageDestination(SMALL, SHARE, files)) as destination:
        plan = destination.plan(first, "")
        files.objects |= there
        with pytest.raises(NamesTaken):
            destination.write(plan, forever)
        again = destination.plan(first, plan.record)
        assert again.record != plan.record
        destination.write(again, forever)
    assert {key: files.objects[key] for key in there} == there, "a file was replaced"
    has = b"".join(content for key, content in files.objects.items() if key.startswith(f"{folder}/CDC0"))
    assert all(content in has for content in of_folder.values())
    assert has.count(of_folder[min(of_folder)]) == 1, "the late file has all of its rows"


def changed_parts_get_new_names(planned: list[Stretch]) -> None:
    """A stretch lacks some rows when it is tried again, as after an update of filters: nothing that is there gets other
    bytes, and what is the same stays where it is."""
    first, files = planned[0], MemoryFiles()
    ids = first.rows["table_id"].to_pylist()
    left_out = [n for n, each in enumerate(ids) if each == max(set(ids), key=ids.count)][1]
    fewer = replace(first, rows=first.rows.take([n for n in range(len(ids)) if n != left_out]))
    with closing(StorageDestination(SMALL, SHARE, files)) as destination:
        plan = destination.plan(first, "")
        destination.write(plan, forever)
        before = {key: data for key, data in files.objects.items() if "/CDC0" in key}
        destination.write(destination.plan(fewer, plan.record), forever)
    after = {key: data for key, data in files.objects.items() if "/CDC0" in key}
    assert {key: after[key] for key in before} == before
    new = {key.rpartition("/")[0] for key in after.keys() - before.keys()}
    assert len(new) == 1 < len({key.rpartition("/")[0] for key in before}), "the folder of the row that is left out"


def data_file_is_put(patch: pytest.MonkeyPatch) -> None:
    async def create(self: MemoryFiles, key: str, data: bytes) -> bool:
        await self.put(key, data)
        return True

    patch.setattr(MemoryFiles, "create", create)


def other_files_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TextFiles, "holds", lambda self, whole, part: True)


def no_file_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TextFiles, "holds", lambda self, whole, part: False)


def record_without_digest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(destinations, "digest_of", lambda folder, files: "")


RULES: dict[Callable[[list[Stretch]], None], tuple[Change, ...]] = {
    late_files_are_kept: (data_file_is_put, other_files_count, no_file_counts),
    changed_parts_get_new_names: (record_without_digest,),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_data_file_is_created_and_never_replaced(rule: Any, around_ddl: list[Stretch]) -> None:
    rule(around_ddl)


@pytest.mark.parametrize(("rule", "mutate"), [(rule, mutate) for rule, each in RULES.items() for mutate in each])
def test_a_broken_rule_of_data_files_is_noticed(
    rule: Any, mutate: Change, around_ddl: list[Stretch], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception, NamesTaken, ValueError)):
        rule(around_ddl)


def test_rows_of_parquet_files_are_compared(around_ddl: list[Stretch]) -> None:
    contents = ParquetFiles(limit=1 << 20)
    tables = [pa.table({"_op": ["insert"] * 3, "_commit_ts": stamps}) for stamps in ([1, 2, 3], [2, 3, 4])]
    whole, other = (pa.BufferOutputStream() for _ in range(2))
    for sink, table in zip((whole, other), tables, strict=True):
        pq.write_table(table, sink)
    part = pa.BufferOutputStream()
    pq.write_table(tables[0].slice(1), part)
    assert contents.holds(bytes(whole.getvalue()), bytes(part.getvalue()))
    assert not contents.holds(bytes(whole.getvalue()), bytes(other.getvalue()))
    assert not contents.holds(b"{}", bytes(part.getvalue()))


def test_a_service_that_replaces_what_is_to_be_created_is_refused() -> None:
    class Replacing(MemoryFiles):
        async def create(self, key: str, data: bytes | memoryview) -> bool:
            await self.put(key, data)
            return True

    with pytest.raises(InvalidInput, match=r"^s3://lake replaces an object .* ignores If-None-Match"):
        asyncio.run(probe(Replacing(), "s3://lake", ".check", b"feed"))
    asyncio.run(probe(MemoryFiles(), "s3://lake", ".check", b"feed"))
