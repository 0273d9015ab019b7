"""The peer of the whole sorter: Pebble with the options of TiCDC's event store, written, flushed and scanned in order.

The program is pebble/main.go; it is built with the machine's Go, which fetches Pebble. It gets the same rows as the
sorter, already matched and in memory, in the order of their transactions' starts, writes them in batches without a log,
flushes, and scans and decodes all of them in order. It neither receives, matches, nor publishes rows.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

_SOURCE = Path(__file__).parent / "pebble"
_BUILD_S = 600.0
_RUN_S = 300.0
_RECORD = struct.Struct("<IIIqQQB")
_NONE = 0xFFFFFFFF
_COLUMNS = ("key", "value", "old_value", "table_id", "start_ts", "commit_ts", "op")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRun:
    """What the peer needed, in processor seconds of all its threads."""

    rows: int
    write_s: float
    scan_s: float

    @property
    def rows_per_core(self) -> float:
        """Rows a second that a core writes and scans."""
        return self.rows / (self.write_s + self.scan_s)


class PebblePeer:
    """The built program and its rows, in a folder. FileNotFoundError without Go, CalledProcessError when it does not
    build."""

    def __init__(self, folder: Path, rows: pa.Table) -> None:
        self._program, self._rows = folder / "peer", folder / "rows"
        source = folder / "source"
        shutil.copytree(_SOURCE, source)
        for command in (["go", "mod", "tidy"], ["go", "build", "-o", str(self._program), "."]):
            subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=_BUILD_S)
        columns = [rows.sort_by("start_ts")[name].to_pylist() for name in _COLUMNS]
        with self._rows.open("wb") as f:
            for key, value, old_value, *numbers in zip(*columns, strict=True):
                lengths = [_NONE if part is None else len(part) for part in (key, value, old_value)]
                f.write(_RECORD.pack(*lengths, *numbers) + key + (value or b"") + (old_value or b""))

    def measure(self) -> PeerRun:
        """One run. ValueError when its scan has not met every row once and in order."""
        with tempfile.TemporaryDirectory() as folder:
            command = [str(self._program), str(self._rows), folder]
            told = subprocess.run(command, check=True, capture_output=True, timeout=_RUN_S).stdout
        found = json.loads(told)
        if not found["whole"]:
            raise ValueError("the peer's scan has not met every row once and in order")
        return PeerRun(rows=found["rows"], write_s=found["write_s"], scan_s=found["scan_s"])
