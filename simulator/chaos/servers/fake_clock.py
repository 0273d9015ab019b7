"""A settable wall clock for a process: libfaketime's, from Debian's package `libfaketime`.

The monotonic clock is not affected, as when an operator sets a machine's time.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = "libfaketime"
_LIBRARIES = "/usr/lib/*/faketime/libfaketimeMT.so.1"


class FakeClockError(RuntimeError):
    """The library is not installed."""


class FakeClock:
    """The clock of the processes that are started with its `environment`."""

    def __init__(self, file: Path) -> None:
        """`file` is the clock's own."""
        libraries = sorted(Path("/").glob(_LIBRARIES.removeprefix("/")))
        if not libraries:
            raise FakeClockError(f"{PACKAGE} is missing; install it with: apt-get install -y {PACKAGE}")
        self._file = file
        self.environment = {
            "LD_PRELOAD": str(libraries[0]),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_CACHE_DURATION": "1",  # seconds until every process has noticed a change
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_RESET": "1",
        }
        self.shift(0)

    def shift(self, seconds: float) -> None:
        """From now on the clock shows so much more than the machine's."""
        beside = self._file.with_suffix(".new")
        beside.write_text(f"{seconds:+.0f}")
        beside.replace(self._file)
