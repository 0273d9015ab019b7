"""What a process has freed stays with it, so that the next array of the same size costs the system nothing."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import resource, numpy as np
from tistream.cli.allocator import keep_freed_memory
assert not {keep} or keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def fill():
    for _ in range(4):
        arrays = [np.ones(3 << 20, np.uint8) for _ in range(16)]
        del arrays
fill()
before = faults()
fill()
print(faults() - before)
"""


def test_freed_memory_is_used_again() -> None:
    with_setting, without = (
        int(subprocess.run([sys.executable, "-c", _PROGRAM.format(keep=keep)], check=True, capture_output=True).stdout)
        for keep in (True, False)
    )
    assert with_setting * 10 < without
