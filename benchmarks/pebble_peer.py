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
from dataclasses import dataclass, fields
from pathlib import Path

import pyarrow as pa

_SOURCE = Path(__file__).parent / "pebble"
_BUILD_S = 600.0
_RUN_S = 600.0
_CHUNK_ROWS = 100_000
_COMPACTED_MIN = 1.0  # its cost per row rises until then
_RECORD = struct.Struct("<IIIqQQB")
_NONE = 0xFFFFFFFF
_COLUMNS = ("key", "value", "old_value", "table_id", "start_ts", "commit_ts", "op")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRun:
    """The peer's processor seconds, of all its threads."""

    rows: int
    write_s: float
    scan_s: float
    compacted: float  #: bytes for each byte flushed

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
        with self._rows.open("wb") as f:
            for batch in rows.sort_by("start_ts").to_batches(max_chunksize=_CHUNK_ROWS):
                for key, value, old_value, *numbers in zip(*(batch[c].to_pylist() for c in _COLUMNS), strict=True):
                    lengths = [_NONE if part is None else len(part) for part in (key, value, old_value)]
                    f.write(_RECORD.pack(*lengths, *numbers) + key + (value or b"") + (old_value or b""))

    def measure(self) -> PeerRun:
        """One run. ValueError when its scan has not met every row once and in order, or it has hardly compacted."""
        with tempfile.TemporaryDirectory() as folder:
            command = [str(self._program), str(self._rows), folder]
            output = subprocess.run(command, check=True, capture_output=True, timeout=_RUN_S).stdout
        figures = json.loads(output)
        if not figures["whole"]:
            raise ValueError("the peer's scan has not met every row once and in order")
        run = PeerRun(**{field.name: figures[field.name] for field in fields(PeerRun)})
        if run.compacted < _COMPACTED_MIN:
            raise ValueError(f"the peer has compacted {run.compacted:.2f} bytes for each it flushed: give it more rows")
        return run
