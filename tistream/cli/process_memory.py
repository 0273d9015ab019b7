"""What keeps a process fast and small: freed memory stays for the next batch, and pandas is not imported.

A sorter allocates and frees arrays of megabytes for every batch and every flush. By default glibc returns them to the
system, which clears the pages at the next allocation: about a tenth of a sorter's processor time. Kept memory is
bounded: KEEP_BYTES at the end of the main heap, and 64 MiB for each further arena.

Before pyarrow makes its first array it imports pandas, where that is installed (Spark needs it), to know a pandas
column when it is given one: a third of a second of processor time and 40 MiB, in every process of a service. It asks
once only. A later conversion to or from pandas still imports it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from types import ModuleType

KEEP_BYTES = 256 << 20
OWN_PIECE_BYTES = 32 << 20  #: larger allocations are always returned; glibc accepts no larger bound
GROW_BYTES = 16 << 20

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of mallopt(3)


def keep_freed_memory() -> bool:
    """For this process; False when the C library has no such setting."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    settings = {_TRIM_THRESHOLD: KEEP_BYTES, _MMAP_THRESHOLD: OWN_PIECE_BYTES, _TOP_PAD: GROW_BYTES}
    return all(mallopt(name, value) for name, value in settings.items())


class _Absent:
    """Finds modules as if pandas were not installed."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("kept out", name=name)


def keep_pandas_out() -> None:
    """For this process. It has no effect after pyarrow's first array."""
    import pyarrow as pa

    sys.meta_path.insert(0, _Absent)
    try:
        pa.array([None])
    finally:
        sys.meta_path.remove(_Absent)
