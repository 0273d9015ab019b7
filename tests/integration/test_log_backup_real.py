"""A log backup that a real TiKV wrote, against what the same cluster's change feed sent at the same time.

`tests/data/real_tikv/logbackup_clean`: three stores, 158 seconds, leader moves, splits and merges. The directory
(storage.tar.zst), the messages of the change feed (stream.ndjson.zst), and TiDB's tables (see tests/e2e).
"""

from __future__ import annotations

import io
import random
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import zstandard

from pusher.core.cdcpb import read_change_data
from pusher.core.source import Resolved, Rows
from pusher.logbackup.core.entries import read_versions, unpack
from pusher.logbackup.core.metadata import META_PREFIX, read_metadata
from pusher.logbackup.source import LogBackupSource
from simulator.chaos.servers.s3server import CREDENTIALS, s3_server
from tests.kit.log_backup_files import LogBackupFiles
from tests.kit.manual_clock import ManualClock
from tests.kit.real_tikv import Story, Version, lines
from tistream.codec.table_key import RecordKey, parse_key
from tistream.errors import CorruptObject, ObjectNotFound
from tistream.model.change import FLAG_NOT_A_CHANGE, FLAG_OLD_VALUE_UNKNOWN
from tistream.objectstore.factory import open_store
from tistream.objectstore.memory import MemoryStore

FOLDER = Path(__file__).parents[1] / "data" / "real_tikv" / "logbackup_clean"
START_TS = 470614360925667329  #: the backup task's start_ts, from PD
CHECKPOINT = 470614402383740929  #: what central_global says in PD
T_BANK = 142  #: the table that a lossy MODIFY COLUMN rewrote
LOSSY_ROWS, INGESTED_ENTRIES = 37, 6000  #: what the log has and the change feed hides
Content = tuple[int, bytes | None]  #: op, value


def storage() -> dict[str, bytes]:
    """The objects of the directory."""
    packed = (FOLDER / "storage.tar.zst").read_bytes()
    with tarfile.open(fileobj=io.BytesIO(zstandard.ZstdDecompressor().stream_reader(packed).read())) as tar:
        files = [(m.name.removeprefix("./"), tar.extractfile(m)) for m in tar if m.isfile()]
        return {name: data.read() for name, data in files if data is not None}


@pytest.fixture(scope="module")
def objects() -> dict[str, bytes]:
    return storage()


@pytest.fixture(scope="module")
def feed() -> tuple[int, dict[Version, Content]]:
    """From where on the change feed was recorded, and its committed changes."""
    story, start_ts = Story(), 0
    for line in lines(FOLDER / "stream.ndjson.zst"):
        if line["dir"] == "recv":
            for event in read_change_data(bytes.fromhex(line["msg_hex"])).events:
                if event.rows is not None:
                    story.hear(event)
        elif line.get("note") == "subscribe" and line["request_id"] in (1, 2):
            start_ts = start_ts or line["checkpoint_ts"]
    changes = {}
    for (key, commit_ts), began_ts in story.commits.items():
        if start_ts < commit_ts <= CHECKPOINT:
            op, value, _ = list(story.contents[key, began_ts])[-1]
            changes[key, commit_ts] = (op, value)
    return start_ts, changes


@dataclass
class Read:
    """What a source gave out."""

    changes: dict[Version, Content] = field(default_factory=dict)
    hidden: dict[Version, Content] = field(default_factory=dict)
    resolved: int = 0

    def run(self, source: LogBackupSource, frontier: int = START_TS, *, polls: int = 100_000) -> Read:
        """Until it is caught up."""
        for _ in range(polls):
            for event in source.poll(60, lambda _: frontier):
                if isinstance(event, Rows):
                    names = ("key", "commit_ts", "op", "value", "flags")
                    for key, commit_ts, op, value, flags in zip(
                        *(event.rows[n].to_pylist() for n in names), strict=True
                    ):
                        assert flags & FLAG_OLD_VALUE_UNKNOWN
                        place = self.hidden if flags & FLAG_NOT_A_CHANGE else self.changes
                        assert place.setdefault((key, commit_ts), (op, value)) == (op, value)
                elif isinstance(event, Resolved):
                    self.resolved = int(event.resolved_ts.max())
            if source.caught_up:
                break
        return self


def directory(objects: dict[str, bytes]) -> MemoryStore:
    store = MemoryStore()
    for key, data in objects.items():
        store.put(key, data)
    return store


@pytest.fixture(scope="module")
def whole(objects: dict[str, bytes]) -> Read:
    return Read().run(LogBackupSource(directory(objects), ManualClock()))


def test_it_says_exactly_what_the_change_feed_said(whole: Read, feed: tuple[int, dict[Version, Content]]) -> None:
    start_ts, changes = feed
    assert whole.resolved == CHECKPOINT
    mine = {version: content for version, content in whole.changes.items() if version[1] > start_ts}
    assert len(changes) == 37_221
    assert mine == changes


def test_rows_hidden_by_the_feed_are_no_changes(
    whole: Read, feed: tuple[int, dict[Version, Content]], objects: dict[str, bytes]
) -> None:
    assert len(whole.hidden) == LOSSY_ROWS
    for version in whole.hidden:
        parsed = parse_key(version[0])
        assert isinstance(parsed, RecordKey)
        assert parsed.table_id == T_BANK
        assert version not in feed[1]
    slices = [s for k, d in objects.items() if k.startswith(META_PREFIX) for s in read_metadata(k, d).slices]
    assert len(slices) == 575
    ingested: set[Version] = set()
    for piece in (s for s in slices if s.cf == "write" and not s.deletes):
        entries = unpack(piece, objects[piece.object][piece.offset : piece.offset + piece.stored_bytes])
        for row in read_versions(piece, entries, START_TS, CHECKPOINT).to_pylist():
            if row["txn_source"] == 1 << 16:
                ingested.add((row["key"], row["commit_ts"]))
    assert len(ingested) == INGESTED_ENTRIES
    assert not ingested & (whole.changes.keys() | whole.hidden.keys())


def test_the_stuck_checkpoint_is_named_with_the_stores_that_went_on(objects: dict[str, bytes]) -> None:
    store = directory(objects)
    log = LogBackupFiles(store)
    for name in ("1", "2", "5", "central_global"):
        log.checkpoint(START_TS, name)
    source = LogBackupSource(store, ManualClock())
    read = Read().run(source)
    assert (read.changes, read.hidden, read.resolved) == ({}, {}, START_TS)
    assert "v1/global_checkpoint/1.ts holds the log at 470614360925667329, since 2026-11-21T08:55:" in source.problem
    for store_id in (1, 2, 5):
        assert f"store {store_id}: " in source.problem


@pytest.mark.parametrize("seed", range(3))
def test_late_files_in_any_order_with_copies_give_the_same(seed: int, objects: dict[str, bytes], whole: Read) -> None:
    """The checkpoint follows what is there; readers die and go on at their frontier."""
    rand = random.Random(seed)
    metas = {k: d for k, d in objects.items() if k.startswith(META_PREFIX)}
    slices = {k: [s for s in read_metadata(k, d).slices if not s.deletes] for k, d in metas.items()}
    store = directory({k: d for k, d in objects.items() if k not in metas and "global_checkpoint" not in k})
    log, clock, read = LogBackupFiles(store), ManualClock(), Read(resolved=START_TS)
    source, frontier = LogBackupSource(store, clock, piece_bytes=1 << 19), START_TS
    waiting = sorted(metas)
    checkpoint = START_TS
    while waiting:
        key = waiting.pop(rand.randrange(min(len(waiting), 6)))
        store.put(key, metas[key])
        if rand.random() < 0.1:  # the same flush under another name
            flush_ts, rest = key.removeprefix(META_PREFIX)[:16], key.removeprefix(META_PREFIX)[16:]
            store.put(f"{META_PREFIX}{int(flush_ts, 16) + 1:016X}{rest}", metas[key])
        lowest = min((s.min_ts - 1 for k in waiting for s in slices[k]), default=CHECKPOINT)
        checkpoint = max(checkpoint, min(lowest, CHECKPOINT))
        log.checkpoint(checkpoint)
        read.run(source, frontier, polls=rand.randint(1, 5))
        if rand.random() < 0.2:
            frontier = rand.randint(frontier, read.resolved)
            source = LogBackupSource(store, clock, piece_bytes=1 << 19)
    clock.advance(60)
    read.run(LogBackupSource(store, clock), frontier)
    assert read.resolved == CHECKPOINT
    assert read.changes == whole.changes
    assert read.hidden == whole.hidden


@pytest.mark.parametrize("seed", range(4))
def test_damage_is_named_and_nothing_behind_it_is_promised(seed: int, objects: dict[str, bytes]) -> None:
    rand = random.Random(seed)
    victim = rand.choice(sorted(k for k in objects if k.endswith(".log")))
    data = bytearray(objects[victim])
    damages = {
        "flipped": lambda: data.__setitem__(rand.randrange(len(data) // 2), rand.randrange(256)),
        "cut": lambda: data.__delitem__(slice(len(data) - 9, None)),
    }
    name = ("flipped", "cut")[seed % 2]
    damages[name]()
    if bytes(data) == objects[victim]:
        data[0] ^= 0xFF
    store = directory({**objects, victim: bytes(data)})
    read = Read()
    with pytest.raises(CorruptObject) as e:
        read.run(LogBackupSource(store, ManualClock(), patience_s=0))
    assert victim in str(e.value)
    assert read.resolved == 0


def test_a_bucket_reads_like_a_folder(objects: dict[str, bytes], whole: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with s3_server() as server:
        server.create_bucket("backups")
        store = open_store(server.url("backups", "cluster-7/log"), foreign=True)
        for key, data in objects.items():
            store.put(key, data)
        read = Read().run(LogBackupSource(store, ManualClock()))
    assert (read.resolved, read.changes, read.hidden) == (CHECKPOINT, whole.changes, whole.hidden)


def test_a_missing_object_is_an_error(objects: dict[str, bytes]) -> None:
    victim = min(k for k in objects if k.endswith(".log"))
    store = directory({k: d for k, d in objects.items() if k != victim})
    with pytest.raises(ObjectNotFound):
        Read().run(LogBackupSource(store, ManualClock(), patience_s=0))
