"""Permanent faults of one tenant's objects: missing, damaged, foreign, or impossible to delete.

The fault is between services and bucket: every service sees the harmed object, the oracle sees the true one. It stays
until the end of the run, so whatever depends on the object stays stopped, and everything else must continue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from zlib import crc32

from tistream.errors import ObjectNotFound, StoreRefused


class HarmKind(StrEnum):
    """The kinds of harm."""

    MISSING = "missing"
    DAMAGED = "damaged"  #: one bit is flipped
    TORN = "torn"
    FOREIGN = "foreign"  #: a sound object of the same folder, under this key
    UNREADABLE = "unreadable"  #: the object store refuses to give it out
    UNDELETABLE = "undeletable"


@dataclass(slots=True)
class Harms:
    """The harms of one run."""

    kinds: dict[str, HarmKind] = field(default_factory=dict)  #: by object key
    undeletable: tuple[str, ...] = ()  #: prefixes
    met: set[str] = field(default_factory=set)  #: requested keys
    refused: set[str] = field(default_factory=set)  #: keys whose deletion was requested

    def hides(self, key: str) -> bool:
        """Whether a listing leaves it out."""
        return self.kinds.get(key) is HarmKind.MISSING

    def read(self, key: str, data: bytes, objects: Mapping[str, tuple[bytes, int]]) -> bytes:
        """The bytes that a reader gets instead of these."""
        kind = self.kinds.get(key)
        if kind is None:
            return data
        self.met.add(key)
        match kind:
            case HarmKind.MISSING:
                raise ObjectNotFound(key=key)
            case HarmKind.UNREADABLE:
                raise StoreRefused("403: access to this object is denied", key=key, determinate=True)
            case HarmKind.TORN:
                return data[: len(data) // 2]
            case HarmKind.FOREIGN:
                folder = key.rpartition("/")[0]
                others = sorted(other for other in objects if other.rpartition("/")[0] == folder and other != key)
                return objects[others[0]][0] if others else b""
            case HarmKind.DAMAGED:
                at = crc32(key.encode()) % len(data)
                return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            case _:
                return data

    def check_delete(self, key: str) -> None:
        """StoreRefused where the object store refuses to delete this."""
        if key.startswith(self.undeletable) and self.undeletable:
            self.refused.add(key)
            raise StoreRefused("403: deletion of this object is denied", key=key, determinate=True)
