"""What a TiKV server of each API version (`storage.api-version`) serves: the matrix of TiKV RFC 69, with one check.

A server refuses what it does not serve, with one exception: RawGetKeyTTL ends the process of a V1 server. So the check
comes before the request.
"""

from __future__ import annotations

import re
from enum import StrEnum

_STORAGE = re.compile(r"storage(?:_api_version)?: (V1ttl|V1|V2)\b")
_TIDB = (b"m", b"t")


class Api(StrEnum):
    """An API version, of a server or of a request; the value is the name in TiKV's errors. In the order of kvproto."""

    V1 = "V1"
    V1TTL = "V1ttl"
    V2 = "V2"


class Interface(StrEnum):
    """The interface of a request."""

    RAW = "RawKV"
    TXN = "TxnKV"


#: (server, request, interface) -> first bytes of keys that it serves; an empty tuple = any
_SERVED: dict[tuple[Api, Api, Interface], tuple[bytes, ...]] = {
    (Api.V1, Api.V1, Interface.RAW): (),
    (Api.V1, Api.V1, Interface.TXN): (),
    (Api.V1TTL, Api.V1, Interface.RAW): (),
    (Api.V2, Api.V1, Interface.TXN): _TIDB,
    (Api.V2, Api.V2, Interface.RAW): (b"r",),
    (Api.V2, Api.V2, Interface.TXN): (b"x",),
}


def serves(server: Api, request: Api, kind: Interface) -> bool:
    """Whether the server serves such requests for some keys."""
    return (server, request, kind) in _SERVED


def refusal(server: Api, request: Api, kind: Interface, key: bytes, *, expiry: bool = False) -> str:
    """Why the server does not serve such a request; empty when it does. `expiry`: the request sets or reads one."""
    served = _SERVED.get((server, request, kind))
    if served is None:
        return f"a server of API {server} serves no {kind} requests of API {request}"
    if served and not key.startswith(served):
        wanted = " or ".join(first.decode() for first in served)
        return (
            f"a server of API {server} serves {kind} requests of API {request} for keys that begin with {wanted} only"
        )
    if expiry and server is Api.V1:
        return f"a server of API {server} has no expiry (storage.enable-ttl is off)"
    return ""


def server_version(error: str) -> Api | None:
    """The server's API version as one of its errors names it; None when it does not."""
    match = _STORAGE.search(error)
    return None if match is None else Api(match[1])


def can_follow(server: Api) -> tuple[bool, str]:
    """(whether TiStream can follow TiDB's data on such a server, what that means for all data)."""
    match server:
        case Api.V1:
            return True, "API V1: TiDB is followed; RawKV has no change feed before API V2. " + _WAY_OUT
        case Api.V1TTL:
            return False, "API V1 with TTL: it has RawKV data only, without a change feed. " + _WAY_OUT
        case Api.V2:
            return True, _V2


#: TiKV removes such a range from its files, and writes no change for any of its keys
DELETE_RANGE = (
    "RawDeleteRange is invisible to change data capture: keys that it removes stay in the log. Delete them one by one."
)
_V2 = (
    "API V2: TiDB is followed, outside keyspaces or in the one that --keyspace names; RawKV and TxnKV data of a "
    "keyspace by a tenant of that kind (tistream tenant register --kind raw --keyspace). " + DELETE_RANGE
)
_WAY_OUT = (
    "To follow RawKV data, back it up with conversion (tistream raw backup --dst-api-version v2) and restore it into a "
    "cluster with storage.api-version = 2"
)
