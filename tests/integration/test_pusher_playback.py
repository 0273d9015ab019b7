"""A recorded cluster through the real sources and pushers into a bucket, judged by the plain watermark rule."""

from __future__ import annotations

import random
import shutil
import threading
from importlib.resources import files
from pathlib import Path

import orjson
import pytest
import zstandard

from pusher.frontier import FrontierEntry
from schemas.snapshot import parse_pushed
from simulator.push.playback_push import push_playback
from simulator.push.recording_push import PushProgress, PushResult
from tests.kit.memory_control import MemoryControl
from tests.kit.oracle import WatermarkOracle, batch_files, interleaved
from tests.kit.real_tikv import stored_versions
from tistream.codec.table_key import table_prefix
from tistream.errors import InvalidInput
from tistream.ids import Tenant
from tistream.keyrange import KeyRange, prefix_range
from tistream.model.change import Op
from tistream.objectstore.layout import SchemaSnapKey
from tistream.objectstore.memory import MemoryStore

QUIET = Path(__file__).parents[1] / "data" / "real_tikv" / "txn_quiet"
TENANT = Tenant(1, 2)
TABLE = prefix_range(table_prefix(0x1A2))
START_TS = 470614059660607489  #: the recorder's checkpoint


class Bench:
    """A bucket and a control plane."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.control = MemoryControl(TENANT, [FrontierEntry(range=KeyRange(), durable_ts=START_TS, resubscribe_id=0)])
        self.seen: list[PushProgress] = []
        self.stop = threading.Event()

    def push(self, directory: Path = QUIET) -> PushResult:
        return push_playback(directory, self.control, lambda _: self.store, progress=self.progress, stop=self.stop)

    def progress(self, p: PushProgress) -> None:
        self.seen.append(p)


@pytest.fixture(scope="module")
def pushed() -> tuple[Bench, PushResult]:
    bench = Bench()
    return bench, bench.push()


def test_its_stores_have_ended(pushed: tuple[Bench, PushResult]) -> None:
    bench, result = pushed
    assert set(bench.control.ends) == set(bench.control.incarnations)
    assert set(bench.control.ends.values()) == {result.last_resolved_ts}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_version_is_served_in_any_order_of_arrival(pushed: tuple[Bench, PushResult], seed: int) -> None:
    bench, result = pushed
    assert result.complete
    oracle = WatermarkOracle(START_TS, TABLE)
    for file in interleaved(batch_files(bench.store).values(), random.Random(seed)):
        oracle.feed(file)
    assert oracle.watermark is not None
    assert oracle.watermark >= result.last_resolved_ts
    truth = stored_versions(QUIET)
    assert oracle.served.keys() == truth.keys()
    for version, write in truth.items():
        served = oracle.served[version]
        assert (served.start_ts, served.op) == (write.start_ts, write.op)
        assert served.op == Op.DELETE or served.value == write.value


def test_keys_that_nobody_recorded_are_promised_too(pushed: tuple[Bench, PushResult]) -> None:
    bench, _ = pushed
    for part in (KeyRange(b"m", b"n"), KeyRange(b"t", b"u")):
        oracle = WatermarkOracle(START_TS, part)
        for file in interleaved(batch_files(bench.store).values(), random.Random(1)):
            oracle.feed(file)
        assert oracle.watermark is not None
        assert oracle.watermark > START_TS + (30_000 << 18)  # the recording lasts for 40 s


def test_the_schema_is_an_empty_cluster_with_the_job_table(pushed: tuple[Bench, PushResult]) -> None:
    bench, _ = pushed
    data = bench.store.get(str(SchemaSnapKey(tenant=TENANT, ts=START_TS)))
    schema = parse_pushed(orjson.loads(zstandard.ZstdDecompressor().stream_reader(data).read()))
    assert schema.snapshot.ts == START_TS
    assert not schema.snapshot.tables
    assert schema.job_table.name == "tidb_ddl_job"


def test_a_tenant_that_has_more_already_is_refused(pushed: tuple[Bench, PushResult]) -> None:
    bench, result = pushed
    again = Bench()
    again.store = bench.store
    again.control.max_cut_ts.update(dict.fromkeys((1, 4, 5), result.last_resolved_ts + (1000 << 18)))
    with pytest.raises(InvalidInput, match="behind what this store has already pushed"):
        again.push()


def test_a_schema_beside_the_recording_is_pushed(tmp_path: Path) -> None:
    shutil.copy(QUIET / "stream.ndjson.zst", tmp_path)
    own = orjson.loads((files("simulator") / "recording" / "schema_snapshot.json").read_bytes())
    bench = Bench()
    (tmp_path / "schema_snapshot.json").write_bytes(orjson.dumps(own))
    with pytest.raises(InvalidInput, match="another timestamp"):
        bench.push(tmp_path)
    (tmp_path / "schema_snapshot.json").write_bytes(b"{")
    with pytest.raises(InvalidInput, match="not a schema snapshot"):
        bench.push(tmp_path)
    (tmp_path / "schema_snapshot.json").write_bytes(orjson.dumps(own | {"ts": str(START_TS)}))
    bench.control.entries = []  # the tenant waits for its first snapshot
    bench.progress = lambda p: bench.stop.set() if p.phase == "waiting" else None  # type: ignore[method-assign]
    result = bench.push(tmp_path)
    assert (result.complete, result.rows) == (False, 0)
    data = bench.store.get(str(SchemaSnapKey(tenant=TENANT, ts=START_TS)))
    assert len(orjson.loads(zstandard.ZstdDecompressor().stream_reader(data).read())["tables"]) > 10


def test_a_control_plane_that_is_away_is_waited_for() -> None:
    bench = Bench()
    bench.control.fail_next = 3
    assert bench.push().complete
    assert any(p.problem for p in bench.seen if p.phase == "connecting")
