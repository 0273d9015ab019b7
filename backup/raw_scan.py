"""The pairs of an API V1 cluster, by RawScan; with their expiries where the stores have them.

A store tells an expiry of one key at a time only (RawGetKeyTTL). It is asked of API V1 with TTL alone: the question
ends the process of a store without.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa

from backup.core.pairs import PAIRS
from tistream import ts as tso
from tistream.keyrange import KeyRange
from tistream.tikv.core.api_versions import Api
from tistream.tikv.pd import PdClient
from tistream.tikv.raw_client import RawClient, RawPage


class RawScan:
    """Scans of one cluster. `scan` may be called from several threads."""

    def __init__(self, client: RawClient, pd: PdClient, *, threads: int = 8) -> None:
        """`threads`: requests for expiries at once, of each caller."""
        self._client, self._pd, self._threads = client, pd, threads
        self._asks_expiry = client.space.api is Api.V1TTL

    def scan(self, wanted: KeyRange) -> Iterator[pa.Table]:
        """Pairs (schema PAIRS) of a range of keys, by key."""
        with ThreadPoolExecutor(self._threads, thread_name_prefix="expiries") as pool:
            for page in self._client.scan(wanted):
                yield self._with_expiries(page, pool) if self._asks_expiry else pairs_of(page)

    def _with_expiries(self, page: RawPage, pool: ThreadPoolExecutor) -> pa.Table:
        now_s = tso.physical_ms(self._pd.tso()) // 1000
        left = list(pool.map(self._client.get_ttl, page.keys.to_pylist()))
        there = pa.array([seconds is not None for seconds in left])
        expires = np.array([now_s + seconds if seconds else 0 for seconds in left], np.uint64)
        return pairs_of(page, expires).filter(there)


def pairs_of(page: RawPage, expires: np.ndarray[tuple[int], np.dtype[np.uint64]] | None = None) -> pa.Table:
    """A page as a table of schema PAIRS; without expiries none ends."""
    found = np.zeros(len(page.keys), np.uint64) if expires is None else expires
    return pa.Table.from_arrays([page.keys, page.values, pa.array(found)], schema=PAIRS)
