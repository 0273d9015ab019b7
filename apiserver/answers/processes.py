"""Answers about processes: workers with their load, the leader, maintenance jobs, and events of all of them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from apiserver.answers.fields import Code, NextCursor, Number, Rate, Seconds, Time, WorkerName
from apiserver.answers.tasks import TaskLoad
from tistream.catalog.rows.jobs import JobExecutor, JobKind, JobState
from tistream.catalog.rows.workers import WorkerKind
from tistream.http.probe_answers import ShownProblem


class Worker(BaseModel):
    """A process with its load, as of its last heartbeat."""

    worker_id: WorkerName
    kind: WorkerKind
    address: str = Field(description="of its feed; empty = it has none", examples=["10.0.0.7:8720"])
    state: Literal["up", "draining", "gone", "other", "silent"] = Field(
        description="silent: it sends no heartbeats; other: from a newer version"
    )
    alive: bool
    release: str = Field(description="that it runs", examples=["0.1.0"])
    incarnation: int
    heartbeat_age_s: Seconds
    tasks: int = Field(description="that it owns")
    stores: int = Field(description="that it reads")
    bytes_per_s: Rate
    held_bytes: int = Field(description="of rows in memory")
    rows_per_s: Rate
    files_per_s: Rate
    problems: list[ShownProblem]
    drains: bool = Field(description="whether its work can go to others")


class WorkerList(BaseModel):
    """All processes."""

    items: list[Worker]


class ReportedTask(TaskLoad):
    """A task in the report of its sorter."""

    task_id: int
    epoch: int


class ReportedStore(BaseModel):
    """A store in the report of its dispatcher."""

    cluster_id: int
    tenant_id: int
    store_id: int
    incarnation: int
    seq: int = Field(description="number of the newest file that was read")
    bytes_per_s: Rate
    files_per_s: Rate
    silent_s: Seconds = Field(description="since that file was read")


class WorkerDetail(Worker):
    """A process with its report."""

    task_reports: list[ReportedTask]
    store_reports: list[ReportedStore]


class Leader(BaseModel):
    """The leader of the meta servers."""

    owner: str | None = Field(description="null = none was elected yet", examples=["meta-1"])
    release: str | None = Field(description="that it runs", examples=["0.1.0"])
    epoch: int = Field(description="rises with each election")
    heartbeat_age_s: Seconds | None
    alive: bool


class Event(BaseModel):
    """Something that happened to a task, a store, a worker, a tenant or another subject."""

    event_id: Number
    time: Time
    kind: str = Field(description="the subject's kind, a dot and what happened", examples=["task.moved"])
    cluster_id: int | None
    tenant_id: int | None
    subject: str = Field(description="id of the task, store, worker ...", examples=["3"])
    actor: str | None = Field(description="the key of who asked for it; null = the service", examples=["5krc7s57dyuk2"])
    words: str = Field(examples=["task 3 is retried"])
    detail: dict[str, Any] = Field(description="by kind", examples=[{"error": "a prewrite is missing"}])


class EventPage(BaseModel):
    """A page of events, the newest first; with `after` in order."""

    items: list[Event]
    next_cursor: NextCursor
    newest: Number = Field(description="`after` of the request that follows later events")


class Job(BaseModel):
    """A maintenance job."""

    job_id: Number
    cluster_id: int
    tenant_id: int
    kind: JobKind
    words: str = Field(description="its kind, for people", examples=["merge of small files"])
    scope: str | None = Field(description="a part of the tenant; null = all of it", examples=["shop.orders"])
    executor: JobExecutor = Field(description="the least executor that it needs")
    state: JobState
    outcome: str | None = Field(description="how it ended", examples=["2 files instead of 160"])
    reason: str = Field(examples=["160 files of 2 tasks, 9.0 MiB: about 150 requests fewer"])
    holder: str | None = Field(description="who runs it", examples=["maintain-1"])
    tries: int
    estimated_bytes: int = Field(description="that it reads")
    estimated_objects: int
    parts_done: int
    parts_total: int
    bytes_read: int
    bytes_written: int
    objects_before: int
    objects_after: int
    requests_saved: int = Field(description="fewer for a reader of the whole stretch")
    code: Code | None = Field(description="of the newest error")
    error: str | None = Field(examples=["the object store does not answer"])
    created_time: Time
    started_time: Time | None
    ended_time: Time | None
    next_try_time: Time | None
    duration_s: Seconds | None
    may_retry: bool
    may_cancel: bool


class JobPage(BaseModel):
    """A page of maintenance jobs, newest first."""

    items: list[Job]
    next_cursor: NextCursor
