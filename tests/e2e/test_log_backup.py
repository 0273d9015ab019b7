"""TiKV's log backup as the only source: a real directory is pushed, pulled, and compared with what TiDB answered."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard

from simulator.chaos.servers.processes import TiStreamProcess, Up, client, pull_all, register
from tests.kit.real_tables import compare_tables
from tests.kit.release import unpack_archive
from tests.kit.ticdc import CANAL
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.committed import find_segments
from tistream.codec.committed_file import decode_committed_segment
from tistream.ids import Tenant
from tistream.model.change import FLAG_NOT_A_CHANGE
from tistream.objectstore.local import LocalStore

FOLDER = Path(__file__).parents[1] / "data" / "real_tikv" / "logbackup_clean"
START_TS = 470614360925667329  #: the backup task's start_ts, from PD
CHECKPOINT = 470614402383740929  #: the global checkpoint


def unpack(folder: Path) -> Path:
    """The recorded directory."""
    plain = zstandard.ZstdDecompressor().stream_reader((FOLDER / "storage.tar.zst").read_bytes())
    with tarfile.open(fileobj=plain, mode="r|") as tar:
        unpack_archive(tar, folder)
    return folder


def push(url: str, log: Path, folder: Path, *more: str) -> TiStreamProcess:
    """A pusher of a log backup that ends when it is caught up, not started yet."""
    args = ("push", "--log-backup", f"file://{log}", "--url", url, "--cluster", "1", "--tenant", "1", *more)
    return TiStreamProcess(*args, "--until-caught-up", log=folder / "push.log")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("log"))


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory, log: Path) -> Iterator[Up]:
    """A service that holds the whole log backup."""
    folder = tmp_path_factory.mktemp("up")
    with Up(folder) as up:
        register(up.url)
        with push(up.url, log, folder, "--start-ts", str(START_TS)) as pusher:
            assert pusher.wait(240) == 0, pusher.output()
        said = pusher.output()
        assert f"watermark {CHECKPOINT}" in said
        assert "v1/global_checkpoint/1.ts holds the log at" in said
        yield up


def test_a_replica_equals_what_tidb_answered(pushed: Up) -> None:
    body = pull_all(pushed.url, CHECKPOINT, format="ndjson", limit=1000)
    events = [json.loads(line) for line in body.splitlines()]
    assert compare_tables(FOLDER, events, CHECKPOINT) > 15_000
    kinds = Counter(e["type"] for e in events)
    assert kinds["delete"] > 6_000
    assert kinds["update"] == 0
    assert kinds["ddl"] > 30


def test_a_delete_shows_the_key_and_nothing_else(pushed: Up) -> None:
    body = pull_all(pushed.url, CHECKPOINT, format="ndjson")
    deletes = [e for e in map(json.loads, body.splitlines()) if e["type"] == "delete" and e["table"] == "t_hot"]
    assert deletes
    for event in deletes:
        assert event["columns"] is None
        assert event["old"]["id"] == int(event["key"][-16:], 16) - (1 << 63)
        assert {value for name, value in event["old"].items() if name != "id"} == {None}


def test_rows_that_a_lossy_modify_column_wrote_are_in_the_log_and_in_no_pull(pushed: Up) -> None:
    data = Path(pushed.args[2])
    catalog, store = Catalog(f"sqlite:///{data / 'catalog.db'}"), LocalStore(data / "bucket")
    parts = [
        decode_committed_segment(
            row.object_key,
            row.number,
            store.get_range(row.object_key, row.offset, row.length),
            crc=row.crc,
            rows=row.rows,
            offset=row.offset,
        )
        for row in find_segments(catalog, Tenant(1, 1), after_ts=START_TS, upto_ts=CHECKPOINT, limit=100_000)
    ]
    hidden = [r for r in pa.concat_tables(parts).to_pylist() if r["flags"] & FLAG_NOT_A_CHANGE]
    assert len(hidden) == 37
    versions = {(r["key"].hex(), str(r["commit_ts"])) for r in hidden}
    body = pull_all(pushed.url, CHECKPOINT, format="ndjson")
    seen = {(e["key"], e["commit_ts"]) for e in map(json.loads, body.splitlines()) if "key" in e}
    assert not versions & seen
    assert len(seen) > 25_000


def test_pushing_again_changes_nothing(pushed: Up, log: Path, tmp_path: Path) -> None:
    before = pull_all(pushed.url, CHECKPOINT, format="canal-json", **CANAL)
    with push(pushed.url, log, tmp_path) as pusher:
        assert pusher.wait(120) == 0, pusher.output()
    after = pull_all(pushed.url, CHECKPOINT, format="canal-json", **CANAL)
    drop = {"id", "ts"}  # of the message, not of the change
    assert [{k: v for k, v in json.loads(m).items() if k not in drop} for m in before.splitlines()] == [
        {k: v for k, v in json.loads(m).items() if k not in drop} for m in after.splitlines()
    ]


def test_a_checkpoint_frozen_at_the_start_serves_nothing_and_says_why(tmp_path: Path) -> None:
    log = unpack(tmp_path / "log")
    for file in (log / "v1" / "global_checkpoint").iterdir():
        file.write_bytes(START_TS.to_bytes(8, "little"))
    with Up(tmp_path) as up:
        register(up.url)
        with push(up.url, log, tmp_path) as pusher:
            assert pusher.wait(120) == 2
        assert "--start-ts" in pusher.output()
        with push(up.url, log, tmp_path, "--start-ts", str(START_TS)) as pusher:
            assert pusher.wait(120) == 0, pusher.output()
        assert f"v1/global_checkpoint/1.ts holds the log at {START_TS}" in pusher.output()
        assert "global checkpoint of the log backup stalled" in pusher.output()
        with client(up.url) as c:
            page = c.tenant(1, 1).page()
        lines = [json.loads(line) for line in page.content.splitlines()]
        assert [e["type"] for e in lines] in ([], ["resolved"])
        assert page.resolved_ts == START_TS
