"""Reads hostile objects in a process of its own and says what became of each, and how much memory it took.

python -m tests.kit.hostile_reader FOLDER     files named KIND.NAME; a line of JSON for each
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from tests.kit.hostile_bytes import GIB, read

MEMORY_BYTES = 2 * GIB  #: of address space; an attack that gets through ends this process, not the machine


def peak_mib(who: int) -> int:
    return resource.getrusage(who).ru_maxrss >> 10


def main(folder: Path) -> None:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    bound = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (bound, resource.RLIM_INFINITY))
    for path in sorted(folder.iterdir()):
        kind, _, name = path.name.partition(".")
        data, before, began = path.read_bytes(), peak_mib(resource.RUSAGE_SELF), time.monotonic()
        try:
            read(kind, data)
            became = "used"
        except Exception as error:  # noqa: BLE001 - whatever it is, the test compares it
            became = f"{type(error).__name__}: {error}"
        said = {
            "name": name,
            "became": became,
            "mib": peak_mib(resource.RUSAGE_SELF) - before,
            "process_mib": peak_mib(resource.RUSAGE_CHILDREN),
            "seconds": round(time.monotonic() - began, 1),
        }
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
