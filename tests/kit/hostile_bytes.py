"""Objects that a tenant's pushers could write to exhaust a service: attacks as data.

    ATTACKS    name -> (where it is put, bytes)

Each is small in the bucket, has right checksums, and would become gigabytes of memory if its sizes, counts or pointers
were believed. `read` does with one what the service does with an object of its kind.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import crc32c
import orjson
import pyarrow as pa
import zstandard

from schemas.registry.pushed import history_of
from tests.kit.recording import RECORDING
from tistream.codec.arrow_stream import write_batch
from tistream.codec.batch_file import decode_batch_file, decode_watermarks
from tistream.codec.seed_file import decode_seed_segment, manifest_key, read_manifest
from tistream.codec.segment_file import FOOTER, MAGIC
from tistream.ids import Tenant
from tistream.model.change import REGIONS, ROWS
from tistream.objectstore.layout import BatchKey

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
TENANT = Tenant(1, 2)
BATCH_KEY = BatchKey(tenant=TENANT, store_id=1, incarnation=1, seq=1)
MANIFEST_KEY = manifest_key(TENANT, 9, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    kind: str  #: batch, watermarks, seed, manifest or schema
    make: Callable[[], bytes]


def zeros(size: int, *, declared: bool = True) -> bytes:
    """A zstd frame that unpacks to this many zero bytes, made without holding them in memory."""
    return repeated(b"", bytes(MIB), size // MIB, b"", declared=size if declared else -1)


def repeated(start: bytes, part: bytes, times: int, end: bytes, *, declared: int = -1) -> bytes:
    """A frame of `start`, a part many times, and `end`."""
    packer = zstandard.ZstdCompressor(level=1).compressobj(size=declared)
    parts = [packer.compress(start), *(packer.compress(part) for _ in range(times)), packer.compress(end)]
    return b"".join([*parts, packer.flush()])


def identity(key: BatchKey) -> dict[str, object]:
    of = {"cluster": key.tenant.cluster_id, "tenant": key.tenant.tenant_id, "store": key.store_id}
    return {"file": "batch", **of, "incarnation": key.incarnation, "seq": key.seq, "cut_ts": 5, "write_id": "w"}


def footer_of(head: dict[str, Any], *segments: dict[str, Any]) -> bytes:
    text = orjson.dumps({"format": 1, **head})
    schema = FOOTER.with_metadata({b"head": text})
    blank: dict[str, Any] = {f.name: b"" if f.type == pa.binary() else 0 for f in FOOTER}
    rows = [{**blank, "sealed": False, **segment} for segment in segments]
    footer: bytes = write_batch(pa.RecordBatch.from_pylist(rows, schema=schema)).to_pybytes()
    return footer


def closed(body: bytes, footer: bytes) -> bytes:
    trailer = struct.pack("<II8s", len(footer), crc32c.crc32c(footer), MAGIC)
    return b"".join((MAGIC, body, footer, trailer))


def file_of(head: dict[str, Any], *segments: tuple[str, bytes, int, int]) -> bytes:
    """A file whose footer says (kind, stored bytes, rows, unpacked bytes) of each segment."""
    at, rows = len(MAGIC), []
    for n, (kind, stored, count, raw) in enumerate(segments):
        crc = crc32c.crc32c(stored)
        where = {"offset": at, "length": len(stored), "raw_length": raw, "crc": crc}
        rows.append({"number": n, "kind": kind, "rows": count, **where})
        at += len(stored)
    return closed(b"".join(stored for _, stored, _, _ in segments), footer_of(head, *rows))


def empty(schema: pa.Schema) -> tuple[bytes, int, int]:
    raw = write_batch(pa.RecordBatch.from_pylist([], schema=schema)).to_pybytes()
    return zstandard.compress(raw), 0, len(raw)


def batch_of(rows: tuple[bytes, int, int] | None = None, regions: tuple[bytes, int, int] | None = None) -> bytes:
    return file_of(identity(BATCH_KEY), ("rows", *(rows or empty(ROWS))), ("regions", *(regions or empty(REGIONS))))


def shared_texts(entries: int, chars: int) -> bytes:
    """A stream whose schema names one long text many times: each of them is copied."""
    metadata = flatbuffer_texts(entries, chars)
    return struct.pack("<II", 0xFFFFFFFF, len(metadata)) + metadata


def flatbuffer_texts(entries: int, chars: int) -> bytes:
    """A Message of a Schema without columns, whose custom_metadata are `entries` pointers at one pair of texts."""
    message_vtable = struct.pack("<6H", 12, 24, 4, 6, 8, 16)  # version, header_type, header, bodyLength
    message_at = 4 + len(message_vtable)
    schema_vtable_at = message_at + 24
    schema_vtable = struct.pack("<5H2x", 10, 12, 0, 4, 8)  # endianness absent, fields, custom_metadata
    schema_at = schema_vtable_at + len(schema_vtable)
    fields_at = schema_at + 12
    vector_at = fields_at + 4
    pair_vtable_at = vector_at + 4 + 4 * entries
    pair_at = pair_vtable_at + 8
    text_at = pair_at + 12
    out = struct.pack("<I", message_at) + message_vtable
    out += struct.pack("<iHBxiq4x", message_at - 4, 4, 1, schema_at - message_at - 8, 0)
    out += schema_vtable
    out += struct.pack("<iII", schema_at - schema_vtable_at, fields_at - schema_at - 4, vector_at - schema_at - 8)
    out += struct.pack("<I", 0)
    out += struct.pack("<I", entries)
    out += b"".join(struct.pack("<I", pair_at - (vector_at + 4 + 4 * n)) for n in range(entries))
    out += struct.pack("<4H", 8, 12, 4, 8)
    out += struct.pack("<iII", pair_at - pair_vtable_at, text_at - pair_at - 4, text_at - pair_at - 8)
    out += struct.pack("<I", chars) + b"x" * chars + bytes(4)
    return out + bytes(-len(out) % 8)


def _document() -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads((RECORDING / "schema_snapshot.json").read_bytes())
    return document


def schema_with(tables: bytes, part: bytes, times: int, end: bytes) -> bytes:
    """A snapshot whose first tables are the recording's, and then a part many times."""
    whole = orjson.dumps(_document())
    assert whole.endswith(b"]}")
    return repeated(whole[:-2] + tables, part, times, end)


def real_schema(tables: int) -> bytes:
    """A schema snapshot of this many tables with ten columns each, as a pusher writes it."""
    document = _document()
    jobs = next(t for t in document["tables"] if t["info"]["name"]["L"] == "tidb_ddl_job")
    model = next(t for t in document["tables"] if t["db_id"] == 116)
    columns = (model["info"]["cols"] * 4)[:10]
    model["info"]["cols"] = [
        {**column, "id": n + 1, "offset": n, "name": {"O": f"Column_{n}", "L": f"column_{n}"}}
        for n, column in enumerate(columns)
    ]
    start = orjson.dumps({**document, "tables": [jobs]})
    one = orjson.dumps(model).replace(b'"id":%d,' % model["info"]["id"], b'"id":TABLE,', 1)
    packer = zstandard.ZstdCompressor(level=3).compressobj()
    parts = [packer.compress(start[:-2])]
    parts += (packer.compress(b"," + one.replace(b"TABLE", b"%d" % n)) for n in range(1000, 1000 + tables))
    return b"".join([*parts, packer.compress(b"]}"), packer.flush()])


def _manifest(rows: int) -> bytes:
    """A manifest that says to have this many segments."""
    head = {"file": "seed-manifest", "cluster": 1, "tenant": 2, "ts": "9", "table_id": 0, "file_bytes": {"1": 100}}
    return file_of(head, ("seed-manifest", zeros(GIB), rows, GIB))


ATTACKS: dict[str, Attack] = {
    "rows-of-a-gigabyte": Attack(kind="batch", make=lambda: batch_of(rows=(zeros(GIB), 10_000_000, GIB))),
    "one-row-of-a-gigabyte": Attack(kind="batch", make=lambda: batch_of(rows=(zeros(GIB), 1, GIB))),
    "regions-of-a-gigabyte": Attack(kind="batch", make=lambda: batch_of(regions=(zeros(GIB), 1, GIB))),
    "regions-by-the-million": Attack(
        kind="batch", make=lambda: batch_of(regions=(zeros(32 * MIB), 5_000_000, 32 * MIB))
    ),
    "a-frame-that-hides-its-size": Attack(
        kind="batch", make=lambda: batch_of(rows=(zeros(GIB, declared=False), 9, 30 * MIB))
    ),
    "a-frame-larger-than-the-footer-says": Attack(kind="batch", make=lambda: batch_of(rows=(zeros(GIB), 9, 30 * MIB))),
    "a-frame-of-the-largest-size": Attack(kind="batch", make=lambda: batch_of(rows=(zeros(32 * MIB), 9, 32 * MIB))),
    "texts-of-a-footer": Attack(kind="batch", make=lambda: closed(b"", shared_texts(8_000, 30_000))),
    "texts-of-many-megabytes": Attack(kind="batch", make=lambda: closed(b"", shared_texts(100_000, 400_000))),
    "texts-of-a-segment": Attack(kind="batch", make=lambda: _texts_in_a_segment()),
    "watermarks-of-a-gigabyte": Attack(kind="watermarks", make=lambda: batch_of(regions=(zeros(GIB), 1, GIB))),
    "seed-rows-of-a-gigabyte": Attack(kind="seed", make=lambda: zeros(GIB)),
    "seed-texts": Attack(kind="seed", make=lambda: zstandard.compress(shared_texts(100_000, 400_000))),
    "manifest-of-a-gigabyte": Attack(kind="manifest", make=lambda: _manifest(20_000_000)),
    "schema-of-empty-lists": Attack(kind="schema", make=lambda: repeated(b'{"a":[', b"[]," * 100_000, 2_000, b"[]]}")),
    "schema-of-empty-tables": Attack(
        kind="schema", make=lambda: repeated(b'{"tables":[', b"{}," * 100_000, 2_000, b"{}]}")
    ),
    "schema-of-zeros": Attack(kind="schema", make=lambda: zeros(3 * GIB, declared=False)),
    "schema-of-spaces": Attack(kind="schema", make=lambda: repeated(b"{", b" " * MIB, 3_000, b"}")),
    "schema-of-one-text": Attack(kind="schema", make=lambda: repeated(b'{"a":"', b"x" * MIB, 1_000, b'"}')),
    "schema-nested": Attack(kind="schema", make=lambda: repeated(b'{"a":', b"[" * 100_000, 100, b"")),
    "schema-of-columns": Attack(
        kind="schema",
        make=lambda: schema_with(
            b',{"db_id":116,"info":{"id":9,"name":"t","cols":[', b'{"id":1},' * 100_000, 500, b'{"id":1}]}}]}'
        ),
    ),
    "schema-of-index-columns": Attack(
        kind="schema",
        make=lambda: schema_with(
            b',{"db_id":116,"info":{"id":9,"index_info":[{"id":1,"idx_cols":[', b"{}," * 100_000, 500, b"{}]}]}}]}"
        ),
    ),
}


def _texts_in_a_segment() -> bytes:
    raw = shared_texts(100_000, 400_000)
    return batch_of(rows=(zstandard.compress(raw), 9, len(raw)))


def read(kind: str, data: bytes) -> None:
    """What the service does with an object of this kind."""
    match kind:
        case "batch":
            decode_batch_file(BATCH_KEY, data)
        case "watermarks":
            decode_watermarks(BATCH_KEY, data[-(64 << 10) :], len(data))
        case "seed":
            decode_seed_segment("a seed", 0, data, ts=9, crc=crc32c.crc32c(data), rows=9, offset=8)
        case "manifest":
            read_manifest(str(MANIFEST_KEY), data, TENANT, 9, 0)
        case "schema":
            history_of(data)
