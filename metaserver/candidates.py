"""Which tenants are worth a look when tasks are split and merged: from what the meta server holds in memory (pure).

    split    a tenant with a data task that is hot by its present owner's report
    merge    a tenant with more than tasks_min data tasks, of which the two with the least traffic are cold together

What `reshape.Reshaper` would do for any other tenant is nothing, but for merges that are under way, which only the
catalog knows. So of 100,000 tasks a round reads those few that may change.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from metaserver.inventory import Columns
from metaserver.reshape import ReshapeSettings
from tistream.catalog.work.reports import TaskReport
from tistream.ids import Tenant


def candidates(
    columns: Columns, reports: Iterable[tuple[str, TaskReport]], settings: ReshapeSettings
) -> frozenset[Tenant]:
    """`columns` are all tasks with their present owners, `reports` what living workers (by id) say of theirs."""
    rates = np.full(len(columns.rows), np.inf)
    for worker, report in reports:
        at = columns.index.get(report.task_id)
        if at is not None and columns.owners[at] == worker and columns.rows[at].epoch == report.epoch:
            rates[at] = report.bytes_per_s
    said = np.flatnonzero((columns.group >= 0) & np.isfinite(rates))
    if not len(said):
        return frozenset()
    order = said[np.lexsort((rates[said], columns.group[said]))]
    group, rate = columns.group[order], rates[order]  # by tenant, in each the least traffic first
    first = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    last = np.r_[first[1:], len(group)] - 1
    hot = (rate[last] >= settings.split_bytes_per_s) & (settings.split_bytes_per_s > 0)
    two = rate[first] + np.where(last > first, rate[np.minimum(first + 1, last)], np.inf)
    crowded = np.bincount(columns.group[columns.group >= 0])[group[first]] > settings.tasks_min
    cold = crowded & (two <= settings.merge_bytes_per_s) & (settings.merge_bytes_per_s > 0)
    return frozenset(columns.rows[at].tenant for at in order[first[hot | cold]])
