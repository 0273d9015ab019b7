"""Follows a tenant from now on and remembers the age of every row that comes, and of every watermark."""

from __future__ import annotations

import re
import threading
import time

import numpy as np
import numpy.typing as npt

from tistream import ts as tso
from tistream.client import connect
from tistream.errors import TiStreamError

Floats = npt.NDArray[np.float64]
_COMMIT_TS = re.compile(rb'"commit_ts":"(\d+)"')


class Reader:
    """One cursor, in its own thread. Rows in NDJSON, by pulls that wait."""

    def __init__(self, url: str, tenant_id: int, *, wait_s: float = 5.0) -> None:
        self._url, self.tenant_id, self._wait_s = url, tenant_id, wait_s
        self._stop = threading.Event()
        self.rows = 0
        self.ages_ms: list[Floats] = []  #: of the rows of each page, when it was here
        self._at_ms: list[float] = []
        self.marks: list[tuple[float, int]] = []  #: (unix ms, resolved_ts) of each page
        self.disorder = 0  #: pages that begin below the end of the one before
        self.error = ""
        self._last_ts = 0
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def forget(self) -> None:
        """Restart the measurement."""
        self.ages_ms, self._at_ms, self.marks = [], [], []

    @property
    def lag_s(self) -> float:
        """How far behind the newest watermark is now."""
        return time.time() - tso.physical_ms(self.marks[-1][1]) / 1000 if self.marks else float("inf")

    def ages_s(self) -> Floats:
        """Of all rows since `forget`."""
        return np.concatenate(self.ages_ms) / 1000 if self.ages_ms else np.empty(0)

    def seen_ms(self) -> tuple[Floats, Floats]:
        """Unix milliseconds of each row's commit, and of when it was here."""
        here = [np.full(len(ages), at) for ages, at in zip(self.ages_ms, self._at_ms, strict=True)]
        at_ms = np.concatenate(here) if here else np.empty(0)
        return at_ms - self.ages_s() * 1000, at_ms

    def _run(self) -> None:
        cursor = None
        with connect(self._url) as client:
            while not self._stop.is_set():
                try:
                    page = client.tenant(1, self.tenant_id).page(cursor=cursor, wait_s=self._wait_s, limit=50_000)
                except TiStreamError as e:
                    self.error = str(e)
                    time.sleep(0.2)
                    continue
                now_ms = time.time() * 1000
                stamps = np.array(_COMMIT_TS.findall(page.content), np.uint64)
                self.rows += len(stamps)
                if len(stamps):
                    self.disorder += bool((stamps[1:] < stamps[:-1]).any() or stamps[0] < self._last_ts)
                    self._last_ts = int(stamps[-1])
                    self._at_ms.append(now_ms)
                    self.ages_ms.append(now_ms - (stamps >> np.uint64(18)).astype(np.float64))
                cursor = page.next_cursor
                if page.resolved_ts:
                    self.marks.append((now_ms, page.resolved_ts))
