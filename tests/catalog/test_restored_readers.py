"""Changefeeds and consumers continue where the export has them: they repeat what the restore says, and nothing else."""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import orjson
import pyarrow.compute as pc
import pytest

from apiserver.control.changefeed_control import ChangefeedSettings
from replicator import lane_run
from tests.kit.catalog_cases import ON_SQLALCHEMY
from tests.kit.dead_letters import ACCT, CANAL
from tests.kit.entry_log import Entry, EntryLog, entry_rows
from tests.kit.lane_feed import FEED, Feed, T, raw_client, recovery, scanned
from tests.kit.log_builder import LogBuilder, recording_end
from tests.kit.lost_catalog import Lost
from tests.kit.manual_clock import ManualClock
from tests.kit.recording import committed_rows
from tests.kit.storage_sink import objects_of
from tistream import ts as tso
from tistream.admin.views import event_fact
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import list_events
from tistream.catalog.database.tables import destinations
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS
from tistream.catalog.tenancy.consumers import acknowledge, add_consumer, claim_partition
from tistream.catalog.tenancy.log_readers import ReaderState
from tistream.catalog.work.lanes import finish_stretch, list_lanes
from tistream.catalog.work.renumber import EPOCH_STRIDE
from tistream.errors import CatalogUnavailable, Fenced
from tistream.exports.readers import Continued, continued
from tistream.objectstore.generations import FIRST, CatalogReplaced, GenerationWatch
from tistream.tikv.core.api_versions import Api
from tistream.tikv.core.raw_messages import RawSpace

pytestmark = ON_SQLALCHEMY
LEASE_MS = 60_000
HOUR_MS = 3_600_000
ACCT_ID = 264  #: of shop.acct in the recording
Files = Mapping[str, bytes]


@pytest.fixture
def lost(catalog: Catalog, empty: Catalog) -> Lost:
    return Lost(catalog, empty, clock=ManualClock(tso.physical_ms(recording_end()) + HOUR_MS))


def restored_log(lost: Lost, log: LogBuilder) -> LogBuilder:
    """The log goes on in the restored catalog; its files have other names than those of before."""
    again = type(log)(lost.empty, lost.store, rows=log.rows)
    again._file_numbers = itertools.count(1000)
    return again


def rows_in(files: Files) -> Counter[tuple[int, str]]:
    """(commit ts, row) of the data files, each with how often it is there."""
    messages = [orjson.loads(line) for key, data in files.items() if "/CDC0" in key for line in data.splitlines()]
    return Counter((m["_tidb"]["commitTs"], json.dumps([m["type"], m["data"], m["old"]])) for m in messages)


def metadata_of(files: Files) -> int:
    return int(orjson.loads(files["metadata"])["checkpoint-ts"])


@functools.cache
def cuts() -> list[int]:
    """Timestamps that cut the rows of the table into five parts."""
    rows = committed_rows()
    commit_ts = sorted({*rows.filter(pc.equal(rows["table_id"], ACCT_ID))["commit_ts"].to_pylist()})
    return [commit_ts[len(commit_ts) * part // 5] for part in range(1, 5)]


class TestLake:
    @pytest.fixture
    def lake(self, tmp_path: Path) -> Path:
        return tmp_path / "lake"

    def begun(self, lost: Lost, lake: Path, cut: int) -> tuple[LogBuilder, Feed]:
        """A changefeed that has written up to a cut of the log."""
        log = LogBuilder(lost.catalog, lost.store).activate()
        log.flush(cut)
        feed = Feed(lost.catalog, log, ChangefeedSettings(sink_uri=f"file://{lake}?{CANAL}", filters=ACCT))
        feed.write(feed.run("a"))
        assert feed.lane.checkpoint_ts == cut
        return log, feed

    def test_what_was_written_since_is_written_again_into_further_files(self, lost: Lost, lake: Path) -> None:
        first, second, third = cuts()[:3]
        log, feed = self.begun(lost, lake, first)
        lost.export()
        log.flush(third)
        feed.write(feed.run("b"))
        before = objects_of(lake)
        (said,) = lost.restore().readers
        assert (said.noun, said.row.name, said.repeats, said.row.checkpoint_ts) == ("changefeed", FEED, "files", first)
        assert said.unfinished_ts == 0

        again = restored_log(lost, log)
        again.flush(second)
        restored = Feed(lost.empty, again, None)
        restored.write(restored.run("a"))
        assert (metadata_of(before), metadata_of(objects_of(lake))) == (third, second), "the checkpoint goes back"
        again.flush(third)
        restored.write(restored.run("b"))
        after = objects_of(lake)
        assert metadata_of(after) == third
        data = {key for key in before if "/CDC0" in key}
        assert {key: after[key] for key in data} == {key: before[key] for key in data}, "what is there stays"
        written, now = rows_in(before), rows_in(after)
        assert {count for (ts, _), count in now.items() if ts <= first} == {1}
        assert {count for (ts, _), count in now.items() if ts > first} == {2}
        assert now.keys() == written.keys()
        (named,) = list_events(lost.empty, limit=9, kind="changefeed.repeats", subject=FEED)
        repeated = [ts for (ts, _), count in now.items() if count > 1]
        assert int(named.detail["repeats_above"]) < min(repeated)
        assert max(repeated) <= int(named.detail["repeats_upto"])
        assert f"changefeed {FEED} may write changes above {first} up to" in event_fact(named)["words"]

    def test_a_stretch_that_the_export_has_begun_keeps_its_names(
        self, lost: Lost, lake: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, second, middle, third = cuts()
        log, feed = self.begun(lost, lake, first)
        log.flush(second)
        with monkeypatch.context() as patch:
            patch.setattr(
                lane_run, "finish_stretch", lambda *_, **__: (_ for _ in ()).throw(CatalogUnavailable("away"))
            )
            feed.write(feed.run("b"), turns=1)
        assert feed.lane.record_ts == second
        lost.export()
        feed.write(feed.run("a"))
        log.flush(third)
        feed.write(feed.run("b"))
        before = objects_of(lake)
        (said,) = lost.restore().readers
        assert (said.row.checkpoint_ts, said.unfinished_ts) == (first, second)

        again = restored_log(lost, log)
        restored = Feed(lost.empty, again, None)
        for ts in (middle, third):
            again.flush(ts)
            restored.write(restored.run("a"))
        now = rows_in(objects_of(lake))
        assert now.keys() == rows_in(before).keys()
        assert {count for (ts, _), count in now.items() if ts <= second} == {1}
        assert {count for (ts, _), count in now.items() if ts > second} == {1, 2}, "in a file of before, or once more"

    def test_only_the_catalog_knows_owners_and_it_refuses_those_of_before(self, lost: Lost, lake: Path) -> None:
        first = cuts()[0]
        log, feed = self.begun(lost, lake, first)
        lost.export()
        old = feed.lane
        lost.restore()
        restored = Feed(lost.empty, restored_log(lost, log), None)
        with lost.empty.reading() as conn:
            (place,) = conn.execute(destinations.select()).all()
        assert place.epoch >= EPOCH_STRIDE
        assert restored.lane.epoch >= old.epoch + EPOCH_STRIDE
        assert not restored.lane.is_free, "it waits for those of before"
        with pytest.raises(Fenced):
            finish_stretch(lost.empty, old, first + 1, rows=0, size=0)
        restored.run("a").close()
        assert CHANGEFEEDS.get(lost.empty, T, FEED).checkpoint_ts == first


def test_keys_may_go_back_and_are_right_again(lost: Lost) -> None:
    rows = entry_rows([Entry(10, b"k", b"1"), Entry(20, b"k", b"2"), Entry(30, b"k", b"3"), Entry(30, b"l", b"1")])
    log = EntryLog(lost.catalog, lost.store, rows=rows).activate()
    log.flush(10)
    with recovery() as served, raw_client(served, RawSpace(Api.V1)) as client:
        feed = Feed(lost.catalog, log, ChangefeedSettings(sink_uri=f"tikv://{served.pd_address}"))
        feed.write(feed.run("a"))
        lost.export()
        log.flush(30)
        feed.write(feed.run("b"))
        assert scanned(client) == {b"k": b"3", b"l": b"1"}
        (said,) = lost.restore().readers
        assert (said.repeats, said.row.checkpoint_ts, said.unfinished_ts) == ("keys", 10, 0)
        again = restored_log(lost, log)
        again.flush(20)
        restored = Feed(lost.empty, again, None)
        restored.write(restored.run("a"))
        assert scanned(client) == {b"k": b"2", b"l": b"1"}, "older than before"
        assert restored.lane.checkpoint_ts < 30 < restored.lane.catch_up_ts, "also under an owner that was given it"
        again.flush(30)
        restored.write(restored.run("b"))
        assert scanned(client) == {b"k": b"3", b"l": b"1"}


def test_who_was_paused_since_before_the_restore_writes_nothing(lost: Lost) -> None:
    """The catalog of before lives, and would take the attempt and renew the lease."""
    log = EntryLog(lost.catalog, lost.store, rows=entry_rows([Entry(10, b"k", b"1"), Entry(20, b"k", b"2")])).activate()
    log.flush(10)
    with recovery() as served, raw_client(served, RawSpace(Api.V1)) as client:
        feed = Feed(lost.catalog, log, ChangefeedSettings(sink_uri=f"tikv://{served.pd_address}"))
        feed.look_first = GenerationWatch(lost.store, FIRST, lost.clock).look
        feed.write(feed.run("a"))
        lost.export()
        log.flush(20)
        with closing(feed.run("b")) as run:
            lost.restore()
            with pytest.raises(CatalogReplaced):
                run.turn(lambda: feed.services.served(T))
        assert scanned(client) == {b"k": b"1"}


def test_members_get_again_what_they_acknowledged(lost: Lost) -> None:
    log = LogBuilder(lost.catalog, lost.store).activate()
    first, second = log.cuts(3)[:2]
    log.flush(second)
    add_consumer(lost.catalog, T, "warehouse", None)

    def acknowledged(catalog: Catalog, ts: int) -> int:
        """Where the member began; it has everything up to `ts` then."""
        partition = claim_partition(catalog, T, "warehouse", "m", session=None, lease_ms=LEASE_MS).partition
        assert partition is not None
        epochs.append(partition.epoch)
        acknowledge(catalog, T, "warehouse", 0, epoch=partition.epoch, ts=ts)
        return partition.checkpoint_ts

    epochs: list[int] = []
    acknowledged(lost.catalog, first)
    lost.export()
    acknowledged(lost.catalog, second)
    (said,) = lost.restore().readers
    assert (said.noun, said.repeats, said.row.checkpoint_ts) == ("consumer", "changes", first)
    with pytest.raises(Fenced):
        acknowledge(lost.empty, T, "warehouse", 0, epoch=epochs[-1], ts=second)
    restored_log(lost, log).flush(second)
    assert acknowledged(lost.empty, second) == first
    assert epochs[-1] >= epochs[0] + EPOCH_STRIDE


def test_each_is_named_with_where_it_continues(lost: Lost, tmp_path: Path) -> None:
    log = LogBuilder(lost.catalog, lost.store).activate()
    cut = log.cuts(3)[0]
    log.flush(cut)
    Feed(lost.catalog, log, ChangefeedSettings(sink_uri=f"file://{tmp_path}/lake?{CANAL}", filters=ACCT))
    CHANGEFEEDS.switch(lost.catalog, T, FEED, ReaderState.STOPPED)
    add_consumer(lost.catalog, T, "done", None, target_ts=cut)
    partition = claim_partition(lost.catalog, T, "done", "m", session=None, lease_ms=LEASE_MS).partition
    assert partition is not None
    acknowledge(lost.catalog, T, "done", 0, epoch=partition.epoch, ts=cut)

    lake, done = continued(lost.catalog)
    assert lake.sentence.startswith(f"changefeed {FEED} of tenant 1/1 continues above ")
    assert f"TSO {log.start_ts}" in lake.sentence
    assert "It is paused" in lake.sentence
    assert "further numbers" in lake.sentence
    assert lake.facts["continues_ts"] == str(log.start_ts)
    assert (lake.facts["kind"], lake.facts["repeats"], lake.facts["state"]) == ("changefeed", "files", "stopped")
    assert CANAL not in lake.sentence + json.dumps(lake.facts)
    assert done.sentence == "consumer done of tenant 1/1 is finished: nothing is repeated."
    assert done.facts["repeats"] == "nothing"
    begun = Continued(noun="changefeed", repeats="files", row=lake.row, unfinished_ts=cut)
    assert f"TSO {cut})" in begun.sentence
    assert len(list_lanes(lost.catalog, T, FEED)) == 1
