"""Whether two schema histories of one tenant say the same (pure).

Two servers, or two releases, may have built and packed one history in different ways: from another saved object, with
an earlier or a later start, or with other words in the events. What counts is what it answers: which definition each
table has at which timestamp.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from schemas.ddl import Change
from schemas.history import History


def contradiction(mine: History, theirs: History) -> str:
    """The first thing in which they differ, as text; empty when they agree wherever both know something."""
    if mine.resolved_ts != theirs.resolved_ts:
        return f"it is complete up to {theirs.resolved_ts}, and not {mine.resolved_ts}"
    if mine.start_ts == theirs.start_ts and mine.dump() == theirs.dump():
        return ""
    since_ts = max(mine.start_ts, theirs.start_ts)
    for ours, other in itertools.zip_longest(_effects(mine, since_ts), _effects(theirs, since_ts)):
        if ours != other:
            first = min((change for change in (ours, other) if change is not None), key=lambda change: change.commit_ts)
            return f"it differs in what job {first.job_id} did at {first.commit_ts}"
    if mine.snapshot(since_ts) != theirs.snapshot(since_ts) or mine.job_table != theirs.job_table:
        return f"its tables differ at {since_ts}"
    return ""


def _effects(history: History, after_ts: int) -> list[Change]:
    """The changes of definitions, without what depends on how the history was built."""
    bare = (replace(change, events=(), names=(), older=()) for change in history.changes(after_ts))
    return [c for c in bare if c.drop_databases or c.drop_tables or c.put_databases or c.put_tables or c.unlogged]
