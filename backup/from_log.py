"""The pairs of a raw tenant as of a timestamp, by the service's log alone: the cluster is not touched."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from backup.core.pairs import PAIRS
from tistream.client import frames
from tistream.client.tenant import Tenant
from tistream.keyrange import KeyRange

_HEX = {"key_format": "hex"}


class LogScan:
    """Reads of one timestamp."""

    def __init__(self, tenant: Tenant, as_of: int, *, allow_state: bool = False, wait_s: float = 0) -> None:
        """`allow_state`: take the newest known version of keys whose state the log does not know; `inexact` counts
        them."""
        self._tenant, self._as_of, self._allow_state, self._wait_s = tenant, as_of, allow_state, wait_s
        self.inexact = 0

    def scan(self, wanted: KeyRange) -> Iterator[pa.Table]:
        """Pairs (schema PAIRS) of a range of user keys, by key, page by page. StateNotKnown, with the nearest
        timestamps at which all keys are known; AheadOfWatermark."""
        keys = self._tenant.keys(start=wanted.start or None, end=wanted.end or None)
        entries = keys.rows(as_of=self._as_of, allow_state=self._allow_state, wait_s=self._wait_s)
        for page in entries.pieces("arrow", _HEX):
            rows = frames.read(page)
            self.inexact += rows.num_rows - (pc.sum(rows["exact"]).as_py() or 0)
            found = rows.filter(pc.is_valid(rows["value"]))
            zero = pa.scalar(0, pa.uint64())
            columns = [found["key"], found["value"], pc.fill_null(found["expire_ts"], zero)]
            yield pa.Table.from_arrays(columns, schema=PAIRS)
