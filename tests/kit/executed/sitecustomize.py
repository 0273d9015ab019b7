"""Loaded by every Python process that has this folder in PYTHONPATH: notes which functions of this repository it calls.

Every half second, and at its end, the process writes `<module file> <qualified name>` lines into `$EXECUTED_OUT.<pid>`.
Only the standard library is imported here: the process under test must load everything else as it does without.
"""

import atexit
import os
import sys
import threading
import time
from types import CodeType, FrameType
from typing import Any

_EVERY_S = 0.5


def note_calls(out: str, root: str) -> None:
    """Begin; `root` is the folder of the repository."""
    called: set[CodeType] = set()

    def profile(frame: FrameType, event: str, _arg: Any) -> None:
        if event == "call":
            called.add(frame.f_code)

    def save() -> None:
        ours = [code for code in called.copy() if code.co_filename.startswith(root)]
        lines = sorted({f"{code.co_filename.removeprefix(root)} {code.co_qualname}\n" for code in ours})
        with open(f"{out}.{os.getpid()}.new", "w", encoding="utf-8") as file:
            file.writelines(line for line in lines if not line.startswith(".venv/"))
        os.replace(file.name, f"{out}.{os.getpid()}")

    def save_often() -> None:
        sys.setprofile(None)
        size = 0
        while True:
            time.sleep(_EVERY_S)
            if len(called) != size:
                size = len(called)
                save()

    atexit.register(save)
    threading.Thread(target=save_often, daemon=True).start()  # services end without the functions of `atexit`
    threading.setprofile(profile)
    sys.setprofile(profile)


if "EXECUTED_OUT" in os.environ:
    note_calls(os.environ["EXECUTED_OUT"], os.environ["EXECUTED_ROOT"])
