"""Changefeeds with a place for dead letters: what is refused is there as a file, once, before the checkpoint passes it;
everything else is at the destination."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from apiserver.control.changefeed_control import ChangefeedSettings
from destinations.letters.core.letter import Letter, letter_of
from destinations.letters.place import LetterFiles, open_letters
from destinations.protocol import Allowed, DestinationRefused
from replicator import lane_run
from simulator.chaos.servers.s3server import S3Server
from tests.kit.dead_letters import ACCT, CANAL, broken, letters_in, messages_but, messages_in, places_of
from tests.kit.entry_log import Entry, EntryLog, entry_rows
from tests.kit.lane_feed import FEED, Feed, T, raw_client, recovery
from tests.kit.log_builder import LogBuilder
from tests.kit.storage_sink import Killed
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS
from tistream.catalog.tenancy.log_readers import ReaderState
from tistream.catalog.work.lanes import finish_stretch, list_lanes
from tistream.clock import SystemClock
from tistream.errors import Fenced
from tistream.objectstore.memory import MemoryStore
from tistream.outbound.policy import OPERATED
from tistream.tikv.core.api_versions import Api
from tistream.tikv.core.raw_messages import RawSpace


@contextmanager
def killed_before_the_checkpoint(dead: Path) -> Iterator[None]:
    """The worker dies when it wants to move the checkpoint over the first letters."""

    def killed(*args: Any, **named: Any) -> int:
        if letters_in(dead):
            raise Killed
        return finish_stretch(*args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lane_run, "finish_stretch", killed)
        yield


def wrong_after_a_kill(catalog: Catalog, folder: Path, filters: dict[str, str]) -> Sequence[str]:
    """What is wrong when a worker is killed between the letters and the checkpoint, and another one continues."""
    rows, bad = broken()
    log = LogBuilder(catalog, MemoryStore(), rows=rows).build(3)
    lake, dead = folder / "lake", folder / "dead"
    wanted = ChangefeedSettings(sink_uri=f"file://{lake}?{CANAL}", dead_letter=f"file://{dead}", filters=filters)
    feed, wrong = Feed(catalog, log, wanted), list[str]()
    with killed_before_the_checkpoint(dead):
        try:
            feed.write(feed.run("a"))
        except Killed:
            wrong += ["the checkpoint is above the letter"] * any(
                feed.lane.checkpoint_ts >= ts for _, ts in places_of(letters_in(dead))
            )
    first = letters_in(dead)
    written = {path: path.stat().st_mtime_ns for path in dead.glob("*/**/*.json")}
    feed.write(feed.run("b"))
    wrong += ["it does not end"] * (not feed.is_done)
    wrong += [f"letters of {places_of(letters_in(dead))}"] * (sorted(places_of(letters_in(dead))) != sorted(bad))
    wrong += ["other bytes"] * any(letters_in(dead).get(name) != data for name, data in first.items())
    wrong += ["written again"] * any(path.stat().st_mtime_ns != at for path, at in written.items())
    wrong += ["messages"] * (messages_in(lake) != messages_but(bad))
    wrong += [f"{feed.dead_letters} letters are counted"] * (feed.dead_letters != len(bad))
    wrong += ["no letter before the kill"] * (not first)
    return wrong


@pytest.mark.parametrize("filters", [ACCT, {**ACCT, "where": "ver >= 0"}], ids=["planned", "read"])
def test_a_killed_worker_leaves_each_letter_once(catalog: Catalog, tmp_path: Path, filters: dict[str, str]) -> None:
    """Rows that cannot be decoded: found by the destination, or by the filter before it."""
    assert not wrong_after_a_kill(catalog, tmp_path, filters)


def not_kept(self: LetterFiles, letters: Sequence[Letter], allowed: Allowed) -> None:
    """The checkpoint passes without a letter."""


def by_the_lane(share: Any, row: pa.Table, history: Any, cause: DestinationRefused) -> Letter:
    """A name that differs between two tries."""
    return Letter(name=f"1-1/dr/{time.monotonic_ns()}.json", data=letter_of(share, row, history, cause).data)


@pytest.mark.parametrize(
    ("owner", "name", "mutant"),
    [(LetterFiles, "keep", not_kept), (lane_run, "letter_of", by_the_lane)],
    ids=["passed without a letter", "another name at each try"],
)
def test_broken_letters_are_noticed(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, mutant: Callable[..., Any]
) -> None:
    monkeypatch.setattr(owner, name, mutant)
    assert wrong_after_a_kill(catalog, tmp_path, ACCT)


def test_nothing_is_passed_while_the_place_cannot_be_written(catalog: Catalog, tmp_path: Path) -> None:
    rows, bad = broken()
    log = LogBuilder(catalog, MemoryStore(), rows=rows).build(3)
    lake, dead = tmp_path / "lake", tmp_path / "dead"
    feed = Feed(
        catalog, log, ChangefeedSettings(sink_uri=f"file://{lake}?{CANAL}", dead_letter=f"file://{dead}", filters=ACCT)
    )
    dead.rename(tmp_path / "elsewhere")
    dead.write_bytes(b"a file where the folder was")
    run = feed.run("a")
    feed.write(run, turns=8)
    assert feed.lane.checkpoint_ts < min(ts for _, ts in bad)
    error = feed.lane.error
    assert (error["code"], error.get("stopped"), feed.lane.tries > 1) == ("TS-1105", None, True)
    assert "Dead letters cannot be written" in error["message"]
    dead.unlink()
    feed.write(run)
    assert (feed.is_done, feed.lane.error) == (True, None)
    assert sorted(places_of(letters_in(dead))) == sorted(bad)
    assert messages_in(lake) == messages_but(bad)


def test_entries_that_a_cluster_cannot_take_are_in_a_bucket(catalog: Catalog, server: S3Server) -> None:
    """Its stores have no expiry, and keys have a size. Earlier versions of the keys that it can take are there, and so
    are later ones."""
    later_s, long = int(time.time()) + 9999, b"k" * 9000
    entries = [
        Entry(1, b"a", b"1"), Entry(2, b"b", b"old"), Entry(3, b"b", b"2", later_s), Entry(4, long, b"3"),
        Entry(5, b"c", b"4", later_s), Entry(6, b"c", b"5", later_s), Entry(7, b"z", b"6"),
    ]  # fmt: skip
    log = EntryLog(catalog, MemoryStore(), rows=entry_rows(entries)).activate()
    log.flush(7)
    server.create_bucket("dead")
    access = f"region=us-east-1&access-key=a&secret-access-key=b&endpoint={server.endpoint}"
    uri = f"s3://dead/some/prefix?{access}"
    with recovery() as served:
        feed = Feed(
            catalog, log, ChangefeedSettings(sink_uri=f"tikv://{served.pd_address}?backoff-base=10ms", dead_letter=uri)
        )
        feed.write(feed.run("a"))
        assert (feed.is_done, feed.dead_letters, feed.lane.error) == (True, 4, None)
        with raw_client(served, RawSpace(Api.V1)) as client:
            assert [client.get(key) for key in (b"a", b"b", b"c", b"z")] == [b"1", b"old", None, b"6"]
            log.rows = entry_rows([*entries, Entry(8, b"b", b"7")])
            log.flush(8)
            feed.write(feed.run("b"))
            assert client.get(b"b") == b"7"
    assert feed.is_done
    with closing(open_letters(uri, SystemClock(), OPERATED)) as place:
        found = place._run(everything(place))
    assert {(letter["commit_ts"], letter["change"]["key"], letter["change"]["value"]) for letter in found} == {
        (str(ts), b64encode(key).decode(), b64encode(value).decode())
        for ts, key, value in ((3, b"b", b"2"), (4, long, b"3"), (5, b"c", b"4"), (6, b"c", b"5"))
    }
    causes = {letter["commit_ts"]: letter["cause"]["message"] for letter in found}
    assert "enable-ttl is off" in causes["3"]
    assert "max key size exceeded" in causes["4"]
    shown = CHANGEFEEDS.get(catalog, T, FEED)
    assert "secret-access-key=b" in shown.dead_letter


async def everything(place: LetterFiles) -> list[dict[str, Any]]:
    return [json.loads(await place._files.get(key) or b"") async for key in place._files.list("1-1/dr", "")]


def test_without_a_place_the_change_stops_alone_until_there_is_one(catalog: Catalog, tmp_path: Path) -> None:
    rows, bad = broken()
    log = LogBuilder(catalog, MemoryStore(), rows=rows).build(3)
    feed = Feed(catalog, log, ChangefeedSettings(sink_uri=f"file://{tmp_path}/lake?{CANAL}", filters=ACCT))
    with pytest.raises(Fenced, match="divided"):
        feed.write(feed.run("a"))
    stopped = list_lanes(catalog, T, FEED)[1]
    assert stopped.error is not None
    assert (stopped.is_stopped, stopped.error["commit_ts"]) == (True, str(min(ts for _, ts in bad)))

    CHANGEFEEDS.switch(catalog, T, FEED, ReaderState.STOPPED)
    dead = f"file://{tmp_path}/dead"
    wanted = ChangefeedSettings(sink_uri=f"file://{tmp_path}/lake?{CANAL}", filters=ACCT, dead_letter=dead)
    feed.control.update(T, FEED, wanted, actor="")
    feed.control.resume(T, FEED, None, actor="")
    for number in (0, 1):
        feed.write(feed.run("b", number))
    assert (feed.is_done, feed.dead_letters) == (True, len(bad))
    assert sorted(places_of(letters_in(tmp_path / "dead"))) == sorted(bad)
    assert messages_in(tmp_path / "lake") == messages_but(bad)
