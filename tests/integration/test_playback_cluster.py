"""A recorded cluster, followed over gRPC by a client that registers otherwise than the recorder did.

Truths: MvccGetByKey after the run, the requests of the transactions that were made by hand, and the recorded messages
themselves.
"""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from pusher.core.cdcpb import RegionErrorKind
from simulator.playback.server import PlaybackCluster
from tests.kit.change_data import read_change_data
from tests.kit.feed_client import FeedClient
from tests.kit.real_tikv import lines, stored_versions
from tistream.codec.protobuf import BYTES, VARINT, fields, merged, message, octets, uint
from tistream.codec.table_key import table_prefix
from tistream.errors import InvalidInput, NotFound, TsExpired
from tistream.keyrange import KeyRange, prefix_range
from tistream.model.change import Op, RowKind
from tistream.tikv.channels import open_channel
from tistream.tikv.core import pd_messages, wire
from tistream.tikv.core.regions import region_form
from tistream.tikv.pd import PdClient

DATA = Path(__file__).parents[1] / "data" / "real_tikv"
QUIET, DEV = DATA / "txn_quiet", DATA / "txn_dev"
QUIET_TABLE = prefix_range(table_prefix(0x1A2))
NEVER_SENT = 81  #: rewritten by a lossy DDL or ingested: TiKV hides them


def followed(cluster: PlaybackCluster, ranges: list[KeyRange], *, lag: float, timeout_s: float = 200) -> FeedClient:
    client = FeedClient(cluster.pd_address, ranges, cluster.start_ts, seed=3, lag=lag)
    try:
        client.follow(lambda: cluster.played and client.received == cluster.streams.sent, timeout_s)
    finally:
        client.close()
    return client


@pytest.mark.parametrize("lag", [0.0, 1.0])
@pytest.mark.parametrize("ranges", [[QUIET_TABLE], [KeyRange()]], ids=["table", "everything"])
def test_every_transaction_made_by_hand_is_delivered(ranges: list[KeyRange], lag: float) -> None:
    with PlaybackCluster(QUIET) as cluster:
        client = followed(cluster, ranges, lag=lag)
    assert client.check_promises() >= 30
    truth = stored_versions(QUIET)
    assert client.versions.keys() == truth.keys()
    for version, write in truth.items():
        op, value, _ = client.versions[version]
        assert (client.start_of[version], op, value) == (write.start_ts, write.op, write.value)
    assert client.errors[RegionErrorKind.EPOCH_NOT_MATCH] == 1
    assert client.timestamps == sorted(set(client.timestamps))


def test_rows_are_those_of_the_transactions_made_by_hand() -> None:
    """Message by message what the requests say that must come, for the registration that lives through all of them."""
    with PlaybackCluster(QUIET) as cluster:
        client = followed(cluster, [QUIET_TABLE], lag=0.0)
    rows: Counter[tuple[int, bytes, int, int]] = Counter()
    for stream in client.all:
        rows.update(stream.rows)
    for key, start_ts, commit_ts in commits():
        commit = (int(RowKind.COMMIT), key, start_ts, commit_ts)
        assert rows[commit] or rows[int(RowKind.COMMITTED), key, start_ts, commit_ts], (key.hex(), start_ts)
    rolled_back = {(key, w["start_ts"]) for key, w in stored("Rollback")}
    assert {(key, start_ts) for kind, key, start_ts, _ in rows if kind == RowKind.ROLLBACK} >= rolled_back
    assert {(k[1], k[2]) for k in rows if k[0] == RowKind.ROLLBACK} - rolled_back == set(overlapped())
    started = {int(line["start_ts"]) for line in lines(QUIET / "perc.ndjson.zst") if line["dir"] == "kv"}
    assert {k[2] for k in rows if k[0] != RowKind.ROLLBACK} <= started
    repeated = [k for k, n in rows.items() if k[0] == RowKind.PREWRITE and n > 1]
    assert len(repeated) >= 3  # heartbeats, pushes of min_commit_ts and flushes send a prewrite again


def commits() -> Iterator[tuple[bytes, int, int]]:
    """(key, start_ts, commit_ts) of the primary of each KvCommit that succeeded."""
    for line in lines(QUIET / "perc.ndjson.zst"):
        if line["dir"] == "kv" and line["method"].endswith("/KvCommit") and "commit_version" in line["resp"]:
            keys = [key for _, key in fields(bytes.fromhex(line["req_hex"]), {3: BYTES})]
            assert keys
            yield keys[0], int(line["start_ts"]), int(line["commit_ts"])


def stored(kind: str) -> Iterator[tuple[bytes, dict[str, int]]]:
    for line in lines(QUIET / "mvcc.ndjson.zst"):
        for write in line["writes"] or []:
            if write["type"] == kind:
                yield bytes.fromhex(line["key"]), write


def overlapped() -> Iterator[tuple[bytes, int]]:
    """The protected rollbacks of transactions that began when another one committed, by CheckTxnStatus."""
    for line in lines(QUIET / "perc.ndjson.zst"):
        if line["dir"] == "kv" and line["label"] == "E3-overlap":
            said = merged(bytes.fromhex(line["req_hex"]), {2: BYTES, 3: VARINT})
            yield said[2], said[3]


@pytest.mark.slow
def test_a_whole_run_is_delivered_through_splits_merges_and_the_loss_of_a_store() -> None:
    with PlaybackCluster(DEV) as cluster:
        client = followed(cluster, [KeyRange(b"m", b"u")], lag=0.3)
        start_ts = cluster.start_ts
    assert client.check_promises() > len(client.versions)
    truth = {v: w for v, w in stored_versions(DEV).items() if v[1] > start_ts}
    promised = {v: w for v, w in truth.items() if v[1] <= client.promised_below(v[0])}
    assert len(promised) > 10_000
    missing = [v for v in promised if v not in client.versions]
    assert len(missing) == NEVER_SENT
    committed_keys = {key for key, _ in truth}
    assert not [v for v in client.versions if v[0] in committed_keys and v not in truth]
    for version, write in truth.items():
        if version in client.versions:
            op, value, _ = client.versions[version]
            assert (client.start_of[version], op) == (write.start_ts, write.op)
            assert op == Op.DELETE or value == write.value
    assert client.errors["stream"] >= 2  # the store that was killed, and the stream that was closed
    assert client.errors[RegionErrorKind.NOT_LEADER] > 10
    assert client.errors[RegionErrorKind.EPOCH_NOT_MATCH] > 50
    assert client.fell > 0
    assert client.timestamps == sorted(set(client.timestamps))


# -- a client that misbehaves ------------------------------------------------------------------------------------------


class Raw:
    """One stream, request by request."""

    def __init__(self, cluster: PlaybackCluster, *, features: str = "stream-multiplexing") -> None:
        self.pd = PdClient([cluster.pd_address])
        self.region = self.pd.scan_regions(region_form(QUIET_TABLE.start), region_form(QUIET_TABLE.end), 10)[0]
        address = next(s.address for s in self.pd.stores() if s.id == self.region.leader_store_id)
        self.channel = open_channel(address, None)
        self.requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.answers = self.channel.stream_stream("/cdcpb.ChangeData/EventFeedV2")(
            iter(self.requests.get, None), metadata=(("features", features),), timeout=20
        )

    def register(
        self,
        request_id: int,
        *,
        region_id: int = 0,
        version: int = 0,
        kv_api: int = 0,
        cluster_id: int = 0,
        tail: bytes,
    ) -> None:
        head = message(1, uint(1, cluster_id or self.pd.cluster_id) + octets(2, b"8.5.4"))
        epoch = message(3, uint(1, 5) + uint(2, version or self.region.version))
        keys = octets(5, region_form(QUIET_TABLE.start)) + octets(6, region_form(QUIET_TABLE.end))
        region = uint(2, self.region.id if region_id < 1 else region_id)
        self.requests.put(head + region + epoch + keys + uint(7, request_id) + uint(11, kv_api) + tail)

    def error(self) -> tuple[int, RegionErrorKind]:
        """The next error, as (request id, kind)."""
        for data in self.answers:
            for event in read_change_data(data).events:
                if event.error is not None:
                    return event.request_id, event.error.kind
        raise AssertionError("the stream ended")

    def close(self) -> None:
        self.requests.put(None)
        self.channel.close()
        self.pd.close()


REGISTER = message(9, b"")


def test_what_does_not_fit_is_refused_as_a_store_does() -> None:
    with PlaybackCluster(QUIET, speed=0.01) as cluster:
        raw = Raw(cluster)
        raw.register(1, cluster_id=5, tail=REGISTER)
        assert raw.error() == (1, RegionErrorKind.CLUSTER_ID_MISMATCH)
        raw.register(2, kv_api=1, tail=REGISTER)
        assert raw.error() == (2, RegionErrorKind.COMPATIBILITY)
        raw.register(3, version=99, tail=REGISTER)
        assert raw.error() == (3, RegionErrorKind.EPOCH_NOT_MATCH)
        raw.register(4, region_id=98765, tail=REGISTER)
        assert raw.error() == (4, RegionErrorKind.REGION_NOT_FOUND)
        raw.register(5, tail=REGISTER)
        raw.register(5, tail=REGISTER)
        assert raw.error() == (5, RegionErrorKind.DUPLICATE_REQUEST)
        raw.register(6, tail=b"")  # a request that says nothing else registers
        raw.register(6, tail=message(13, b""))
        assert raw.error() == (6, RegionErrorKind.REGION_NOT_FOUND)
        raw.register(6, tail=REGISTER)
        raw.close()


def test_a_stream_that_is_not_multiplexed_is_refused() -> None:
    with PlaybackCluster(QUIET) as cluster:
        raw = Raw(cluster, features="none")
        with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"):
            raw.error()
        raw.close()


def test_keys_that_nobody_registers_stop_the_clock_and_are_named() -> None:
    with PlaybackCluster(QUIET) as cluster:
        assert not cluster.wait_until_played(0.5)
        played, total = cluster.lines
        region, seconds = cluster.waiting_for
        assert played < 12 < total
        assert region.startswith("region 1312 version 115 on store 1, keys [7480000000000001a2")
        assert seconds > 0.2
        client = FeedClient(cluster.pd_address, [QUIET_TABLE], cluster.start_ts)
        client.follow(lambda: cluster.played, 60)
        assert cluster.waiting_for == ("", 0.0)
        client.close()
    with PlaybackCluster(QUIET, only=KeyRange(b"a", b"b")) as cluster:
        assert cluster.wait_until_played(30)  # what is not wanted needs no listener


def barriers(cluster: PlaybackCluster, pd: PdClient) -> list[str]:
    """Who keeps history, as PD says."""
    with open_channel(cluster.pd_address, None) as channel:
        answer = channel.unary_unary("/pdpb.PD/GetGCState")(pd_messages.encoded(wire.GcBarrierRequest(), pd.cluster_id))
    return [barrier.id for barrier in pd_messages.read(wire.GetGcStateResponse, answer).state.barriers]


def test_the_history_before_the_recording_cannot_be_held() -> None:
    with PlaybackCluster(QUIET) as cluster:
        pd = PdClient([cluster.pd_address])
        pd.hold_history("tistream", cluster.start_ts, 60)
        assert barriers(cluster, pd) == ["tistream"]
        with pytest.raises(TsExpired):
            pd.hold_history("tistream", cluster.start_ts - 1, 60)
        assert pd.update_service_safe_point("old", cluster.start_ts - 1, 60) > cluster.start_ts - 1
        pd.release_history("tistream")
        assert barriers(cluster, pd) == []
        region = pd.get_region(region_form(QUIET_TABLE.start))
        assert region == pd.scan_regions(region_form(QUIET_TABLE.start), b"", 1)[0]
        pd.close()


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        PlaybackCluster(tmp_path)
    with pytest.raises(InvalidInput):
        PlaybackCluster(QUIET, speed=0.0)
