"""Makes the C library keep freed memory for the next batch.

A sorter allocates and frees arrays of megabytes for every batch and every flush. By default glibc returns them to the
system, which clears the pages at the next allocation: about a tenth of a sorter's processor time. Kept memory is
bounded: KEEP_BYTES at the end of the main heap, and 64 MiB for each further arena.
"""

from __future__ import annotations

import ctypes
import sys

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
