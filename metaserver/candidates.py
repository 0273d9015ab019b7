"""Selects the tenants whose tasks may be split or merged, from data in memory (pure).

    split    a tenant with a data task that is hot by its owner's report
    merge    a tenant with more than tasks_min data tasks, of which the two with the least traffic are cold together

For any other tenant `reshape.Reshaper` would do nothing, except for requested merges, which only the catalog knows. So
a round reads few of 100,000 tasks.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from metaserver.inventory import Columns
from metaserver.reshape import ReshapeSettings
from tistream.catalog.rows.reports import TaskReport
from tistream.ids import Tenant


def candidates(
    columns: Columns, reports: Iterable[tuple[str, TaskReport]], settings: ReshapeSettings
) -> frozenset[Tenant]:
    """`columns`: all tasks with their owners; `reports`: (worker id, task report) of live workers."""
    rates = np.full(len(columns.rows), np.inf)
    for worker, report in reports:
        at = columns.index.get(report.task_id)
        if at is not None and columns.owners[at] == worker and columns.rows[at].epoch == report.epoch:
            rates[at] = report.bytes_per_s
    reported = np.flatnonzero((columns.group >= 0) & np.isfinite(rates))
    if not len(reported):
        return frozenset()
    order = reported[np.lexsort((rates[reported], columns.group[reported]))]
    group, rate = columns.group[order], rates[order]  # by tenant, then least traffic first
    first = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    last = np.r_[first[1:], len(group)] - 1
    hot = (rate[last] >= settings.split_bytes_per_s) & (settings.split_bytes_per_s > 0)
    two = rate[first] + np.where(last > first, rate[np.minimum(first + 1, last)], np.inf)
    crowded = np.bincount(columns.group[columns.group >= 0])[group[first]] > settings.tasks_min
    cold = crowded & (two <= settings.merge_bytes_per_s) & (settings.merge_bytes_per_s > 0)
    return frozenset(columns.rows[at].tenant for at in order[first[hot | cold]])
