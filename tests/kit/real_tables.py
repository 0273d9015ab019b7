"""What TiDB answered at moments of a recording of a real TiKV (tables.ndjson), against pulled NDJSON.

Every row of these tables is younger than the recording, so a replica needs no beginning. Tables that a MODIFY COLUMN
wrote again are left out from then on: such rows are no changes.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterable
from pathlib import Path

from tests.kit.replica import Moment, Replica, Row, read_lines, same_rows

_REWRITES = (12, 61)  # DDL action types


def moments(folder: Path) -> list[Moment]:
    """The recorded moments in time order."""
    by_ts: dict[int, Moment] = {}
    for line in read_lines(folder / "tables.ndjson.zst"):
        ts = int(line["ts"])
        moment = by_ts.setdefault(ts, Moment(ts, line["tag"], [], defaultdict(list)))
        if line["kind"] == "table":
            moment.tables.append(line)
        else:
            moment.rows[line["db"], line["table"]].append(line["row"])
    return [by_ts[ts] for ts in sorted(by_ts)]


def compare_tables(folder: Path, events: Iterable[Row], upto_ts: int) -> int:
    """Replay the events; at each moment up to `upto_ts` every comparable table must equal TiDB's rows. The number of
    rows compared."""
    rewritten = []
    for ddl in read_lines(folder / "ddl.ndjson.zst"):
        job = json.loads(ddl["job_json"])
        if job["type"] in _REWRITES:
            rewritten.append((int(ddl["finished_ts"]), int(job["table_id"])))
    replica, compared = Replica(), 0
    queue = deque(events)
    for moment in moments(folder):
        if moment.ts > upto_ts:
            break
        while queue and int(queue[0].get("commit_ts") or queue[0]["resolved_ts"]) <= moment.ts:
            replica.apply(queue.popleft())
        touched = {table_id for ts, table_id in rewritten if ts <= moment.ts}
        for table in moment.tables:
            if int(table["table_id"]) not in touched:
                ids = [int(p["id"]) for p in table["partitions"] or []] or [int(table["table_id"])]
                our_rows = [row for table_id in ids for row in replica.rows[table_id].values()]
                same_rows(moment, table, our_rows)
                compared += len(our_rows)
    return compared
