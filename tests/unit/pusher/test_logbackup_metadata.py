"""Names and metadata of a log backup, and its checkpoints."""

from __future__ import annotations

import pytest

from pusher.logbackup.checkpoint import ahead_of, read_checkpoint
from pusher.logbackup.core.metadata import META_PREFIX, Compression, Flush, LogSlice, parse_name, read_metadata
from tests.kit.log_backup_files import LogBackupFiles, Piece, entry_bytes, number, put, sized
from tistream.errors import CorruptObject, InvalidInput
from tistream.objectstore.memory import MemoryStore

KEY = bytes.fromhex("7480000000000000055f728000000000000001")
META = META_PREFIX + "000000000000000A000000000000000B-u0000000000000004l0000000000000003d0000000000000002.meta"


@pytest.mark.parametrize(
    ("name", "flush_ts"),
    [
        (
            "000000000000000A000000000000000B-"
            "u0000000000000004x0000000000000009d0000000000000002l0000000000000003.meta",
            10,
        ),
        (
            "0687F5455C4C00010000000000000002-"
            "d0000000000000000l0000000000000000u0000000000000000p0000000000000003.meta",
            0x0687F5455C4C0001,
        ),
        ("000000000000000a-0000000000000002-0000000000000003-0000000000000004.meta", 10),
        ("467996279696261141-9778beca-ba2f-432e-970d-5348e607c9f8.meta", 0),
        ("000000000000000A000000000000000B-u00000000.meta", 0),
    ],
)
def test_newer_names_have_the_flush_time(name: str, flush_ts: int) -> None:
    assert parse_name(META_PREFIX + name).flush_ts == flush_ts


def test_a_real_empty_flush_has_no_slices() -> None:
    data = bytes.fromhex("100218ffffffffffffffffff013801")  # store 2, a resolved ts, version 1
    flush = read_metadata(META, data)
    assert (flush.store_id, flush.slices, flush.newest_ts) == (2, (), 10)


def flushed() -> tuple[MemoryStore, str]:
    store = MemoryStore()
    pieces = [
        Piece(cf="write", entries=[put(KEY, 20, 30, b"a"), put(KEY, 40, 50, b"b")], table_id=5),
        Piece(cf="default", entries=[(KEY, 7, b"row")], table_id=5, plain=True),
    ]
    return store, LogBackupFiles(store).flush(pieces, flush_ts=60, store_id=9)


def test_slices_have_position_and_checksum() -> None:
    store, key = flushed()
    flush = read_metadata(key, store.get(key))
    first, second = flush.slices
    assert (flush.store_id, flush.newest_ts, first.cf, first.entries, first.min_ts, first.max_ts) == (
        9, 60, "write", 2, 30, 50,
    )  # fmt: skip
    assert (first.table_id, first.is_meta, first.deletes, first.compression) == (5, False, False, Compression.ZSTD)
    assert (second.offset, second.compression, second.min_ts) == (first.stored_bytes, Compression.PLAIN, 7)
    assert second.stored_bytes == second.entry_bytes == len(entry_bytes([(KEY, 7, b"row")]))
    assert store.size(first.object) == second.offset + second.stored_bytes


def test_metadata_cut_anywhere_is_refused() -> None:
    store, key = flushed()
    whole = store.get(key)
    for end in range(len(whole)):
        with pytest.raises(CorruptObject) as e:
            read_metadata(key, whole[:end])
        assert e.value.facts["object"] == key


def info(**changed: bytes) -> bytes:
    parts = {
        "sha256": sized(1, bytes(32)), "count": number(3, 1), "min": number(4, 5), "max": number(5, 6),
        "cf": sized(10, b"write"), "type": number(11, 1), "length": number(14, 90), "offset": number(16, 10),
        "stored": number(17, 40), "compression": number(18, 3),
    }  # fmt: skip
    return b"".join((parts | changed).values())


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"sha256": b""}, "no checksum"),
        ({"count": number(3, 12)}, "number of entries"),
        ({"count": b""}, "number of entries"),
        ({"min": number(4, 7)}, "decreasing timestamps"),
        ({"min": b""}, "decreasing timestamps"),
        ({"cf": sized(10, b"lock")}, "column family"),
        ({"cf": sized(10, b"\xff")}, "not text"),
        ({"length": number(14, 1 << 31)}, "impossible length"),
        ({"stored": b""}, "impossible length"),
        ({"stored": number(17, 41)}, "outside its object"),
        ({"compression": number(18, 2)}, "compression"),
        ({"compression": number(18, 0)}, "though it is not compressed"),
    ],
)
def test_an_impossible_slice_is_refused(changed: dict[str, bytes], cause: str) -> None:
    group = sized(1, b"v1/a.log") + number(6, 50)
    read_metadata(META, sized(6, group + sized(2, info())) + number(7, 1))
    with pytest.raises(CorruptObject, match=cause) as e:
        read_metadata(META, sized(6, group + sized(2, info(**changed))) + number(7, 1))
    assert e.value.facts["object"] == META


def test_unsupported_backups_are_refused() -> None:
    with pytest.raises(InvalidInput, match="metadata version 1"):
        read_metadata(META, sized(1, info()))
    encrypted = sized(23, number(3, 4))
    with pytest.raises(InvalidInput, match="encrypted"):
        read_metadata(META, sized(6, sized(1, b"a") + number(6, 50) + sized(2, info(x=encrypted))) + number(7, 1))
    plainly = sized(23, number(3, 1))
    read_metadata(META, sized(6, sized(1, b"a") + number(6, 50) + sized(2, info(x=plainly))) + number(7, 1))
    with pytest.raises(CorruptObject, match="names no object"):
        read_metadata(META, sized(6, number(6, 50) + sized(2, info())) + number(7, 1))


def test_the_lowest_checkpoint_counts_and_is_named() -> None:
    store = MemoryStore()
    assert read_checkpoint(store) is None
    log = LogBackupFiles(store)
    for ts, name in ((9 << 18, "central_global"), (7 << 18, "5"), (8 << 18, "1")):
        log.checkpoint(ts, name)
    store.put("v1/global_checkpoint/note.txt", b"x")
    checkpoint = read_checkpoint(store)
    assert checkpoint is not None
    assert (checkpoint.ts, checkpoint.object) == (7 << 18, "v1/global_checkpoint/5.ts")


@pytest.mark.parametrize("data", [b"\x01", bytes(8), bytes(9), b"\xff" * 8])
def test_an_invalid_checkpoint_is_refused(data: bytes) -> None:
    store = MemoryStore()
    store.put("v1/global_checkpoint/1.ts", data)
    with pytest.raises(CorruptObject) as e:
        read_checkpoint(store)
    assert e.value.facts["object"] == "v1/global_checkpoint/1.ts"


def test_a_checkpoint_is_stalled_when_a_store_flushes_beyond_it() -> None:
    store = MemoryStore()
    LogBackupFiles(store).checkpoint(100 << 18, "3")
    checkpoint = read_checkpoint(store)
    assert checkpoint is not None

    def flush(n: int, store_id: int, newest_ts: int) -> Flush:
        slices: tuple[LogSlice, ...] = ()
        return Flush(key=f"{n}", store_id=store_id, newest_ts=newest_ts, slices=slices)

    two = [flush(1, 4, 101 << 18), flush(2, 4, 102 << 18), flush(3, 5, 99 << 18), flush(4, 5, 103 << 18)]
    ahead = ahead_of(checkpoint, two)
    assert (dict(ahead.flushes), ahead.newest_ts, ahead.is_stalled) == ({4: 2, 5: 1}, 103 << 18, False)
    assert "v1/global_checkpoint/3.ts" in str(ahead)
    assert ahead_of(checkpoint, [*two, flush(5, 4, 104 << 18)]).is_stalled
    assert str(ahead_of(checkpoint, two[2:3])) == ""
