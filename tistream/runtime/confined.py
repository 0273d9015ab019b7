"""Runs a function on foreign bytes in a process of its own, with bounds for memory and time.

    answer = confined("schemas.registry.pushed:saved", data, memory_bytes=1 << 30, seconds=300)

For bytes whose cost is not known before they are parsed. Whatever they do there (take all memory, overflow the stack,
never end) is one CorruptObject here. The function takes bytes and returns bytes; the process begins with nothing but
its module, so it costs a start of Python, and is for large inputs only.

    stdin    the bytes
    stdout   "+" and the answer, or "-" and the error as JSON

At most CONFINED_MAX run at once; others wait. The memory is what the process may take beyond its imports (RLIMIT_AS).
The time is that of its processor as well (RLIMIT_CPU), which also ends a process whose parent has died.
"""

from __future__ import annotations

import gc
import importlib
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import orjson

from tistream.errors import CorruptObject, TiStreamError
from tistream.limits import CONFINED_MAX

_ANSWER, _ERROR = b"+", b"-"
_CAUSE_CHARS_MAX = 500
_running = threading.BoundedSemaphore(CONFINED_MAX)
_NICENESS = 5  #: the service itself goes first
#: one thread and one heap: others take address space
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


def confined(function: str, data: bytes, *, memory_bytes: int, seconds: float) -> bytes:
    """What `function` ("module:name") answers. CorruptObject that it raised, or when it exceeded a bound."""
    command = [sys.executable, "-m", __name__, function, str(memory_bytes), str(seconds)]
    with (
        _running,
        subprocess.Popen(  # noqa: S603 - this interpreter, and a function that the program names
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **_ENVIRONMENT},
        ) as process,
    ):
        try:
            said, trace = process.communicate(data, timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise CorruptObject(f"parsing it takes more than {seconds:.0f} s") from None
        except BaseException:
            process.kill()
            raise
    if process.returncode == 0 and said[:1] == _ANSWER:
        return said[1:]
    if process.returncode == 0 and said[:1] == _ERROR:
        error = orjson.loads(said[1:])
        raise CorruptObject(error["message"], **error["facts"])
    cause = trace.decode(errors="replace")[-_CAUSE_CHARS_MAX:]
    raise CorruptObject(
        f"the process that parsed it ended with {process.returncode}; it may take {memory_bytes >> 20} MiB", cause=cause
    )


def main(function: str, memory_bytes: int, seconds: float) -> None:
    """In the process: import, take the bounds, answer."""
    module, _, name = function.partition(":")
    run: Callable[[bytes], bytes] = getattr(importlib.import_module(module), name)
    os.nice(_NICENESS)
    gc.disable()  # it would look at millions of objects again and again, and the process ends soon
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (bound := pages * resource.getpagesize() + memory_bytes, bound))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))
    sys.stdout.buffer.write(_answered(run, memory_bytes))
    sys.stdout.buffer.flush()


def _answered(run: Callable[[bytes], bytes], memory_bytes: int) -> bytes:
    try:
        return _ANSWER + run(sys.stdin.buffer.read())
    except TiStreamError as error:
        message, facts = error.message, {name: str(value) for name, value in error.facts.items()}
    except MemoryError:
        message, facts = f"parsing it takes more than {memory_bytes >> 20} MiB of memory", {}
    except RecursionError:
        message, facts = "it is nested too deeply", {}
    return _ERROR + orjson.dumps({"message": message, "facts": facts})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
