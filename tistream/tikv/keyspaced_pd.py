"""PD as one keyspace sees it: regions in the keyspace's keys, and GC barriers on its history.

A barrier names the keyspace. Where garbage is collected for all keyspaces together PD applies it to all; older PD
servers have only such barriers.
"""

from __future__ import annotations

from collections.abc import Sequence

from tistream.errors import InvalidInput
from tistream.tikv.core.keyspaces import KeyspaceKeys
from tistream.tikv.core.pd_messages import Region, Store
from tistream.tikv.pd import PdClient


class KeyspacedPd:
    """`pd` with the keys of one keyspace; the caller closes `pd`."""

    def __init__(self, pd: PdClient, keys: KeyspaceKeys) -> None:
        self._pd, self._keys = pd, keys

    @property
    def cluster_id(self) -> int:
        return self._pd.cluster_id

    def tso(self) -> int:
        return self._pd.tso()

    @property
    def newest_tso(self) -> int:
        return self._pd.newest_tso

    def stores(self) -> Sequence[Store]:
        return self._pd.stores()

    def scan_regions(self, start: bytes, end: bytes, limit: int) -> Sequence[Region]:
        """See PdClient.scan_regions; in region form of the keyspace's keys."""
        outer_start = self._keys.outer_boundary(start, is_end=False)
        listed = self._pd.scan_regions(outer_start, self._keys.outer_boundary(end, is_end=True), limit)
        found = [self._keys.inner_region(region) for region in listed]
        return [region for region in found if region is not None]

    def get_region(self, key: bytes) -> Region | None:
        region = self._pd.get_region(self._keys.outer_boundary(key, is_end=False))
        return None if region is None else self._keys.inner_region(region)

    def hold_history(self, name: str, ts: int, ttl_s: int) -> None:
        self._pd.hold_history(name, ts, ttl_s, keyspace_id=self._keys.id)

    def release_history(self, name: str) -> None:
        self._pd.release_history(name, keyspace_id=self._keys.id)


def find_keyspace(pd: PdClient, name: str) -> KeyspaceKeys:
    """The keyspace of this name. NotFound when it does not exist, InvalidInput when it is not enabled."""
    found = pd.keyspace(name)
    if found.state:
        raise InvalidInput("the keyspace is not enabled", keyspace=name, id=found.id, state=found.state)
    return KeyspaceKeys(found.id)
