"""Encodes change feed requests (`cdcpb.ChangeDataRequest`), without generated code.

    register     follow a region, or a part of it, from checkpoint_ts on
    deregister   stop following it; the store answers with REGION_NOT_FOUND

Zeros are omitted, as in protobuf; fields come in numeric order, the kind of request last. The TiCDC version in a
request determines the store's behaviour: below 4.0.8 it sends no resolved ts, below 5.3.0 it does not check the cluster
id.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from tistream.codec.protobuf import message, octets, uint
from tistream.keyrange import KeyRange
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
    encoded_header = uint(1, header.cluster_id) + octets(2, header.ticdc_version.encode())
    out = message(1, encoded_header) + uint(2, request.region_id)
    if isinstance(request, Deregister):
        return out + uint(7, request.request_id) + message(13, b"")
    out += message(3, uint(1, request.conf_ver) + uint(2, request.version))
    out += uint(4, request.checkpoint_ts)
    outer = header.keyspace.outer_range(request.range)
    out += octets(5, region_form(outer.start)) + octets(6, region_form(outer.end))
    out += uint(7, request.request_id) + uint(8, _READ_OLD_VALUE) + message(9, b"")
    return out + uint(11, header.kv_api) + uint(12, header.filter_loop)
