"""How numba kernels are compiled, and how Arrow's memory is handed to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile at first call, without the interpreter lock, with a cache on disk where one can be written."""
    try:
        return cast(F, numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:  # numba found no folder that it may write to
        return cast(F, numba.njit(nogil=True)(function))


def view(buffer: Any, dtype: type[np.generic]) -> npt.NDArray[Any]:
    """A read-only view of a buffer, whoever made it: writable arrays would have every kernel compiled a second time."""
    found = np.frombuffer(b"" if buffer is None else buffer, dtype)
    found.flags.writeable = False
    return found
