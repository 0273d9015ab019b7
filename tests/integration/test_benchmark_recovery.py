"""The recovery cluster of the replication benchmark has the pairs that were written to it, and answers late."""

from __future__ import annotations

import time
from contextlib import closing

import pyarrow as pa

from benchmarks.load.recovery import LastValues, digest_of
from tistream.clock import SystemClock
from tistream.tikv.core.api_versions import Api
from tistream.tikv.core.raw_messages import RawSpace
from tistream.tikv.pd import PdClient
from tistream.tikv.raw_client import RawClient

LATENCY_S = 0.05


def binary(*values: bytes) -> pa.BinaryArray:
    return pa.array(values, pa.binary())


def test_the_last_values_are_there_and_requests_take_as_long_as_they_should() -> None:
    with (
        LastValues(keys=100, regions=4) as served,
        closing(PdClient([served.pd_address])) as pd,
        closing(RawClient(pd, RawSpace(Api.V2, 1), clock=SystemClock())) as client,
    ):
        assert pd.keyspace_of_id(1) is not None, "a changefeed to it is refused otherwise"
        served.begin(LATENCY_S)
        began = time.monotonic()
        client.batch_put(binary(b"a", b"k00000030", b"z"), binary(b"1", b"2", b"3"))
        assert time.monotonic() - began >= LATENCY_S
        client.batch_put(binary(b"a"), binary(b"4"))
        client.batch_delete(binary(b"z"))
        found = served.received()
        assert (found["writes"], found["keys"]) == (5, 2)
        assert found["digest"] == digest_of({b"r\0\0\1a": b"4", b"r\0\0\1k00000030": b"2"})
        assert found["digest"] != digest_of({b"r\0\0\1a": b"1", b"r\0\0\1k00000030": b"2"})
        served.begin(0.0)
        assert served.received()["digest"] == digest_of({})
