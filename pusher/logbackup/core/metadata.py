"""Reads the names and `backuppb.Metadata` files of a log backup directory.

    v1/backupmeta/{name}.meta  ->  MetaName: when it was flushed, if the name has it
    its bytes                  ->  Flush: a LogSlice for each run of entries, with position, contents and checksum

One flush of one store writes objects of entries and one metadata file that locates the entries of each (table, region,
column family, kind) in them.

- Names differ between versions and only shorten listings; the contents count. Three forms are known; any other is
  `MetaName(flush_ts=0)`, which is always read;
- unknown fields are skipped; impossible lengths, ranges and names are damage;
- metadata has no checksum, so its values are checked for consistency here; its slices have checksums;
- backups of single files (metadata version 1, TiKV before 6.3) and encrypted ones are refused.

Pure: any bytes give a value, or CorruptObject with `object` and `cause`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from tistream.codec.protobuf import parse
from tistream.errors import CorruptObject, InvalidInput
from tistream.tikv.core import wire

META_PREFIX = "v1/backupmeta/"
CHECKPOINT_PREFIX = "v1/global_checkpoint/"
#: the upstream's own spelling
TRUNCATED_KEY = "v1_stream_trancate_safepoint.txt"

WRITE_CF, DEFAULT_CF = "write", "default"
_PUT = 1
_VERSION = 1  # of metadata whose entries of a flush share objects
_PLAIN = 1  # encryption method
_SHA256_BYTES = 32
#: larger slices are refused
ENTRY_BYTES_MAX = 1 << 30
_TAGGED = re.compile(r"([0-9A-Fa-f]{16})[0-9A-Fa-f]{16}-(?:[A-Za-z][0-9A-Fa-f]{16})+\.meta")
_FOUR = re.compile(r"([0-9A-Fa-f]{16})-[0-9A-Fa-f]{16}-[0-9A-Fa-f]{16}-[0-9A-Fa-f]{16}\.meta")


class Compression(IntEnum):
    """How a slice is stored; TiKV writes these two of the four numbers."""

    PLAIN = 0
    ZSTD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaName:
    """The information in the name of a metadata file."""

    key: str
    flush_ts: int = 0  #: about when it was written; entries may be slightly newer. 0 = not in the name


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSlice:
    """A run of entries of one region, column family and kind within an object."""

    object: str
    offset: int  #: in the object
    stored_bytes: int
    compression: Compression
    entry_bytes: int  #: unpacked
    entries: int
    sha256: bytes  #: of the unpacked entries
    cf: str
    deletes: bool  #: physical deletes of RocksDB (garbage collection), not changes
    min_ts: int  #: of the entries' own timestamps
    max_ts: int
    is_meta: bool  #: keys of the meta range
    table_id: int  #: physical; 0 for the meta range


@dataclass(frozen=True, slots=True, kw_only=True)
class Flush:
    """One flush of one store."""

    key: str  #: of the metadata file
    store_id: int
    newest_ts: int  #: the later of flush time and newest entry
    slices: tuple[LogSlice, ...]  #: empty when nothing changed


def parse_name(key: str) -> MetaName:
    """Parse the key of a metadata file. Never fails: an unknown form has flush_ts 0."""
    name = key.removeprefix(META_PREFIX)
    match = _TAGGED.fullmatch(name) or _FOUR.fullmatch(name)
    return MetaName(key=key, flush_ts=int(match[1], 16)) if match else MetaName(key=key)


def read_metadata(key: str, data: bytes) -> Flush:
    """Parse one metadata file. CorruptObject when it is damaged, InvalidInput when its kind is not supported."""
    try:
        body = parse(wire.BackupMetadata, data)
    except CorruptObject as e:
        raise CorruptObject(f"a metadata file of the log backup is damaged: {e.message}", object=key, **e.facts) from e
    if body.files:
        raise InvalidInput(
            "a log backup of single files (metadata version 1, TiKV before 6.3) is not supported", object=key
        )
    slices = [_slice(key, group, info) for group in body.file_groups for info in group.data_files_info]
    if body.meta_version != _VERSION:  # the last field: missing in a file that was cut off
        raise CorruptObject(
            "a metadata file of the log backup is cut off, or of another version", object=key, version=body.meta_version
        )
    newest_ts = max([parse_name(key).flush_ts, *(s.max_ts for s in slices)])
    return Flush(key=key, store_id=body.store_id, newest_ts=newest_ts, slices=tuple(slices))


def _slice(key: str, group: wire.DataFileGroup, info: wire.DataFileInfo) -> LogSlice:
    path = _text(key, group.path)
    if not path:
        raise CorruptObject("a metadata file of the log backup names no object", object=key, cause="no path")
    if info.file_encryption_info.encryption_method > _PLAIN:
        raise InvalidInput("an encrypted log backup is not supported", object=key, path=path)
    compression = info.compression_type
    log_slice = LogSlice(
        object=path,
        offset=info.range_offset,
        stored_bytes=info.range_length,
        compression=Compression.ZSTD if compression == Compression.ZSTD else Compression.PLAIN,
        entry_bytes=info.length,
        entries=info.number_of_entries,
        sha256=info.sha256,
        cf=_text(key, info.cf),
        deletes=info.type != _PUT,
        min_ts=info.min_ts,
        max_ts=info.max_ts,
        is_meta=info.is_meta,
        table_id=info.table_id,
    )
    faults = {
        "an unsupported compression": compression not in (Compression.PLAIN, Compression.ZSTD),
        "an unknown column family": log_slice.cf not in (WRITE_CF, DEFAULT_CF),
        "no checksum": len(log_slice.sha256) != _SHA256_BYTES,
        "an impossible length": not 0 < log_slice.entry_bytes <= ENTRY_BYTES_MAX or log_slice.stored_bytes <= 0,
        "a range outside its object": log_slice.offset + log_slice.stored_bytes > group.length,
        "decreasing timestamps": not 0 < log_slice.min_ts <= log_slice.max_ts,
        "an impossible number of entries": not 0 < log_slice.entries <= log_slice.entry_bytes // 8,
        "two lengths though it is not compressed": log_slice.compression == Compression.PLAIN
        and log_slice.stored_bytes != log_slice.entry_bytes,
    }
    for cause, bad in faults.items():
        if bad:
            raise CorruptObject(
                f"a metadata file of the log backup describes a slice with {cause}",
                object=key,
                path=path,
                offset=log_slice.offset,
                cause=cause,
            )
    return log_slice


def _text(key: str, value: bytes) -> str:
    try:
        return value.decode("ascii")
    except UnicodeDecodeError as e:
        raise CorruptObject("a name in a metadata file is not text", object=key, cause=str(e)) from e
