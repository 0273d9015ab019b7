"""Where a changefeed writes, and whether two of them would write to the same place.

    keys    a range of keys in a keyspace of a TiKV cluster, or in a cluster without keyspaces
    files   a folder of a machine, or of a bucket

Two writers of a place destroy each other's work: of a key the one that comes last stays, and files have the same names.
So ranges must not overlap, and a folder must not be, or be in, another one's. A bucket that is reached at an unknown
endpoint is taken for the one of that name at any. Links between folders are not seen.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import ClassVar
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

    def meets(self, other: Place) -> bool:
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

    @classmethod
    def of(cls, *, scheme: str, bucket: str, path: str, endpoint: str) -> Files:
        """The same for all ways to write it."""
        folder = posixpath.normpath(path) if scheme == "file" else path
        host = urlsplit(endpoint).netloc.lower()
        return cls(scheme=scheme, bucket=bucket, endpoint=host, folder=folder.strip("/"))

    def meets(self, other: Place) -> bool:
        """Whether one is the other, or is in it."""
        if not isinstance(other, Files) or (self.scheme, self.bucket) != (other.scheme, other.bucket):
            return False
        if self.endpoint and other.endpoint and self.endpoint != other.endpoint:
            return False
        short, long = sorted((self.folder, other.folder), key=len)
        return not short or long == short or long.startswith(f"{short}/")


Place = Keys | Files


def place_facts(place: Place) -> dict[str, object]:
    """As the catalog keeps it, in the options of a changefeed."""
    match place:
        case Keys():
            range_ = [place.range.start.hex(), place.range.end.hex()]
            return {"cluster_id": place.cluster_id, "keyspace_id": place.keyspace_id, "range": range_}
        case Files():
            return {
                "scheme": place.scheme,
                "bucket": place.bucket,
                "endpoint": place.endpoint,
                "folder": place.folder,
            }


def place_in(options: str) -> Place | None:
    """The place in the options of a changefeed; None when it is not known."""
    facts = orjson.loads(options).get("place")
    if facts is None:
        return None
    if "folder" in facts:
        return Files(**facts)
    start, end = facts["range"]
    range_ = KeyRange(bytes.fromhex(start), bytes.fromhex(end))
    return Keys(cluster_id=facts["cluster_id"], keyspace_id=facts["keyspace_id"], range=range_)
