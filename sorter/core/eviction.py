"""Counts the memory of a task's runs and spills the oldest to disk.

Runs may share the segments that hold their bytes, but not their numbers (timestamps, hashes, references, indexes). Both
are immutable, so both can be on disk. The bytes of the oldest rows go first, then the numbers of the oldest runs.
Small items are written together, because a file costs the same however little it holds.

These always stay in memory: the alive flags (one byte per row), a last group below SPILL_BYTES_MIN, and the groups of
rows by slice (`reach`), which are dropped when everything else has been spilled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol, TypeVar

import numpy.typing as npt
import pyarrow as pa

from sorter.rows.run import Run

SPILL_BYTES_MIN = 1 << 20  #: a smaller file is not worth it
FILE_BYTES = 32 << 20  #: of one file, about; its space is freed when its last row leaves

T = TypeVar("T")


class Disk(Protocol):
    """Where evicted bytes go. When it raises, everything stays as it was."""

    def write(self, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The same rows, memory-mapped."""
        ...

    def write_arrays(self, arrays: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """The same arrays, memory-mapped."""
        ...


def held_bytes(runs: Iterable[Run], *, on_disk: bool = False) -> int:
    """Bytes of the runs in memory, or on disk; shared segments count once."""
    segments: dict[int, int] = {}
    total = 0
    for run in runs:
        segments |= {id(s): s.disk_bytes if on_disk else s.memory_bytes for s in run.segments()}
        total += run.numbers_bytes(on_disk=on_disk)
    return total + sum(segments.values())


def evict(runs: Sequence[Run], disk: Disk, wanted: int) -> int:
    """Spill the oldest runs until `wanted` bytes of memory are free or nothing is left to spill; the bytes freed. An
    error of `disk` leaves the remaining runs unchanged."""
    freed = 0
    segments = {id(s): s for run in runs for s in run.segments() if s.memory_bytes}
    for group in _grouped([(s, s.memory_bytes) for s in segments.values()]):
        if freed >= wanted:
            return freed
        parts = [s.in_memory() for s, _ in group]
        written = iter(disk.write([batch for of_one in parts for batch in of_one]))
        moved = {
            id(s): s.spilled(list(islice(written, len(of_one))))
            for (s, _), of_one in zip(group, parts, strict=True)
            if of_one
        }
        for run in runs:
            run.exchange(moved)
        freed += sum(size for _, size in group)
    arrays = [((run, array), array.nbytes) for run in runs for array in run.arrays_in_memory()]
    for some in _grouped(arrays):
        if freed >= wanted:
            return freed
        mapped = disk.write_arrays([array for (_, array), _ in some])
        new = {id(array): there for ((_, array), _), there in zip(some, mapped, strict=True)}
        for run in {id(run): run for (run, _), _ in some}.values():
            run.exchange_arrays(new)
        freed += sum(size for _, size in some)
    for run in runs if freed < wanted else ():
        freed += run.forget_reach()
    return freed


def _grouped(sized: Sequence[tuple[T, int]]) -> Iterator[list[tuple[T, int]]]:
    """Groups of about FILE_BYTES in the given order; a last one below SPILL_BYTES_MIN is skipped."""
    group: list[tuple[T, int]] = []
    size = 0
    for item, item_bytes in sized:
        group.append((item, item_bytes))
        size += item_bytes
        if size >= FILE_BYTES:
            yield group
            group, size = [], 0
    if group and size >= SPILL_BYTES_MIN:
        yield group
