"""Where a changefeed writes, and whether two of them would write to the same location.

    keys    a range of keys in a keyspace of a TiKV cluster, or in a cluster without keyspaces
    files   a folder of a machine, or of a bucket

Two writers of a location destroy each other's work: of a key the later write stays, and files have the same names. So
ranges must not overlap, and a folder must not be, or be in, another one's. Changefeeds may share a location of dead
letters, but it is in no destination: consumers would read letters as data. A bucket that is reached at an unknown
endpoint is taken for the one of that name at any. Links between folders are not seen.
"""

from __future__ import annotations

import hashlib
import posixpath
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import urlsplit

import orjson

from tistream.keyrange import KeyRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """User keys of a keyspace."""

    cluster_id: int  #: PD's
    keyspace_id: int | None  #: None: the cluster has none
    range: KeyRange
    shared: ClassVar[str] = "some of the same keys"

    @property
    def root_hash(self) -> str:
        """Equal for all locations that could overlap."""
        return _digest(f"keys {self.cluster_id} {self.keyspace_id}")

    def overlaps(self, other: Location) -> bool:
        """Whether a key is in both."""
        if not isinstance(other, Keys) or self.cluster_id != other.cluster_id:
            return False
        return self.keyspace_id == other.keyspace_id and self.range.intersect(other.range) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """A folder and all that is in it."""

    scheme: str
    bucket: str = ""  #: empty: of a machine
    endpoint: str = ""  #: host and port of the bucket's service; empty = unknown
    folder: str  #: without outer slashes
    shared: ClassVar[str] = "the same folder, or one above or below it"

    @property
    def root_hash(self) -> str:
        """Equal for all locations that could overlap."""
        return _digest(f"files {self.scheme} {self.bucket}")

    @classmethod
    def of(cls, *, scheme: str, bucket: str, path: str, endpoint: str) -> Files:
        """The same for all ways to write it."""
        folder = posixpath.normpath(path) if scheme == "file" else path
        host = urlsplit(endpoint).netloc.lower()
        return cls(scheme=scheme, bucket=bucket, endpoint=host, folder=folder.strip("/"))

    def overlaps(self, other: Location) -> bool:
        """Whether one is the other, or is in it."""
        if not isinstance(other, Files) or (self.scheme, self.bucket) != (other.scheme, other.bucket):
            return False
        if self.endpoint and other.endpoint and self.endpoint != other.endpoint:
            return False
        return self._has(other) or other._has(self)

    def has(self, letters: Files) -> bool:
        """Whether a location of dead letters is this one, or is in it, where readers would find the letters."""
        return self.overlaps(letters) and self._has(letters)

    def _has(self, other: Files) -> bool:
        return not self.folder or f"{other.folder}/".startswith(f"{self.folder}/")


Location = Keys | Files


def location_facts(location: Location) -> dict[str, object]:
    """As the catalog keeps it, in the options of a changefeed."""
    match location:
        case Keys():
            range_ = [location.range.start.hex(), location.range.end.hex()]
            return {"cluster_id": location.cluster_id, "keyspace_id": location.keyspace_id, "range": range_}
        case Files():
            return {
                "scheme": location.scheme,
                "bucket": location.bucket,
                "endpoint": location.endpoint,
                "folder": location.folder,
            }


def location_in(options: str) -> Location | None:
    """The location in the options of a changefeed; None when it is not known."""
    facts = orjson.loads(options).get("location")
    return None if facts is None else _of_facts(facts)


def letters_in(options: str) -> Files | None:
    """The location of dead letters in the options of a changefeed; None without."""
    facts = orjson.loads(options).get("dead_letter_location")
    return None if facts is None else Files(**facts)


def location_text(location: Location) -> str:
    """As the catalog keeps it, with its owner."""
    return orjson.dumps(location_facts(location), option=orjson.OPT_SORT_KEYS).decode()


def location_of_text(text: str) -> Location:
    """The location that `location_text` gave."""
    return _of_facts(orjson.loads(text))


def _of_facts(facts: dict[str, Any]) -> Location:
    if "folder" in facts:
        return Files(**facts)
    start, end = facts["range"]
    range_ = KeyRange(bytes.fromhex(start), bytes.fromhex(end))
    return Keys(cluster_id=facts["cluster_id"], keyspace_id=facts["keyspace_id"], range=range_)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
