"""A consumer that knows tables by name and primary key, and applies pulled changes and DDL in their order.

Of a DDL it knows what every database knows: TRUNCATE and DROP PARTITION take the rows of these partitions away,
EXCHANGE PARTITION swaps them with those of a table, a reorganisation changes no row. Which DDL an event is of follows
from the order: one job of the upstream after the other, each that did something has one event.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from simulator.jobs import SchemaVersion
from simulator.partition_jobs import Plan
from simulator.partitions import Action, physical_id, readable
from tests.kit.partition_world import Name, PartitionWorld, Rows


class Replica:
    """Starts with the tables at the start of the tenant's log. AssertionError for a change that does not fit."""

    def __init__(self, world: PartitionWorld) -> None:
        self._world = world
        self.rows: dict[Name, Rows] = world.tables_at(world.start_ts)
        self._jobs = deque(world.jobs_to_come())
        self.last_ts = 0

    def apply(self, event: dict[str, Any]) -> None:
        """Take the next event."""
        commit_ts = int(event["commit_ts"])
        assert commit_ts >= self.last_ts, f"{event} comes behind {self.last_ts}"
        self.last_ts = commit_ts
        if event["type"] == "ddl":
            self._ddl(event)
            return
        name = event["database"], event["table"]
        assert name in self.rows, f"{event} is of a table that is not there"
        table, columns = self.rows[name], event["columns"] or event["old"]
        handle = int(columns["id"])
        match event["type"]:
            case "insert":
                assert handle not in table, f"{event} is of a row that is there: {table[handle]}"
            case "update":
                assert table.get(handle) == event["old"]["note"], f"{event}, but the row is {table.get(handle)}"
            case "delete" if event["old"]["note"] is not None:
                assert table.get(handle) == event["old"]["note"], f"{event}, but the row is {table.get(handle)}"
        if event["type"] == "delete":
            table.pop(handle, None)
        else:
            table[handle] = columns["note"]

    def _ddl(self, event: dict[str, Any]) -> None:
        assert self._jobs, f"{event} is of no job"
        job = self._jobs.popleft()
        before, name = self._world.version_before(job), (event["database"], event["table"])
        assert event["table"] == job.body["table_name"], f"{event} is not of {job.query}"
        if job.plan is not None:
            self._partitions(job.plan, before)
            return
        match job.type:
            case 2:
                self.rows = {each: rows for each, rows in self.rows.items() if each[0] != event["database"]}
            case 3:
                self.rows[name] = {}
            case 4:
                del self.rows[name]
            case 14:
                self.rows[name] = self.rows.pop(before.name_of(before.tables[job.body["table_id"]]))

    def _partitions(self, plan: Plan, before: SchemaVersion) -> None:
        named = self.rows[before.name_of(plan.table)]
        if plan.type is Action.TRUNCATE_TABLE:
            named.clear()
        elif plan.exchanged is not None:
            partition, _ = plan.exchanged
            entry = next(e for e in before.tables.values() if partition in readable(e[1]))
            rows = self.rows[before.name_of(entry)]
            moved = {h: rows.pop(h) for h in list(rows) if physical_id(entry[1], h) == partition}
            rows.update(named)
            self.rows[before.name_of(plan.table)] = moved
        else:
            for handle in [h for h in named if physical_id(plan.table[1], h) in plan.emptied]:
                del named[handle]
