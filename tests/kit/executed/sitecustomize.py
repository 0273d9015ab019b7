"""Loaded by every Python process that has this folder in PYTHONPATH: notes which functions of this repository it calls.

Every half second, and at its end, the process writes `<module file> <qualified name>` lines into `$EXECUTED_OUT.<pid>`.
With `EXECUTED_BY=cprofile` the standard library's profiler in C looks, which is four times as fast, at the first thread
alone, and only at the end. Only the standard library is imported here: the process under test must load everything else
as it does without.
"""

import atexit
import cProfile
import os
import sys
import threading
import time
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import Any

_EVERY_S = 0.5


def save(called: Iterable[CodeType], out: str, root: str) -> None:
    """Replace the file of this process."""
    ours = [code for code in called if code.co_filename.startswith(root)]
    lines = sorted({f"{code.co_filename.removeprefix(root)} {code.co_qualname}\n" for code in ours})
    with open(f"{out}.{os.getpid()}.new", "w", encoding="utf-8") as file:
        file.writelines(line for line in lines if not line.startswith(".venv/"))
    os.replace(file.name, f"{out}.{os.getpid()}")


def note_calls_of_one_thread(out: str, root: str) -> None:
    """Begin, for a process without other threads."""
    profiler = cProfile.Profile(builtins=False, subcalls=False)

    def end() -> None:
        profiler.disable()
        save([entry.code for entry in profiler.getstats() if not isinstance(entry.code, str)], out, root)

    atexit.register(end)
    profiler.enable()


def note_calls(out: str, root: str) -> None:
    """Begin; `root` is the folder of the repository."""
    called: set[CodeType] = set()

    def profile(frame: FrameType, event: str, _arg: Any) -> None:
        if event == "call":
            called.add(frame.f_code)

    def save_often() -> None:
        sys.setprofile(None)
        size = 0
        while True:
            time.sleep(_EVERY_S)
            if len(called) != size:
                size = len(called)
                save(called.copy(), out, root)

    atexit.register(lambda: save(called, out, root))
    threading.Thread(target=save_often, daemon=True).start()  # services end without the functions of `atexit`
    threading.setprofile(profile)
    sys.setprofile(profile)


if "EXECUTED_OUT" in os.environ:
    begin = note_calls_of_one_thread if os.environ.get("EXECUTED_BY") == "cprofile" else note_calls
    begin(os.environ["EXECUTED_OUT"], os.environ["EXECUTED_ROOT"])
