"""Encodes change feed requests (`cdcpb.ChangeDataRequest`).

    register     follow a region, or a part of it, from checkpoint_ts on
    deregister   stop following it; the store answers with REGION_NOT_FOUND

The TiCDC version in a
request determines the store's behaviour: below 4.0.8 it sends no resolved ts, below 5.3.0 it does not check the cluster
id.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from tistream.keyrange import KeyRange
from tistream.tikv.core import wire
from tistream.tikv.core.keyspaces import WHOLE, KeyspaceKeys
from tistream.tikv.core.regions import region_form

TICDC_VERSION = "8.5.4"
_READ_OLD_VALUE = 1


class KvApi(IntEnum):
    """The kind of data. (Stores refuse the third kind on the wire, transactions without TiDB.)"""

    TIDB = 0
    RAW = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Common fields of all requests of a feed."""

    cluster_id: int
    kv_api: KvApi = KvApi.TIDB
    filter_loop: bool = False  #: skip rows written by another change feed
    ticdc_version: str = TICDC_VERSION
    keyspace: KeyspaceKeys = WHOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """Follow a region from checkpoint_ts on."""

    request_id: int
    region_id: int
    conf_ver: int
    version: int
    range: KeyRange  #: plain keys of the keyspace
    checkpoint_ts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Deregister:
    """Stop following a region."""

    request_id: int
    region_id: int


def encode_request(header: Header, request: Register | Deregister) -> bytes:
    """Encode one request."""
    out = wire.ChangeDataRequest(
        header=wire.ChangeDataHeader(cluster_id=header.cluster_id, ticdc_version=header.ticdc_version),
        region_id=request.region_id,
        request_id=request.request_id,
    )
    if isinstance(request, Deregister):
        out.deregister.SetInParent()
        return out.SerializeToString()
    outer = header.keyspace.outer_range(request.range)
    out.region_epoch.conf_ver, out.region_epoch.version = request.conf_ver, request.version
    out.checkpoint_ts = request.checkpoint_ts
    out.start_key, out.end_key = region_form(outer.start), region_form(outer.end)
    out.extra_op, out.kv_api, out.filter_loop = _READ_OLD_VALUE, header.kv_api, header.filter_loop
    out.register.SetInParent()
    return out.SerializeToString()
