"""What the runs of a task take of the memory, and what leaves it for the disk, in which order.

A run's bytes lie in segments, which several runs may share; its numbers (timestamps, hashes, places, indexes) are its
own. Both never change, so both may lie on the disk. First the bytes of the oldest rows go, then, when that is not
enough, the numbers of the oldest runs. What is small is written together with its neighbours: a file costs the same
however little it holds.

What stays in memory whatever happens: the alive flags, one byte for each row; what is written last, below
SPILL_BYTES_MIN; and the groups of rows by slice (`reach`), which are given up when all else has gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol, TypeVar

import numpy.typing as npt
import pyarrow as pa

from sorter.rows.run import Run

SPILL_BYTES_MIN = 1 << 20  #: less than this is not worth a file
FILE_BYTES = 32 << 20  #: of one file, about: its space comes back when all of it has left

T = TypeVar("T")


class Disk(Protocol):
    """Where bytes go. What it raises leaves everything as it was."""

    def write(self, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The same rows, mapped."""
        ...

    def write_arrays(self, arrays: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """The same arrays, mapped."""
        ...


def held_bytes(runs: Iterable[Run], *, on_disk: bool = False) -> int:
    """What the runs hold in memory, or on the disk; each segment once."""
    segments: dict[int, int] = {}
    total = 0
    for run in runs:
        segments |= {id(s): s.disk_bytes if on_disk else s.memory_bytes for s in run.segments()}
        total += run.numbers_bytes(on_disk=on_disk)
    return total + sum(segments.values())


def evict(runs: Sequence[Run], disk: Disk, wanted: int) -> int:
    """Have the oldest runs' bytes and numbers written out until so much has left the memory, or nothing is left that
    could; how much it was. What the disk raises leaves the rest as it was."""
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


def _grouped(found: Sequence[tuple[T, int]]) -> Iterator[list[tuple[T, int]]]:
    """In order, about FILE_BYTES together; less than SPILL_BYTES_MIN is left out."""
    group: list[tuple[T, int]] = []
    size = 0
    for item, item_bytes in found:
        group.append((item, item_bytes))
        size += item_bytes
        if size >= FILE_BYTES:
            yield group
            group, size = [], 0
    if group and size >= SPILL_BYTES_MIN:
        yield group
