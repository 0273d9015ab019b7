"""Initial tasks of a tenant, from its first schema snapshot (pure).

    [m, n)                                    ddl    the meta range
    records of mysql.tidb_ddl_job             ddl    the DDL jobs
    [t ................. those records)       data   cut where user tables begin

The data ranges are contiguous and cover every key between `t` and the job table's records, so tables created later have
a task too. TiDB's system tables lie in these ranges without counting as user tables.
"""

from __future__ import annotations

from itertools import pairwise

from schemas.history import History
from tistream.catalog.rows.tenants import NewTask, TaskKind
from tistream.codec.table_key import META_RANGE, SYSTEM_IDS_FROM, record_range, table_prefix
from tistream.keyrange import KeyRange

_DATA_START = b"t"


def lay_out(history: History, data_tasks: int) -> list[NewTask]:
    """The tasks of a tenant whose history starts with this snapshot: two for DDL, at most `data_tasks` (>= 1) for data
    with equally many physical ids of user tables."""
    jobs = record_range(history.job_table.id)
    ids = _user_ids(history)
    cuts = sorted({table_prefix(ids[len(ids) * i // data_tasks]) for i in range(1, data_tasks)} if ids else ())
    edges = [_DATA_START, *(cut for cut in cuts if cut < jobs.start), jobs.start]
    ranges = [KeyRange(start, end) for start, end in pairwise(edges)]
    return [
        NewTask(kind=TaskKind.DDL, range=META_RANGE),
        NewTask(kind=TaskKind.DDL, range=jobs),
        *(NewTask(kind=TaskKind.DATA, range=range_) for range_ in ranges),
    ]


def _user_ids(history: History) -> list[int]:
    """Physical ids in order; rows of a partitioned table lie under the ids of its partitions."""
    ts = history.start_ts
    of_databases = (history.physical_ids(db.name, None, ts, ts) for db in history.databases(ts))
    return sorted({i for ids in of_databases for i in ids if i < SYSTEM_IDS_FROM})
