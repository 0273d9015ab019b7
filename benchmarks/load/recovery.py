"""The cluster that a changefeed writes to, in a process, and cheap: it is not what a benchmark wants to measure.

    with Recovery(folder, keys=20_000, regions=8) as recovery:
        recovery.begin(latency_s=0.03)      it is empty, and answers that late
        recovery.report()                   puts and requests since then, and a digest of what is there

PD and the stores are the simulator's. Their RawBatchPut and RawBatchDelete keep the last value of each key, and neither
versions nor expiries; a request waits half of the latency before it is served and half of it after.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import grpc
import orjson

from simulator.loopback.servers import unary
from simulator.raw_workload import RawProfile, raw_cluster
from simulator.serve.served import CLUSTER_ID, ServedCluster
from tistream import ts as tso
from tistream.tikv.core import wire
from tistream.tikv.core.api_versions import Api


def digest_of(pairs: Mapping[bytes, bytes]) -> str:
    """Of keys and values."""
    whole = hashlib.sha256()
    for key in sorted(pairs):
        whole.update(b"%d %d " % (len(key), len(pairs[key])) + key + pairs[key])
    return whole.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """Since the last `begin`. Times are monotonic."""

    writes: int
    requests: int
    first_s: float
    last_s: float
    keys: int  #: that are there now
    digest: str


class LastValues(ServedCluster):
    """See the module."""

    def __init__(self, keys: int, regions: int) -> None:
        self.values: dict[bytes, bytes] = {}
        self.writes = self.requests = 0
        self.first_s = self.last_s = 0.0
        model = raw_cluster(
            RawProfile(keyspaces=(1,), keys=keys), floor_ts=tso.compose(int(time.time() * 1000)), regions=regions
        )
        super().__init__(model, api=Api.V2, cluster_id=CLUSTER_ID + 1, keyspaces={"ks1": 1})

    def begin(self, latency_s: float) -> None:
        with self._lock:
            self.values = {}
            self.writes = self.requests = 0
            self.first_s = self.last_s = 0.0
            self.raw_latency_s = lambda store_id: latency_s

    def received(self) -> dict[str, object]:
        with self._lock:
            values, counted = dict(self.values), (self.writes, self.requests, self.first_s, self.last_s)
        return {
            **dict(zip(("writes", "requests", "first_s", "last_s"), counted, strict=True)),
            "keys": len(values),
            "digest": digest_of(values),
        }

    def _store_methods(self, store_id: int) -> dict[str, grpc.RpcMethodHandler]:
        of = {"RawBatchPut": self._put, "RawBatchDelete": self._delete}
        return {
            **super()._store_methods(store_id),
            **{f"/tikvpb.Tikv/{name}": unary(partial(self._answer_late, store_id, take)) for name, take in of.items()},
        }

    def _answer_late(self, store_id: int, take: Any, request: bytes, context: Any) -> bytes:
        latency_s = self.raw_latency_s(store_id)
        self._clock.wait(self._closed, latency_s / 2)
        if context.is_active():
            with self._lock:
                self.first_s = self.first_s or time.monotonic()
                self.writes += take(request)
                self.requests += 1
                self.last_s = time.monotonic()
        self._clock.wait(self._closed, latency_s / 2)
        return b""

    def _put(self, request: bytes) -> int:
        pairs = wire.RawBatchPutRequest.FromString(request).pairs
        self.values.update((pair.key, pair.value) for pair in pairs)
        return len(pairs)

    def _delete(self, request: bytes) -> int:
        keys = wire.RawDeleteRequest.FromString(request).key
        for key in keys:
            self.values.pop(key, None)
        return len(keys)


class Recovery:
    """The process. Use it as a context."""

    def __init__(self, folder: Path, *, keys: int, regions: int) -> None:
        self._log = (folder / "recovery.log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.load.recovery", str(keys), str(regions)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip
        self.pd_address = str(self._answer())

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self, latency_s: float) -> None:
        self._ask("begin", latency_s)

    def report(self) -> Received:
        return Received(**self._ask("report"))

    def _ask(self, *words: object) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the recovery cluster has ended; see {self._log.name}")
        return orjson.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


def main() -> None:
    with LastValues(int(sys.argv[1]), int(sys.argv[2])) as served:
        print(orjson.dumps(served.pd_address).decode(), flush=True)
        for line in sys.stdin:
            match line.split():
                case ["begin", latency_s]:
                    served.begin(float(latency_s))
            print(orjson.dumps(served.received()).decode(), flush=True)


if __name__ == "__main__":
    main()
