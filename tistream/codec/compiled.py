"""Compiles numba kernels and passes Arrow's memory to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tistream.codec import kernel_cache

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile at first call, without the interpreter lock, with a cache on disk where one can be written."""
    compiled = numba.njit(nogil=True)(function)
    kernel_cache.attach(compiled)
    return cast(F, compiled)


def view(buffer: Any, dtype: type[np.generic]) -> npt.NDArray[Any]:
    """A read-only view of a buffer. (Writable arrays would compile every kernel a second time.)"""
    array = np.frombuffer(b"" if buffer is None else buffer, dtype)
    array.flags.writeable = False
    return array


@intrinsic  # type: ignore[untyped-decorator]
def copy_bytes(typing: Any, target: Any, source: Any, size: Any) -> Any:
    """memcpy between two addresses, for compiled code that has checked both."""

    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        to, at = (builder.inttoptr(a, cgutils.voidptr_t) for a in args[:2])
        cgutils.raw_memcpy(builder, to, at, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint64), code
