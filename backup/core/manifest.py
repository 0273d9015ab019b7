"""The manifest of a backup: what it holds, and by which a reader knows that it is whole.

    backup.json    written last: a backup without it is not complete and is never used

Numbers of 64 bits are text, as in the API. `sha256` covers everything else, so a manifest that was changed is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, TypeVar

import orjson

from tistream.codec.crc import Checksum
from tistream.errors import CorruptObject, InvalidInput
from tistream.keyrange import KeyRange
from tistream.tikv.core.api_versions import Api

T = TypeVar("T")

NAME = "backup.json"
FORMAT = 1
_READABLE = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS

#: (of the source, of the files): what a backup can be made of. A version without expiries cannot take those of another.
CONVERSIONS = frozenset(
    {
        (Api.V1, Api.V1),
        (Api.V1, Api.V1TTL),
        (Api.V1, Api.V2),
        (Api.V1TTL, Api.V1TTL),
        (Api.V1TTL, Api.V2),
        (Api.V2, Api.V2),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupFile:
    """One Parquet file. Keys of the files of a backup ascend from file to file."""

    name: str  #: of the object
    size: int  #: bytes of the object
    start_key: bytes
    end_key: bytes  #: inclusive
    blocks: tuple[Checksum, ...]  #: of its row groups, in order
    lasting: Checksum  #: of pairs without an expiry
    expiring: Checksum


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A complete backup."""

    made_from: str  #: "cluster" or "log"
    cluster_id: int  #: of PD where it was made from a cluster, of the tenant otherwise
    keyspace_id: int  #: 0 for API V1
    source_api: Api
    api: Api  #: of the files: which clusters can take them
    range: KeyRange  #: of user keys
    backup_ts: int  #: every write at or below it is in the backup; a changefeed continues from here
    files: tuple[BackupFile, ...]
    inexact: int = 0  #: keys whose state at backup_ts the log did not know

    @property
    def lasting(self) -> Checksum:
        """Of all pairs without an expiry."""
        return reduce(add, (file.lasting for file in self.files), Checksum())

    @property
    def expiring(self) -> Checksum:
        """Of all pairs with an expiry."""
        return reduce(add, (file.expiring for file in self.files), Checksum())


def api_named(name: str) -> Api:
    """v1, v1ttl or v2, as TiKV-BR writes them. InvalidInput for another."""
    try:
        return Api[name.upper()]
    except KeyError as e:
        raise InvalidInput(
            f"There is no API version {name!r}: v1, v1ttl and v2 are known.", option="dst-api-version"
        ) from e


def check_conversion(source: Api, wanted: Api) -> None:
    """InvalidInput when a backup of such a cluster cannot have this API version."""
    if (source, wanted) not in CONVERSIONS:
        raise InvalidInput(
            f"A backup of a cluster of API {source} cannot be one of API {wanted}: V1 and V1TTL become V2, nothing else"
            " is converted.",
            option="dst-api-version",
        )


def encode_manifest(manifest: Manifest) -> bytes:
    """As JSON that people can read."""
    body: dict[str, Any] = {
        "format": FORMAT,
        "made_from": manifest.made_from,
        "cluster_id": str(manifest.cluster_id),
        "keyspace_id": manifest.keyspace_id,
        "source_api_version": manifest.source_api.name.lower(),
        "api_version": manifest.api.name.lower(),
        "start_key": manifest.range.start.hex(),
        "end_key": manifest.range.end.hex(),
        "backup_ts": str(manifest.backup_ts),
        "inexact": manifest.inexact,
        "lasting": _sum_json(manifest.lasting),
        "expiring": _sum_json(manifest.expiring),
        "files": [
            {
                "name": file.name,
                "size": file.size,
                "start_key": file.start_key.hex(),
                "end_key": file.end_key.hex(),
                "blocks": [_sum_json(block) for block in file.blocks],
                "lasting": _sum_json(file.lasting),
                "expiring": _sum_json(file.expiring),
            }
            for file in manifest.files
        ],
    }
    return orjson.dumps({**body, "sha256": _hash(body)}, option=_READABLE) + b"\n"


def read_manifest(data: bytes) -> Manifest:
    """CorruptObject when it is none, or was changed; InvalidInput for a newer format."""
    try:
        body = orjson.loads(data)
        said = body.pop("sha256")
    except (orjson.JSONDecodeError, KeyError, AttributeError, TypeError) as e:
        raise CorruptObject("the manifest of a backup is damaged", object=NAME, cause=repr(e)) from e
    if said != _hash(body):
        raise CorruptObject("the manifest of a backup was changed: its sha256 is another", object=NAME)
    if body.get("format") != FORMAT:
        raise InvalidInput(f"This version reads backups of format {FORMAT}.", object=NAME, format=body.get("format"))
    manifest = _read(lambda: _manifest(body))
    if body["lasting"] != _sum_json(manifest.lasting) or body["expiring"] != _sum_json(manifest.expiring):
        raise CorruptObject("the manifest of a backup contradicts itself: its sums are not its files'", object=NAME)
    if any(reduce(add, file.blocks, Checksum()) != file.lasting + file.expiring for file in manifest.files):
        raise CorruptObject("the manifest of a backup contradicts itself: a file's sum is not its blocks'", object=NAME)
    ends = zip(manifest.files, manifest.files[1:], strict=False)
    if any(before.end_key >= after.start_key for before, after in ends):
        raise CorruptObject("the manifest of a backup contradicts itself: two files overlap", object=NAME)
    return manifest


def _manifest(body: dict[str, Any]) -> Manifest:
    return Manifest(
        made_from=body["made_from"],
        cluster_id=int(body["cluster_id"]),
        keyspace_id=int(body["keyspace_id"]),
        source_api=Api[body["source_api_version"].upper()],
        api=Api[body["api_version"].upper()],
        range=KeyRange(bytes.fromhex(body["start_key"]), bytes.fromhex(body["end_key"])),
        backup_ts=int(body["backup_ts"]),
        inexact=int(body["inexact"]),
        files=tuple(
            BackupFile(
                name=str(file["name"]),
                size=int(file["size"]),
                start_key=bytes.fromhex(file["start_key"]),
                end_key=bytes.fromhex(file["end_key"]),
                blocks=tuple(map(_sum, file["blocks"])),
                lasting=_sum(file["lasting"]),
                expiring=_sum(file["expiring"]),
            )
            for file in body["files"]
        ),
    )


def _read(made: Callable[[], T]) -> T:
    try:
        return made()
    except (KeyError, ValueError, TypeError, AttributeError) as e:
        raise CorruptObject("the manifest of a backup is damaged", object=NAME, cause=repr(e)) from e


def _sum_json(checksum: Checksum) -> dict[str, Any]:
    return {"crc64_xor": f"{checksum.crc64_xor:016x}", "pairs": checksum.pairs, "bytes": checksum.bytes}


def _sum(body: dict[str, Any]) -> Checksum:
    return Checksum(int(body["crc64_xor"], 16), int(body["pairs"]), int(body["bytes"]))


def _hash(body: dict[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(body, option=_READABLE)).hexdigest()
