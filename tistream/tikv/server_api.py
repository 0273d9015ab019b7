"""Which API version the stores of a cluster have, by a read that every version answers or refuses by name."""

from __future__ import annotations

from tistream.keyrange import KeyRange
from tistream.tikv.core.api_versions import Api, server_version
from tistream.tikv.core.kv_messages import ApiVersion, KvRefused
from tistream.tikv.kv_scan import KvReader

_KEYSPACE_KEYS = KeyRange(b"x\0\0\0", b"x\0\0\1")


def server_api(reader: KvReader, ts: int) -> Api:
    """Ask the store of one key. KvRefused for a refusal that names no version."""
    try:
        for _ in reader.read(_KEYSPACE_KEYS, ts, ApiVersion.V2):
            break
    except KvRefused as e:
        found = server_version(e.message)
        if found is None:
            raise
        return found
    return Api.V2
