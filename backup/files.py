"""The files of a backup: Parquet, in blocks (row groups) whose checksums are in the manifest.

Files appear whole: an object store shows an object when all of it is there. Reading checks every block before its pairs
are used, so a damaged file is refused with its name and the place in it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from backup.core.manifest import BackupFile
from backup.core.pairs import PAIRS, checksum, parted, size_of
from tistream.codec.crc import Checksum
from tistream.codec.newest import pieces
from tistream.errors import CorruptObject
from tistream.objectstore.protocol import ObjectStore

FILE_BYTES = 64 << 20  #: of keys and values, about
BLOCK_BYTES = 4 << 20


class FileWriter:
    """Writes the pairs of one part of a backup. `add` sorted tables in key order, then `finish`."""

    def __init__(self, store: ObjectStore, part: int, *, file_bytes: int = FILE_BYTES) -> None:
        self._store, self._part, self._file_bytes = store, part, file_bytes
        self._held: list[pa.Table] = []
        self._size = 0
        self.files: list[BackupFile] = []

    def add(self, pairs: pa.Table) -> None:
        """Take in pairs (schema PAIRS) above all earlier ones."""
        for piece in pieces(pairs, BLOCK_BYTES):
            self._held.append(piece)
            self._size += size_of(piece)
            if self._size >= self._file_bytes:
                self._write()

    def finish(self) -> None:
        """Write what is left."""
        if self._held:
            self._write()

    def _write(self) -> None:
        pairs = pa.concat_tables(self._held)
        self._held, self._size = [], 0
        name = f"data/{self._part:06d}-{len(self.files):04d}.parquet"
        data, blocks = encode_file(pairs)
        self._store.put(name, data)
        lasting, expiring = parted(pairs)
        self.files.append(
            BackupFile(
                name=name,
                size=len(data),
                start_key=pairs["key"][0].as_py(),
                end_key=pairs["key"][pairs.num_rows - 1].as_py(),
                blocks=blocks,
                lasting=checksum(lasting),
                expiring=checksum(expiring),
            )
        )


def encode_file(pairs: pa.Table) -> tuple[memoryview, tuple[Checksum, ...]]:
    """(bytes of a file, checksums of its blocks)."""
    sink, blocks = pa.BufferOutputStream(), []
    with pq.ParquetWriter(
        sink, PAIRS, compression="zstd", use_dictionary=False, write_statistics=False, write_page_checksum=True
    ) as writer:
        for block in pieces(pairs, BLOCK_BYTES):
            writer.write_table(block, row_group_size=block.num_rows)
            blocks.append(checksum(block))
    return memoryview(sink.getvalue()), tuple(blocks)


def read_file(store: ObjectStore, file: BackupFile) -> Iterator[pa.Table]:
    """The blocks of a file, each checked. CorruptObject, with the block, when it is not what the manifest says."""
    data = store.get(file.name)
    if len(data) != file.size:
        raise CorruptObject("a file of a backup has another size", object=file.name, size=len(data), expected=file.size)
    try:
        opened = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    except (pa.ArrowException, OSError) as e:
        raise CorruptObject("a file of a backup is damaged at its end", object=file.name, cause=str(e)) from e
    if opened.num_row_groups != len(file.blocks):
        raise CorruptObject("a file of a backup has other blocks", object=file.name, blocks=opened.num_row_groups)
    first = 0
    for number, expected in enumerate(file.blocks):
        rows = f"{first} to {first + expected.pairs - 1}"
        try:
            block = opened.read_row_group(number).cast(PAIRS)
        except (pa.ArrowException, OSError) as e:
            facts = {"object": file.name, "block": number, "rows": rows}
            raise CorruptObject("a file of a backup is damaged", **facts, cause=str(e)) from e
        actual = checksum(block)
        if actual != expected:
            raise CorruptObject(
                "a block of a backup has another checksum",
                object=file.name,
                block=number,
                rows=rows,
                found=str(actual),
                expected=str(expected),
            )
        first += expected.pairs
        yield block


def check_file(store: ObjectStore, file: BackupFile) -> None:
    """Read a file and compare all of it with the manifest. CorruptObject."""
    lasting = expiring = Checksum()
    for block in read_file(store, file):
        of_block = parted(block)
        lasting, expiring = lasting + checksum(of_block[0]), expiring + checksum(of_block[1])
    if (lasting, expiring) != (file.lasting, file.expiring):
        raise CorruptObject("the expiries of a file of a backup were changed", object=file.name)
