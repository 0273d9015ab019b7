"""A log backup that a real TiKV wrote, against what the same cluster's change feed sent at the same time.

`tests/data/real_tikv/logbackup_clean`: three stores, 158 seconds, leader moves, splits and merges. The directory
(storage.tar.zst), the messages of the change feed (stream.ndjson.zst), and TiDB's tables (see tests/e2e).
"""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import zstandard

from pusher.core.source import Resolved, Rows
from pusher.logbackup.core.entries import read_versions, unpack
from pusher.logbackup.core.metadata import META_PREFIX, read_metadata
from pusher.logbackup.source import LogBackupSource
from simulator.chaos.servers.s3server import CREDENTIALS, s3_server
from tests.kit.change_data import read_change_data
from tests.kit.manual_clock import ManualClock
from tests.kit.real_tikv import Story, Version, lines
from tistream.codec.table_key import RecordKey, parse_key
from tistream.errors import ObjectNotFound
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
    pushed = {version: content for version, content in whole.changes.items() if version[1] > start_ts}
    assert len(changes) == 37_221
    assert pushed == changes


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
