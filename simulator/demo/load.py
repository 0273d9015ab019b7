"""The generated load of the demo: a modelled cluster on the loopback interface, its pusher, and a judged reader.

It starts after the first rows of the recording, in threads of the same process, as a separate tenant whose changes are
committed now, so its lag is real. The judge (`simulator.judging.core.judge`) gets every page that the reader pulls over
HTTP and can be compared with the modelled cluster at any time. Changes end at CHANGES_MAX, because judge and model keep
all of them.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from pusher.control import HttpControl
from pusher.tikv_options import TikvPushOptions
from pusher.tikv_push import push_cluster
from simulator.judging.core.judge import Judge, truth_of
from simulator.judging.readers import Reader
from simulator.profiles import FIRST_TABLE_ID, STEADY
from simulator.serve.content import workload_cluster
from simulator.serve.served import ServedCluster
from simulator.workload import Workload
from tistream import ts as tso
from tistream.client import Client
from tistream.clock import SystemClock
from tistream.codec.table_key import DDL_JOB_TABLE_ID
from tistream.ids import Tenant
from tistream.objectstore.metered import open_metered

TENANT = Tenant(1, 2)
STORES = 3
CHANGES_MAX = 500_000
_STEPS_PER_S = 60.0
_REGIONS = 8
_TABLES = range(FIRST_TABLE_ID, DDL_JOB_TABLE_ID)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The checker's result so far."""

    checked: int  #: versions that were read
    lost: int
    repeated: int
    disorder: int
    other: int  #: late, foreign, falling watermarks, errors
    examples: tuple[str, ...] = ()

    @property
    def held(self) -> bool:
        return not (self.lost or self.repeated or self.disorder or self.other)

    def __str__(self) -> str:
        more = f", otherwise wrong {self.other}" if self.other else ""
        return f"lost {self.lost}, repeated {self.repeated}, out of order {self.disorder}{more}"


class Load:
    """The load, running while it is a context. `error` is what ended the push early."""

    def __init__(self, url: str, seed: int = 1) -> None:
        self.error: Exception | None = None
        self._url, self._seed = url, seed
        self._clock = SystemClock()
        self._stop = threading.Event()
        self._open = ExitStack()
        self._settled = False

    def __enter__(self) -> Self:
        with self._open:
            with Client(self._url) as client:
                client.tenant(TENANT.cluster_id, TENANT.tenant_id).register()
            cluster = workload_cluster(STEADY, floor_ts=tso.compose(self._clock.unix_ms()), regions=_REGIONS)
            self._workload = Workload(self._seed, cluster, STEADY, whole_meta=True)
            self._served = self._open.enter_context(
                ServedCluster(
                    cluster, stores=STORES, workload=self._workload, steps_per_s=_STEPS_PER_S, seed=self._seed
                )
            )
            pusher = threading.Thread(target=self._push, name="push-load", daemon=True)
            self._reader = Reader("checker", [self._url], TENANT, self._clock, _TABLES)
            pusher.start()
            self._open.callback(pusher.join)
            self._open.callback(self._stop.set)
            self._reader.start()
            self._open.callback(self._reader.stop)
            self._open = self._open.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    @property
    def judge(self) -> Judge:
        return self._reader.judge

    def lag_s(self) -> float | None:
        """How far the reader's watermark is behind now; None before the first."""
        resolved_ts = self.judge.resolved_ts
        return max(0.0, (self._clock.unix_ms() - tso.physical_ms(resolved_ts)) / 1000) if resolved_ts else None

    def look(self) -> None:
        """Raise a failure; end the changes when there are enough."""
        if self.error is not None:
            raise self.error
        self._served.check()
        if len(self.judge.got) >= CHANGES_MAX and not self._settled:
            self._settled = True
            self._served.settle()

    def verdict(self) -> Verdict:
        """Compare everything served so far with what the cluster had committed by then."""
        judge = self.judge
        complete_ts, got = judge.complete_ts, len(judge.got)
        with Client(self._url) as client:
            start_ts = int(client.get(f"/v1/clusters/{TENANT.cluster_id}/tenants/{TENANT.tenant_id}")["start_ts"])
        with self._served.changing():
            rows = [row for row in self._workload.committed if row.commit_ts <= complete_ts]
        missing = [v for v in truth_of(rows, start_ts, _TABLES) if v not in judge.got]
        counts = dict(judge.counts)
        repeated, disorder = counts.pop("repeated", 0), counts.pop("disorder", 0)
        examples = (*judge.examples, *(f"lost: {key.hex()} at {at}" for key, at in missing[:3]))
        return Verdict(
            checked=got,
            lost=len(missing),
            repeated=repeated,
            disorder=disorder,
            other=sum(counts.values()),
            examples=examples,
        )

    def _push(self) -> None:
        control = HttpControl(self._url, TENANT)
        try:
            push_cluster([self._served.pd_address], control, open_metered, TikvPushOptions(), stop=self._stop)
        except Exception as e:  # noqa: BLE001 - whatever it is, the thread that shows things raises it
            self.error = e
        finally:
            control.close()
