"""Joins the states of neighbouring ranges into one, the reverse of loading a part of a snapshot.

    [a, m) state + [m, z) state  ->  [a, z) state

Keys never meet across a cut: rows match by key, W(key) rises slice by slice, duplicates share a key. So the joined
state is what one core over the whole range would have, provided that all states have consumed the same files and are
written out up to the same timestamp. Rows stay in their groups; a group that several states share becomes one again,
with the rows of all.

Pure; no rows are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from sorter.core import promised
from sorter.core.task_core import CoreSnapshot
from sorter.core.watermark import RangeWatermarkMap
from sorter.rows.saved import SUBSCRIPTION_ID, Group, RunState, SavedRun, states_of
from sorter.state.snapshot import ROW_KINDS
from tistream.errors import invariant
from tistream.keyrange import KeyRange
from tistream.model.arrays import Mask


def joined(range_: KeyRange, states: Sequence[CoreSnapshot]) -> CoreSnapshot:
    """The state of `range_` from those of its parts, in key order, as they were read from their files."""
    first = states[0]
    for other in states[1:]:
        same = (other.start_ts, other.durable_ts, other.positions) == (
            first.start_ts,
            first.durable_ts,
            first.positions,
        )
        invariant(
            same,
            "the parts of a task are not at the same position",
            durable_timestamps=[state.durable_ts for state in states],
        )
    late_ready = pl.concat([state.late_ready for state in states]).unique(
        SUBSCRIPTION_ID, keep="first", maintain_order=True
    )
    watermarks = RangeWatermarkMap(range_, first.start_ts, durable_ts=first.durable_ts)
    watermarks.restore(
        pa.concat_tables([state.slices for state in states]), pa.concat_tables([state.waiting for state in states])
    )
    slices, waiting = watermarks.snapshot()
    runs = {
        kind: states_of(
            SavedRun(group, alive, late_ready)
            for group, alive in _groups(run for state in states for run in getattr(state, kind))
        )
        for kind in ROW_KINDS
    }
    return CoreSnapshot(
        start_ts=first.start_ts,
        durable_ts=first.durable_ts,
        positions=first.positions,
        next_row_no=max(state.next_row_no for state in states),
        late_ready=late_ready,
        slices=slices,
        waiting=waiting,
        promised=promised.joined([state.promised for state in states]),
        **runs,
    )


def _groups(runs: Iterable[RunState]) -> list[tuple[Group, Mask]]:
    """Each group once, and which of its rows are alive in any state."""
    groups: dict[tuple[str, int], tuple[Group, Mask]] = {}
    for run in runs:
        for piece in run.saved:
            invariant(piece.rows is None and not piece.first, "only states read from files can be joined")
            at = piece.group.object_key, piece.group.parts["keys"].offset
            group, alive = groups.get(at, (piece.group, np.zeros(piece.group.rows, np.bool_)))
            groups[at] = group, alive | run.alive
    return list(groups.values())
