"""Checks of recordings by `tistream push --check`."""

from __future__ import annotations

from pathlib import Path

from simulator.capture import Capture
from simulator.playback.recording import read_recording
from tistream.diagnostics.findings import Finding, ok


def check_capture(folder: Path) -> Finding:
    """The recorded change stream in `folder` is complete."""
    capture = Capture(folder)
    capture.schema_snapshot()
    meta = capture.meta
    words = f"{folder}: {meta.workload}, {meta.ticks:,} ticks of {len(meta.store_ids)} stores"
    return ok(words, start_ts=str(meta.start_ts), last_resolved_ts=str(meta.last_resolved_ts))


def check_recording(folder: Path) -> Finding:
    """The recorded traffic in `folder` can be played back."""
    recording = read_recording(folder)
    words = f"{folder}: the traffic of a cluster of {len(recording.stores)} stores, {len(recording.lines):,} messages"
    return ok(words, start_ts=str(recording.start_ts))
