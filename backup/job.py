"""A backup: parts of a key range, each from a source of pairs into files, and at the end the manifest.

    part 0 ── scan ──> files 0      several parts at once
    part 1 ── scan ──> files 1      ...                       all done ──> backup.json

A backup that is not finished has no manifest and is not used; begin it again in another folder.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace

import pyarrow as pa

from backup.core.manifest import NAME, BackupFile, Manifest, encode_manifest, read_manifest
from backup.core.pairs import size_of
from backup.files import FileWriter, check_file
from tistream.errors import InvalidInput, ObjectNotFound
from tistream.keyrange import KeyRange
from tistream.objectstore.protocol import ObjectStore
from tistream.runtime.rate_limiter import RateLimiter

Scan = Callable[[KeyRange], Iterator[pa.Table]]
"""Pairs of a range of user keys, by key."""

Progress = Callable[[int, int], None]
"""(parts done, parts)."""


def check_empty(store: ObjectStore) -> None:
    """InvalidInput when something is there: a backup never mixes with another."""
    first = next(iter(store.list("")), None)
    if first is not None:
        raise InvalidInput("The storage of a new backup must be empty.", object=first.key, option="storage")


def open_backup(store: ObjectStore) -> Manifest:
    """The manifest of a complete backup. InvalidInput when there is none."""
    try:
        return read_manifest(store.get(NAME))
    except ObjectNotFound as e:
        raise InvalidInput(f"There is no complete backup: {NAME} is missing.", option="storage") from e


def write_backup(
    store: ObjectStore,
    parts: Sequence[KeyRange],
    scan: Scan,
    about: Manifest,
    *,
    rate: RateLimiter,
    stop: threading.Event,
    threads: int = 1,
    progress: Progress = lambda done, parts: None,
    inexact: Callable[[], int] = lambda: 0,
) -> Manifest:
    """Write the pairs of all parts, which are in key order; `about` says the rest and has no files.
    `inexact`: how many keys had a state that was not known. Raises the error of
    the part that failed first, after the others have stopped."""
    done: dict[int, Sequence[BackupFile]] = {}

    def back_up(number: int) -> None:
        writer = FileWriter(store, number)
        for pairs in scan(parts[number]):
            rate.take(size_of(pairs))
            writer.add(pairs)
        writer.finish()
        done[number] = writer.files
        progress(len(done), len(parts))

    in_threads(back_up, len(parts), threads, stop)
    files = tuple(file for number in range(len(parts)) for file in done[number])
    manifest = replace(about, files=files, inexact=inexact())
    store.put(NAME, encode_manifest(manifest))
    return manifest


def check_backup(
    store: ObjectStore,
    manifest: Manifest,
    *,
    stop: threading.Event,
    threads: int = 1,
    progress: Progress = lambda done, parts: None,
) -> None:
    """Read every file and compare it with the manifest. CorruptObject with object and place."""
    count = 0

    def check(number: int) -> None:
        nonlocal count
        if not stop.is_set():
            check_file(store, manifest.files[number])
        count += 1
        progress(count, len(manifest.files))

    in_threads(check, len(manifest.files), threads, stop)


def in_threads(work: Callable[[int], None], count: int, threads: int, stop: threading.Event) -> None:
    """Do the work for 0 .. count - 1. After an error `stop` is set, what has not begun is left out, and the error is
    raised."""
    with ThreadPoolExecutor(threads, thread_name_prefix="backup") as pool:
        futures = [pool.submit(work, number) for number in range(count)]
        try:
            over, left = wait(futures, return_when=FIRST_EXCEPTION)
            if left or any(future.exception() for future in over):
                stop.set()
                for future in left:
                    future.cancel()
        except BaseException:  # Ctrl-C
            stop.set()
            for future in futures:
                future.cancel()
            raise
    failed = [error for future in over if (error := future.exception()) is not None]
    if failed:
        raise failed[0]
