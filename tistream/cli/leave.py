"""The end of a process that has closed its parts."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import NoReturn


def leave(status: int) -> NoReturn:
    """End the process without finalizing the interpreter and the libraries. A thread that still waits inside a library
    for its peer would return into a finalized interpreter, and one of a library's own pool may not survive the end of
    its pool: either crashes the process."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed before the process began
            with suppress(OSError, ValueError):  # its reader is gone, or it is closed
                stream.flush()
    os._exit(status)
