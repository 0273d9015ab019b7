"""Answers about tasks, stalled ranges and stopped items, and the outcomes of operators' actions."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from apiserver.answers.fields import Code, EndKey, HexKey, NextCursor, Number, Rate, Seconds, Time, Tso, WorkerName
from tistream.admin.core.watermark_gaps import Cause
from tistream.catalog.rows.tenants import TaskKind, TenantState
from tistream.catalog.tenancy.served import QuarantineState
from tistream.catalog.work.stopped_items import Scope


class TaskLoad(BaseModel):
    """What the sorter of a task reports of it, as of its last heartbeat."""

    rows_per_s: Rate
    bytes_per_s: Rate
    open_rows: int = Field(description="prewrites without their commit")
    held_bytes: int = Field(description="of rows in memory")
    watermark_ts: Tso | None
    standing_s: Seconds = Field(description="since its watermark moved")
    split_key: HexKey | None = Field(description="about half of the traffic is on either side")


class Task(BaseModel):
    """A task: a key range of a tenant that one sorter puts in order."""

    task_id: int
    cluster_id: int
    tenant_id: int
    kind: TaskKind
    state: Literal["running", "waiting", "silent", "paused", "stopped"] = Field(
        description="waiting: without an owner; silent: its owner sends no heartbeats; stopped: by `error`"
    )
    label: str = Field(description="its range in words", examples=["tables below 120"])
    start_key: HexKey
    end_key: EndKey = Field(description="empty = plus infinity")
    start_text: str = Field(examples=["the first table"])
    end_text: str = Field(examples=["the beginning of table 120"])
    start_ts: Tso
    durable_ts: Tso = Field(description="everything at or below it is in the committed log")
    durable_time: Time
    lag_s: Seconds | None
    epoch: int = Field(description="rises with each owner; the ETag of the task")
    owner: WorkerName | None = Field(description="the sorter; null = none")
    resubscribe_id: int = Field(description="a new value asks pushers to resubscribe the range")
    snapshot_no: int = Field(description="number of its newest snapshot")
    error: str | None = Field(description="why it has stopped", examples=["a prewrite is missing"])
    load: TaskLoad | None = Field(description="null when its owner has not reported it yet")


class TaskPage(BaseModel):
    """A page of tasks."""

    items: list[Task]
    next_cursor: NextCursor


class WatermarkGap(BaseModel):
    """A stalled range, and what to look at first."""

    cluster_id: int
    tenant_id: int
    task_id: int | None
    cause: Cause
    sentence: str = Field(examples=["task 1 over schema changes has no sorter"])
    next_step: str = Field(examples=["check that a sorter and a meta server are up: tistream workers list"])
    start_key: HexKey | None
    end_key: EndKey | None
    start_text: str | None = Field(examples=["the first schema key"])
    end_text: str | None = Field(examples=["behind the schema keys"])
    label: str | None = Field(examples=["schema changes"])
    watermark_ts: Tso | None
    lag_s: Seconds | None
    standing_s: Seconds | None = Field(description="since the watermark moved")
    region_id: int | None
    version: int | None = Field(description="of the region")
    store_id: int | None
    file: str | None = Field(description="incarnation and number of the store's newest file", examples=["1/7"])
    file_age_s: Seconds | None
    owner: WorkerName | None


class WatermarkGapList(BaseModel):
    """What is stalled."""

    items: list[WatermarkGap]
    truncated: bool = Field(description="there are more")


class TaskDetail(Task):
    """A task with its stalled ranges."""

    watermark_gaps: list[WatermarkGap]


class Stop(BaseModel):
    """An item that an error has stopped."""

    cluster_id: int | None
    tenant_id: int | None
    stop_id: str = Field(description="a number; of a task `task-` and its id", examples=["7"])
    scope: Scope
    role: str = Field(description="who stopped it", examples=["collection"])
    item: str = Field(examples=["1/1"])
    code: Code | None = Field(description="null for a task")
    message: str = Field(examples=["the schema snapshot is not of the agreed form"])
    object: str | None = Field(
        description="key of the object that was read", examples=["schema_snap/cluster-1/tenant-1/1.json"]
    )
    since_time: Time | None = Field(description="null for a task")
    tries: int | None = Field(description="null for a task")
    resumed: bool = Field(description="an operator has asked to retry it")


class StopPage(BaseModel):
    """A page of stopped items: the stops by id, then the stopped tasks."""

    items: list[Stop]
    next_cursor: NextCursor


class ContradictingRow(BaseModel):
    """A commit below the promise that its store had made."""

    key: HexKey = Field(description="cut short when it is long")
    start_ts: Tso
    commit_ts: Tso
    promised_ts: Tso
    region: int


class Quarantine(BaseModel):
    """A file in which a store sent commits below its own promise."""

    cluster_id: int
    tenant_id: int
    store_id: Number
    incarnation: Number
    seq: Number = Field(description="number of the file")
    task_id: Number
    object: str = Field(examples=["data_change_buffer/cluster-1/tenant-1/store-1/000001/file-000000000007.seg"])
    state: QuarantineState
    good_ts: Tso = Field(description="nothing above it is served until an operator decides")
    good_time: Time
    served_ts: Tso = Field(
        description="without these rows the log was served up to here, or is once the store is rejected"
    )
    rows: int
    sample: list[ContradictingRow]
    since_time: Time
    decided_time: Time | None
    decided_by: str | None = Field(examples=["5krc7s57dyuk2"])


class QuarantineList(BaseModel):
    """The quarantines of a tenant, open and decided, oldest first."""

    items: list[Quarantine]


class Outcome(BaseModel):
    """What an action has done, or with `dry_run=true` would do."""

    verb: str = Field(examples=["resume"])
    subject: str = Field(examples=["task 3"])
    dry_run: bool
    done: bool
    words: str = Field(description="the effect, for people", examples=["sorter-1 is given work again."])


class Drained(Outcome):
    """Work that goes to other processes."""

    items: int = Field(description="tasks, stores or lanes that it owns")
    receivers: list[WorkerName]


class Moved(Outcome):
    """A task that goes to another sorter."""

    was: WorkerName | None
    to: WorkerName
    epoch: int = Field(description="of the new owner")


class Split(Outcome):
    """A task that is replaced by two."""

    key: HexKey = Field(description="where the second one begins")
    parts: list[int] | None = Field(description="their ids; null with dry_run")


class Merged(Outcome):
    """Two tasks that are replaced by one."""

    to: WorkerName = Field(description="who merges them; `a sorter` when neither has an owner")


class TenantSwitched(Outcome):
    """A tenant in another state."""

    state: TenantState


class TenantDeletion(Outcome):
    """A tenant that is deleted."""

    state: TenantState
    tasks: int
    objects: int = Field(description="of its log")
    bytes: int = Field(description="of its log")
