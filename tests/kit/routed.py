"""Batches as a dispatcher sends them: cut to one task's range by the real router.

A sorter core that is fed with whole files never meets what follows from the cut: rows are numbered anew in each task,
regions reach over the ends of its range, and a file may hold nothing for it. So every test that feeds a core goes
through here.
"""

from __future__ import annotations

from dataclasses import replace

from dispatcher.core.router import directory, route
from tistream.feed.protocol import FeedBatch
from tistream.keyrange import KeyRange


def routed(batch: FeedBatch, range_: KeyRange) -> FeedBatch:
    """The rows and regions of a whole file that concern the range. News of an ended incarnation has none."""
    if batch.closes:
        return batch
    cut = route(directory(batch.rows, batch.regions), range_)
    return replace(batch, rows=cut.rows, regions=cut.regions)
