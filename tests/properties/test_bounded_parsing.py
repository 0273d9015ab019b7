"""What a tenant writes, with lying sizes, counts, offsets and nesting behind right checksums: each object gives rows
that keep its rules, or one coded error that names it, in little memory and time.

A change is one to three numbers of one to eight bytes that are overwritten: in the footer, in the stream of a segment
before it is packed, or in a packed frame. The checksums and lengths around it are made right again, so that the parser
behind them meets it. Memory is what Python and Arrow allocate at most; a frame is unpacked into as many bytes as footer
and frame agree on, if the kind's limit allows them.
"""

from __future__ import annotations

import copy
import gc
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import crc32c
import orjson
import pyarrow as pa
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from metaserver.activation import read_snapshot
from tests.kit.batch_files import batch_bytes, subscriptions_of
from tests.kit.hostile_bytes import BATCH_KEY, KIB, MANIFEST_KEY, MIB, TENANT, closed
from tests.kit.made_rows import log_row, log_table
from tests.kit.recording import RECORDING
from tistream.codec.arrow_stream import write_batch
from tistream.codec.batch_file import decode_batch_file, decode_watermarks, encode_batch_file
from tistream.codec.committed_file import build_committed_file, decode_committed_segment
from tistream.codec.seed_file import SEED, SeedBuilder, build_manifest, decode_seed_segment, read_manifest
from tistream.codec.segment_file import FOOTER, MAGIC, SegmentFile
from tistream.codec.table_key import is_record, record_key
from tistream.errors import CorruptObject
from tistream.limits import (
    BATCH_REGIONS_BYTES_MAX,
    DEFINITION_BYTES_MAX,
    MANIFEST_RAW_BYTES_MAX,
    SEED_SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MAX,
)
from tistream.objectstore.layout import CommittedKey, SchemaSnapKey

calm = settings(max_examples=80, derandomize=True, database=None)
CONSTANT = 2 * MIB  #: of memory for any object: buffers of Python, Arrow and hypothesis
TIMES = 40  #: memory for each byte of an object and of what it unpacks to
SECONDS = 2.0  #: of processor time; parsing usually takes 2 ms

_EDGES = [0, 1, 2, 3, 4, 7, 8, 0x7F, 0x80, 0xFF, 1 << 15, (1 << 16) - 1, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
_EDGES += [1 << 40, (1 << 62), (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
number = st.tuples(st.integers(0, 1 << 20), st.sampled_from([1, 2, 4, 8]), st.sampled_from(_EDGES))
changes = st.lists(number, min_size=1, max_size=3)
Changes = list[tuple[int, int, int]]


def overwritten(data: bytes, edits: Changes) -> bytes:
    """The bytes with numbers written over them."""
    out = bytearray(data)
    for at, width, value in edits:
        at %= len(out)
        out[at : at + width] = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")[: len(out) - at]
    return bytes(out)


@dataclass(frozen=True)
class Kind:
    """A kind of segment file with a valid example, and what must hold for what is read from another one."""

    data: bytes
    read: Callable[[bytes], None]  #: raises CorruptObject, or AssertionError when what it accepted breaks a rule
    name: str
    limit: int  #: bytes that a segment may unpack to

    def footer(self) -> bytes:
        length = int.from_bytes(self.data[-16:-12], "little")
        return self.data[-16 - length : -16]

    def segments(self) -> list[tuple[dict[str, Any], bytes]]:
        """(footer row, Arrow stream) of each segment."""
        table = pa.ipc.open_stream(self.footer()).read_all()
        rows = table.to_pylist()
        stored = [self.data[row["offset"] :][: row["length"]] for row in rows]
        return [(row, zstandard.decompress(each)) for row, each in zip(rows, stored, strict=True)]

    def with_segments(self, stored: list[tuple[dict[str, Any], bytes]]) -> bytes:
        """The file with these packed segments, in a footer that describes them as they are."""
        schema, at, rows = pa.ipc.open_stream(self.footer()).schema, len(MAGIC), []
        for row, packed in stored:
            rows.append({**row, "offset": at, "length": len(packed), "crc": crc32c.crc32c(packed)})
            at += len(packed)
        footer = write_batch(pa.RecordBatch.from_pylist(rows, schema=schema)).to_pybytes()
        return closed(b"".join(packed for _, packed in stored), footer)


@contextmanager
def bounded(unpacked: int) -> Iterator[None]:
    """Fail when the block takes more memory or time than an object of `unpacked` bytes may."""
    pool, before = pa.proxy_memory_pool(pa.system_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    gc.disable()  # a collection goes through what other tests of this process have left behind
    tracemalloc.start(1)
    began = time.process_time()
    try:
        yield
    finally:
        took_s = time.process_time() - began
        peak = tracemalloc.get_traced_memory()[1] + pool.max_memory()
        tracemalloc.stop()
        gc.enable()
        pa.set_memory_pool(before)
    assert peak <= TIMES * unpacked + CONSTANT, f"{peak >> 10} KiB for {unpacked} bytes"
    assert took_s < SECONDS, took_s


def tried(kind: Kind, data: bytes, unpacked: int = 0) -> None:
    """Read it: rows that keep the rules, or a coded error that names the object, in little memory."""
    with bounded(len(data) + unpacked):
        refused = outcome(kind, data)
    assert refused is None or (refused.facts["object"], refused.code) == (kind.name, "TS-1020")


def outcome(kind: Kind, data: bytes) -> CorruptObject | None:
    """The error of an object, if it is refused."""
    try:
        kind.read(data)
    except CorruptObject as error:
        return error
    return None


def read_batch_file(data: bytes) -> None:
    file = decode_batch_file(BATCH_KEY, data)
    slices = sorted(zip(*(file.regions.column(n).to_pylist() for n in ("row_offset", "row_count")), strict=True))
    ends = [offset + count for offset, count in slices if count]
    assert sum(count for _, count in slices) == (ends[-1] if ends else 0) == file.rows.num_rows
    assert len(file.rows.to_pylist()) == file.rows.num_rows, "usable to the last byte"
    encode_batch_file(BATCH_KEY, cut_ts=file.cut_ts, rows=file.rows, regions=file.regions, write_id=file.write_id)


def read_watermarks(data: bytes) -> None:
    watermarks = decode_watermarks(BATCH_KEY, data[-64 * KIB :], len(data))
    assert watermarks is not None, "all of the file is given"
    for region in watermarks.regions.to_pylist():
        assert region["resolved_ts"] <= watermarks.cut_ts
        assert not region["end_key"] or region["start_key"] < region["end_key"]


def read_seed(data: bytes) -> None:
    for info in SegmentFile.open("an object", data).segments:
        stored = data[info.offset :][: info.length]
        seed = decode_seed_segment(
            "an object", info.number, stored, ts=SEED_TS, crc=info.crc, rows=info.rows, offset=info.offset
        )
        keys = seed["key"].to_pylist()
        assert len(keys) == info.rows
        assert all(a < b for a, b in pairwise(keys))
        assert is_record(seed["key"].combine_chunks()).all()
        assert max(seed["commit_ts"].to_pylist(), default=0) <= SEED_TS


def read_seed_manifest(data: bytes) -> None:
    manifest = read_manifest(str(MANIFEST_KEY), data, TENANT, SEED_TS, 0)
    for segment in manifest.segments:
        assert 0 <= segment.offset < segment.offset + segment.length <= manifest.file_bytes[segment.n]


def read_committed(data: bytes) -> None:
    for info in SegmentFile.open("an object", data).segments:
        stored = data[info.offset :][: info.length]
        table = decode_committed_segment(
            "an object", info.number, stored, crc=info.crc, rows=info.rows, offset=info.offset
        )
        order = list(zip(*(table[n].to_pylist() for n in ("table_id", "commit_ts", "start_ts", "key")), strict=True))
        assert len(order) == info.rows
        assert all(a < b for a, b in pairwise(order))


SEED_TS = MANIFEST_KEY.ts


def _seed() -> tuple[bytes, bytes]:
    """A file of rows, and its manifest."""
    builder = SeedBuilder(TENANT, SEED_TS, 0)
    keys = [record_key(table, handle) for table in (1, 2) for handle in range(6)]
    rows = pa.table([keys, [5] * 12, [SEED_TS] * 12, [b"value" * 4] * 12], schema=SEED)
    (file,) = [*builder.add(rows), *builder.finish()]
    return file.data, build_manifest(TENANT, SEED_TS, 0, [(file.key.n, len(file.data), file.segments)])


def _committed() -> bytes:
    rows = log_table(*(log_row(n // 4, 10 + n, b"k%d" % n, value=b"v" * n) for n in range(12)))
    key = CommittedKey(tenant=TENANT, sorter="s", incarnation=1, seq=1)
    return build_committed_file(key, [(1, rows)], "w")[0]


_REGIONS = [(b"a", b"g", [b"a%d" % n for n in range(5)]), (b"g", b"p", []), (b"p", b"", [b"q", b"r"])]
_BATCH, (_SEED, _MANIFEST) = batch_bytes(BATCH_KEY, _REGIONS), _seed()
KINDS = {
    "batch": Kind(_BATCH, read_batch_file, str(BATCH_KEY), BATCH_REGIONS_BYTES_MAX),
    "watermarks": Kind(_BATCH, read_watermarks, str(BATCH_KEY), BATCH_REGIONS_BYTES_MAX),
    "seed": Kind(_SEED, read_seed, "an object", SEED_SEGMENT_BYTES_MAX),
    "manifest": Kind(_MANIFEST, read_seed_manifest, str(MANIFEST_KEY), MANIFEST_RAW_BYTES_MAX),
    "committed": Kind(_committed(), read_committed, "an object", SEGMENT_BYTES_MAX),
}
kinds = st.sampled_from(sorted(KINDS))


def test_the_files_themselves_are_read() -> None:
    for kind in KINDS.values():
        kind.read(kind.data)
        kind.read(kind.with_segments([(row, zstandard.compress(raw)) for row, raw in kind.segments()]))
    assert decode_batch_file(BATCH_KEY, _BATCH).rows.equals(subscriptions_of(_REGIONS)[0])


@calm
@given(kinds, changes)
def test_without_right_checksums_nothing_else_is_read(name: str, edits: Changes) -> None:
    kind = KINDS[name]
    data = overwritten(kind.data, edits)
    if name != "watermarks" and data != kind.data:
        with bounded(len(data)):
            refused = outcome(kind, data)
        assert refused is not None, "a changed file was read"
        assert refused.facts["object"] == kind.name


@calm
@given(kinds, changes)
def test_any_number_in_the_bytes_of_a_footer(name: str, edits: Changes) -> None:
    kind = KINDS[name]
    body = kind.data[len(MAGIC) : -16 - len(kind.footer())]
    tried(kind, closed(body, overwritten(kind.footer(), edits)))


@calm
@given(kinds, st.integers(0, 5_000) | st.sampled_from([n for n in _EDGES if n < 1 << 32]))
def test_any_length_of_a_footer(name: str, length: int) -> None:
    """The bytes that it names have the right checksum."""
    kind, end = KINDS[name], len(KINDS[name].data) - 16
    named = kind.data[max(0, end - length) : end]
    trailer = length.to_bytes(4, "little") + crc32c.crc32c(named).to_bytes(4, "little") + MAGIC
    if length != len(kind.footer()):
        tried(kind, kind.data[:end] + trailer)


@calm
@given(kinds, st.integers(0, 99), st.sampled_from(FOOTER.names), st.sampled_from(_EDGES))
def test_any_value_of_a_footer(name: str, which: int, column: str, value: int) -> None:
    kind = KINDS[name]
    table = pa.ipc.open_stream(kind.footer()).read_all()
    rows, type_ = table.to_pylist(), FOOTER.field(column).type
    bits = {pa.uint32(): 32, pa.int64(): 63, pa.uint64(): 64}.get(type_)
    lies: Any = value % (1 << bits) if bits else b"x" * (value % 5000) if pa.types.is_binary(type_) else None
    if lies is None:
        lies = bool(value % 2) if pa.types.is_boolean(type_) else "x" * (value % 5000)
    rows[which % len(rows)][column] = lies
    footer = write_batch(pa.RecordBatch.from_pylist(rows, schema=table.schema)).to_pybytes()
    tried(kind, closed(kind.data[len(MAGIC) : -16 - len(kind.footer())], footer))


@calm
@given(kinds, st.integers(0, 99), changes)
def test_any_number_in_the_stream_of_a_segment(name: str, which: int, edits: Changes) -> None:
    kind = KINDS[name]
    streams = kind.segments()
    n = which % len(streams)
    streams[n] = streams[n][0], overwritten(streams[n][1], edits)
    data = kind.with_segments([(row, zstandard.compress(raw)) for row, raw in streams])
    tried(kind, data, sum(len(raw) for _, raw in streams))


@calm
@given(kinds, st.integers(0, 99), changes)
def test_any_number_in_a_packed_frame(name: str, which: int, edits: Changes) -> None:
    kind = KINDS[name]
    packed = [(row, zstandard.compress(raw)) for row, raw in kind.segments()]
    n = which % len(packed)
    near = [(at % 24, width, value) for at, width, value in edits]  # the header, which has the sizes
    packed[n] = packed[n][0], overwritten(packed[n][1], near)
    tried(kind, kind.with_segments(packed), sum(row["raw_length"] for row, _ in packed))


@calm
@given(kinds, st.integers(0, 99), st.sampled_from([0, 1, MIB, None, 1 << 32, 1 << 40, 1 << 63]))
def test_a_size_on_which_frame_and_footer_agree(name: str, which: int, claimed: int | None) -> None:
    """A frame that claims other bytes than it has, up to one more than allowed and beyond."""
    kind = KINDS[name]
    size = kind.limit + 1 if claimed is None else claimed
    segments = kind.segments()
    n = which % len(segments)
    row, raw = segments[n]
    lying = bytearray(zstandard.ZstdCompressor(write_content_size=False).compress(raw))
    header = (
        lying[:4] + bytes([0xC0 | lying[4] & 0x07 | 0x20]) + size.to_bytes(8, "little")
    )  # single segment: no window
    lying[: 5 if lying[4] & 0x20 else 6] = header
    packed = [(each, zstandard.compress(stream)) for each, stream in segments]
    packed[n] = {**row, "raw_length": size}, bytes(lying)
    tried(kind, kind.with_segments(packed), MIB if size <= MIB else 0)


@calm
@given(
    kinds, st.recursive(st.sampled_from([*_EDGES, "", "9" * 40, None, True, 1.5]), st.lists, max_leaves=4), st.data()
)
def test_any_field_of_a_head(name: str, value: Any, data: st.DataObject) -> None:
    kind = KINDS[name]
    table = pa.ipc.open_stream(kind.footer()).read_all()
    head = orjson.loads(table.schema.metadata[b"head"])
    head[data.draw(st.sampled_from(sorted(head)))] = value
    batch = table.replace_schema_metadata({b"head": orjson.dumps(head)}).to_batches()[0]
    tried(kind, closed(kind.data[len(MAGIC) : -16 - len(kind.footer())], write_batch(batch).to_pybytes()))


_DOCUMENT: dict[str, Any] = orjson.loads((RECORDING / "schema_snapshot.json").read_bytes())
_JOBS = next(t for t in _DOCUMENT["tables"] if t["info"]["name"]["L"] == "tidb_ddl_job")
_USERS = [t for t in _DOCUMENT["tables"] if t["db_id"] == 116 and t["info"]["index_info"]][:2]
_SMALL = {**_DOCUMENT, "tables": [*_USERS, _JOBS]}
SNAPSHOT = SchemaSnapKey(tenant=TENANT, ts=int(_DOCUMENT["ts"]))
_PLACES: list[tuple[str | int, ...]] = [
    (), ("dbs",), ("tables",), ("dbs", 0), ("tables", 0), ("tables", 0, "info"), ("tables", 0, "info", "cols"),
    ("tables", 0, "info", "cols", 0), ("tables", 0, "info", "index_info"), ("tables", 0, "info", "cols", 0, "type"),
]  # fmt: skip
_BITS = ["[]", "{}", "0", '""', '{"id":1}', "[[]]", '{"a":{}}']


def snapshot(data: bytes) -> None:
    read_snapshot(SNAPSHOT, data)


@settings(calm, max_examples=50)
@given(st.sampled_from(_PLACES), st.sampled_from(_BITS), st.sampled_from([1, 50, 4_000]), st.booleans())
def test_a_schema_with_repeated_or_nested_parts(place: tuple[str | int, ...], bit: str, times: int, deep: bool) -> None:
    document = copy.deepcopy(_SMALL)
    at: Any = document
    for step in place:
        at = at[step]
    mark = "here"
    if isinstance(at, list):
        at.append(mark)
    else:
        at[mark] = mark
    many = "[" * times + bit + "]" * times if deep else "[" + ",".join([bit] * times) + "]"
    text = orjson.dumps(document)
    where = text.rindex(b'"here"')
    text = text[:where] + many.encode() + text[where + 6 :]
    assert len(text) < DEFINITION_BYTES_MAX
    tried(Kind(text, snapshot, str(SNAPSHOT), 0), zstandard.compress(text), len(text))


@calm
@given(changes)
def test_a_schema_whose_frame_lies(edits: Changes) -> None:
    text = orjson.dumps(_SMALL)
    near = [(at % 24, width, value) for at, width, value in edits]
    tried(Kind(text, snapshot, str(SNAPSHOT), 0), overwritten(zstandard.compress(text), near), len(text))
