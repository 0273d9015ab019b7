"""Damaged batch files: each is refused by name, the log behind it waits, and goes on when the good file is there.

A whole recording is pushed while nobody reads it. Then one store's files are damaged, one in each way, and put right
one after the other. The watermark may never pass a damaged file, and at the end nothing is missing or double.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.chaos.servers.ports import free_port
from simulator.chaos.servers.processes import TiStreamProcess, Up, client, pull_all, register, wait_until_ready
from tests.kit.ticdc import CANAL, compare_canal
from tests.kit.waiting import eventually, problem_of
from tistream.codec.batch_file import decode_batch_file, encode_batch_file
from tistream.ids import Tenant
from tistream.limits import FILE_BYTES_MAX
from tistream.objectstore.layout import BatchKey, buffer_prefix, parse

TENANT = Tenant(1, 1)
Files = dict[BatchKey, Path]


def batch_files(bucket: Path) -> Files:
    """Every batch file of the tenant, in key order."""
    files = {}
    for path in sorted((bucket / buffer_prefix(TENANT)).rglob("*.seg")):
        key = parse(path.relative_to(bucket).as_posix())
        assert isinstance(key, BatchKey)
        files[key] = path
    return files


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory, recording: Path) -> Path:
    """A folder as `up` keeps it that holds the whole recording as batch files which nobody has read yet."""
    folder = tmp_path_factory.mktemp("damaged")
    data = folder / "data"
    bucket = data / "bucket"
    bucket.mkdir(parents=True)
    where = ("--catalog", f"sqlite:///{data}/catalog.db", "--object-store", f"file://{bucket}")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    meta = TiStreamProcess("meta", "--name", "meta-1", *where, log=folder / "meta.log")  # which activates the tenant
    with meta, TiStreamProcess("serve", "--port", str(port), *where, log=folder / "api.log") as api:
        wait_until_ready(api, url)
        register(url)
        args = ("push", "--capture", str(recording), "--url", url, "-c", "1", "-t", "1", "--speed", "max")
        with TiStreamProcess(*args, log=folder / "push.log") as pusher:
            assert pusher.wait(60) == 0, pusher.output()
        assert (meta.stop(), api.stop()) == (0, 0)
    return folder


def torn(good: bytes, _: Files) -> bytes:
    """The tail is missing, as after a crash of a file system without the right syncs."""
    return good[: len(good) // 2]


def cut_to_nothing(_: bytes, __: Files) -> bytes:
    return b""


def bit_flipped(good: bytes, _: Files) -> bytes:
    damaged = bytearray(good)
    damaged[30] ^= 0x10  # within the first segment, which begins behind the 8 bytes of magic
    return bytes(damaged)


def footer_flipped(good: bytes, _: Files) -> bytes:
    damaged = bytearray(good)
    damaged[-40] ^= 0x01
    return bytes(damaged)


def of_another_tenant(good: bytes, files: Files) -> bytes:
    """The same bytes as a pusher of tenant 1/2 would have written them, checksums and all."""
    key = next(k for k, path in files.items() if path.read_bytes() == good)
    file = decode_batch_file(key, good)
    foreign = BatchKey(tenant=Tenant(1, 2), store_id=key.store_id, incarnation=key.incarnation, seq=key.seq)
    return encode_batch_file(foreign, cut_ts=file.cut_ts, rows=file.rows, regions=file.regions, write_id=file.write_id)


def of_another_store(_: bytes, files: Files) -> bytes:
    other = max(key.store_id for key in files)
    return next(path for key, path in files.items() if key.store_id == other).read_bytes()


def of_another_tick(good: bytes, files: Files) -> bytes:
    """A whole, well-formed file of the same store, one tick on."""
    key = next(k for k, path in files.items() if path.read_bytes() == good)
    return files[BatchKey(tenant=TENANT, store_id=key.store_id, incarnation=1, seq=key.seq + 1)].read_bytes()


#: how a file is damaged, where the refusal must point, and a word that it must hold
DAMAGES: list[tuple[Callable[[bytes, Files], bytes], str, str]] = [
    (torn, "frame", "torn"),
    (cut_to_nothing, "frame", "too short"),
    (bit_flipped, "0", "checksum of a segment"),
    (footer_flipped, "footer", "checksum of the footer"),
    (of_another_tenant, "footer", "another key"),
    (of_another_store, "footer", "another key"),
    (of_another_tick, "footer", "another key"),
]


def resolved(url: str) -> int:
    with client(url) as c:
        return int(c.get("/v1/clusters/1/tenants/1")["resolved_ts"])


def test_damaged_files_hold_the_log_up_and_nothing_is_lost(pushed: Path, expected: Path, last_resolved_ts: int) -> None:
    bucket = pushed / "data" / "bucket"
    files = batch_files(bucket)
    store = min(key.store_id for key in files)
    of_store = [key for key in files if key.store_id == store]
    hurt = of_store[4 :: len(of_store) // (len(DAMAGES) + 2)][: len(DAMAGES) + 1]
    good = {key: files[key].read_bytes() for key in hurt}
    cut_ts = {key: decode_batch_file(key, good[key]).cut_ts for key in hurt}
    bad = {key: damage(good[key], files) for key, (damage, *_) in zip(hurt, DAMAGES, strict=False)}
    for key, data in bad.items():
        assert data != good[key]
        files[key].write_bytes(data)
    os.truncate(files[hurt[-1]], FILE_BYTES_MAX + 1)  # sparse: it takes no room on disk
    refusals = [(segment, words) for _, segment, words in DAMAGES] + [("frame", "too large")]
    with Up(pushed) as up:
        last = 0
        for key, (segment, words) in zip(hurt, refusals, strict=True):
            problem = problem_of(up.url, str(key))
            assert problem["code"] == "TS-1020"
            assert problem["facts"]["segment"] == segment
            assert 0 <= int(problem["facts"]["offset"]) <= files[key].stat().st_size
            assert words in problem["message"]
            assert not problem["fatal"]
            standing = resolved(up.url)
            assert last <= standing < cut_ts[key], "the watermark passed a file that could not be read"
            last = standing
            repaired = files[key].with_suffix(".repaired")
            repaired.write_bytes(good[key])
            repaired.replace(files[key])
        body = pull_all(up.url, last_resolved_ts, format="canal-json", **CANAL)
        assert compare_canal(expected, body.splitlines()) > 12_000
        assert last < resolved(up.url) == last_resolved_ts
        with client(up.url) as c:
            well = {"status": "ok", "problems": []}
            eventually(lambda: well.items() <= c.get("/healthz").items(), lambda: c.get("/healthz"))
