"""Writing to RawKV: a changefeed's destination against a bare writer that sends the same batches.

The bare writer has its requests ready, knows the regions, and only sends: it is what the stores take. The destination
gets rows of the log, keeps the newest version of each key, encodes, cuts by region and sends. Both have as many
requests in progress; the stores answer after a while, as those of another city do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import grpc
import numpy as np

from benchmarks.harness import Result, compare
from destinations.protocol import Share, Stretch
from destinations.tikv.destination import open_tikv
from destinations.uri import parse_sink_uri
from simulator.raw_workload import RawProfile, raw_cluster
from simulator.serve.served import ServedCluster
from tests.kit.made_rows import table_of
from tistream import ts as tso
from tistream.catalog.rows.kinds import Keyspace
from tistream.clock import SystemClock
from tistream.codec.raw.keys import KeyMode, keyspace_prefix
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.model.change import COMMITTED, Op
from tistream.outbound.policy import OPERATED
from tistream.tikv.core import wire
from tistream.tikv.core.api_versions import Api
from tistream.tikv.core.regions import plain_range
from tistream.tikv.pd import PdClient

KEYS, VALUE_BYTES, BATCH, CONCURRENCY, REGIONS, LATENCY_S = 10_000, 100, 500, 4, 4, 0.03
BARE, FED = 1, 2  # keyspaces
METHOD = "/tikvpb.Tikv/RawBatchPut"


class BareWriter:
    """Puts pairs to a keyspace of API V2: the requests are made once, `write` only sends them. `close` it."""

    def __init__(self, pd: PdClient, keyspace: int, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self._channels = {store.id: grpc.insecure_channel(store.address) for store in pd.stores()}
        self._threads = ThreadPoolExecutor(CONCURRENCY)
        prefix = keyspace_prefix(KeyMode.RAW, keyspace)
        self._requests: list[tuple[int, bytes]] = []
        for region in pd.scan_regions(b"", b"", 1000):
            part = plain_range(region) or KeyRange()
            pairs = [(prefix + k, v) for k, v in zip(keys, values, strict=True) if prefix + k in part]
            for at in range(0, len(pairs), BATCH):
                request = wire.RawBatchPutRequest(
                    context=wire.Context(
                        region_id=region.id,
                        region_epoch=wire.RegionEpoch(conf_ver=region.conf_ver, version=region.version),
                        peer=wire.Peer(id=region.leader_peer_id, store_id=region.leader_store_id),
                        api_version=2,
                        keyspace_id=keyspace,
                    ),
                    pairs=[wire.KvPair(key=key, value=value) for key, value in pairs[at : at + BATCH]],
                )
                self._requests.append((region.leader_store_id, request.SerializeToString()))

    def write(self) -> None:
        """Send all, `CONCURRENCY` at a time."""
        for answer in self._threads.map(self._send, self._requests):
            if answer:
                raise ValueError(f"a store refuses: {wire.RawWriteResponse.FromString(answer)}")

    def _send(self, request: tuple[int, bytes]) -> bytes:
        answer: bytes = self._channels[request[0]].unary_unary(METHOD)(request[1], timeout=30)
        return answer

    def close(self) -> None:
        self._threads.shutdown()
        for channel in self._channels.values():
            channel.close()


def stretch_of(keys: Sequence[bytes], values: Sequence[bytes]) -> Stretch:
    """Rows of the log that put these pairs."""
    rows = len(keys)
    stamps = np.arange(1, rows + 1).astype(np.uint64)
    full = [keyspace_prefix(KeyMode.RAW, FED) + key for key in keys]
    table = table_of(COMMITTED, op=Op.PUT, key=full, start_ts=stamps, commit_ts=stamps, value=list(values))
    return Stretch(after=0, upto=rows, rows=table)


def run() -> Iterator[Result]:
    """One ratio."""
    keys = [b"k%08d" % n for n in range(KEYS)]
    values = [b"%0*d" % (VALUE_BYTES, n) for n in range(KEYS)]
    clock, profile = SystemClock(), RawProfile(keyspaces=(BARE, FED), keys=KEYS)
    cluster = raw_cluster(profile, floor_ts=tso.compose(clock.unix_ms()), regions=REGIONS)
    with (
        ServedCluster(cluster, api=Api.V2, keyspaces={"bare": BARE, "fed": FED}) as served,
        closing(PdClient([served.pd_address])) as pd,
    ):
        served.raw_latency_s = lambda store_id: LATENCY_S
        uri = parse_sink_uri(f"tikv://{served.pd_address}?batch-size={BATCH}&concurrency={CONCURRENCY}")
        share = Share(tenant=Tenant(1, 1), changefeed_id="benchmark", number=0, of=1)
        stretch = stretch_of(keys, values)

        def state(keyspace: int) -> list[tuple[bytes, bytes]]:
            prefix = keyspace_prefix(KeyMode.RAW, keyspace)
            return [(key, cluster.versions(prefix + key)[-1].value or b"") for key in keys]

        with (
            closing(open_tikv(uri, share, Keyspace(id=FED), clock, OPERATED)) as destination,
            closing(BareWriter(pd, BARE, keys, values)) as bare,
        ):
            yield compare(
                "raw-writer/destination-vs-bare",
                lambda: destination.write(destination.plan(stretch, ""), lambda: 60.0),
                bare.write,
                proof=lambda _, __: state(FED) == state(BARE) == list(zip(keys, values, strict=True)),
                target=0.7,
                runs=5,
            )
