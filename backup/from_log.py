"""The pairs of a raw tenant as of a timestamp, by the service's log alone: the cluster is not touched."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from backup.core.manifest import Manifest
from backup.core.pairs import PAIRS
from backup.job import Progress, check_empty, write_backup
from tistream.client import frames
from tistream.client.api import Client
from tistream.client.tenant import Tenant
from tistream.errors import AheadOfWatermark, InvalidInput
from tistream.keyrange import KeyRange
from tistream.objectstore.protocol import ObjectStore
from tistream.runtime.rate_limiter import RateLimiter
from tistream.tikv.core.api_versions import Api

_HEX = {"key_format": "hex"}


class LogScan:
    """Reads of one timestamp."""

    def __init__(self, tenant: Tenant, as_of: int, *, allow_state: bool = False, wait_s: float = 0) -> None:
        """`allow_state`: take the newest known version of keys whose state the log does not know; `inexact` counts
        them."""
        self._tenant, self._as_of, self._allow_state, self._wait_s = tenant, as_of, allow_state, wait_s
        self.inexact = 0

    def scan(self, range_: KeyRange) -> Iterator[pa.Table]:
        """Pairs (schema PAIRS) of a range of user keys, by key, page by page. StateNotKnown, with the nearest
        timestamps at which all keys are known; AheadOfWatermark."""
        keys = self._tenant.keys(start=range_.start or None, end=range_.end or None)
        entries = keys.rows(as_of=self._as_of, allow_state=self._allow_state, wait_s=self._wait_s)
        for page in entries.pieces("arrow", _HEX):
            rows = frames.read(page)
            self.inexact += rows.num_rows - (pc.sum(rows["exact"]).as_py() or 0)
            living = rows.filter(pc.is_valid(rows["value"]))
            zero = pa.scalar(0, pa.uint64())
            columns = [living["key"], living["value"], pc.fill_null(living["expire_ts"], zero)]
            yield pa.Table.from_arrays(columns, schema=PAIRS)


def back_up_log(
    client: Client,
    tenant: Tenant,
    store: ObjectStore,
    range_: KeyRange,
    as_of: str,
    *,
    allow_state: bool,
    rate: RateLimiter,
    stop: threading.Event,
    progress: Progress = lambda done, parts: None,
) -> Manifest:
    """Write a complete backup of a raw tenant as of a timestamp. StateNotKnown, AheadOfWatermark; InvalidInput for
    another kind of tenant."""
    check_empty(store)
    keyspace_id = _keyspace_id(client.get(_path(tenant)))
    asked = {"as_of": as_of, "limit": "1", "format": "ndjson", "start_key": range_.start.hex()}
    asked |= {"end_key": range_.end.hex()} if range_.end else {}
    asked |= {"allow_state": "true"} if allow_state else {}
    answer = client.request("GET", _path(tenant) + "/kv/rows", params=asked)
    ts = int(answer.headers["TiStream-As-Of"])
    source = LogScan(tenant, ts, allow_state=allow_state)
    about = Manifest(
        made_from="log",
        cluster_id=tenant.cluster_id,
        keyspace_id=keyspace_id,
        source_api=Api.V2,
        api=Api.V2,
        range=range_,
        backup_ts=ts,
        files=(),
    )
    return write_backup(
        store, [range_], source.scan, about, rate=rate, stop=stop, progress=progress, inexact=lambda: source.inexact
    )


def watermark_of(client: Client, tenant: Tenant, keyspace_id: int, range_: KeyRange) -> int:
    """What is served of the tenant now. InvalidInput when it does not capture these keys."""
    described = client.get(_path(tenant))
    if _keyspace_id(described) != keyspace_id:
        raise InvalidInput(
            "The tenant is of another keyspace.", keyspace_id=keyspace_id, tenants=described["keyspace"]["id"]
        )
    captured = KeyRange(bytes.fromhex(described["start_key"]), bytes.fromhex(described["end_key"]))
    if not captured.covers(range_):
        raise InvalidInput("The tenant does not capture all of these keys.", captured=str(captured), wanted=str(range_))
    resolved_ts = int(described["resolved_ts"])
    if not resolved_ts:
        raise AheadOfWatermark("Nothing is served of the tenant yet: its first scan is not complete.")
    return resolved_ts


def _path(tenant: Tenant) -> str:
    return f"/v1/clusters/{tenant.cluster_id}/tenants/{tenant.tenant_id}"


def _keyspace_id(described: Mapping[str, Any]) -> int:
    if described["kind"] != "raw" or described["keyspace"]["id"] is None:
        raise InvalidInput("Only a raw tenant whose keyspace is known can be backed up.", kind=described["kind"])
    return int(described["keyspace"]["id"])
