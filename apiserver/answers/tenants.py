"""Answers about tenants: their state, their tasks and stores, their lag and its causes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from apiserver.answers.fields import EndKey, HexKey, Seconds, Time, Tso, WorkerName
from tistream.catalog.rows.kinds import TenantKind
from tistream.catalog.rows.tenants import TaskKind, TenantState
from tistream.catalog.tenancy.log_readers import ReaderState

StageName = Literal["upstream_flush", "fetch", "match", "watermark_gap_wait", "flush", "serve"]


class OfKeyspace(BaseModel):
    """The keyspace of a raw or txn tenant."""

    id: int | None = Field(description="null until its pusher has looked up the name")
    name: str | None = Field(examples=["app"])


class LiveReader(BaseModel):
    """A consumer or a changefeed that is neither paused nor finished."""

    kind: Literal["consumer", "changefeed"]
    name: str = Field(examples=["warehouse"])
    state: ReaderState
    lag_s: Seconds = Field(description="from its checkpoint to the served watermark")
    checkpoint_time: Time | None = Field(description="null before the log begins")
    idle_s: Seconds = Field(description="since its last request, or since its checkpoint moved")
    destination: str = Field(
        description="where the changefeed is written, without secrets and options; empty for a consumer",
        examples=["s3://lake/tenant-1"],
    )
    members: int = Field(description="of a consumer: those whose lease has not ended")


class TenantSummary(BaseModel):
    """State and lag of a tenant."""

    cluster_id: int
    tenant_id: int
    kind: TenantKind
    keyspace: OfKeyspace | None = Field(description="of a raw or txn tenant")
    start_key: HexKey | None = Field(description="of a raw or txn tenant, a user key; empty = the first one")
    end_key: EndKey | None = Field(description="of a raw or txn tenant, a user key; empty = the end of the keyspace")
    state: TenantState
    start_ts: Tso = Field(description="the log began above it; 0 while the tenant awaits its schema snapshot")
    earliest_ts: Tso = Field(description="the log is kept above it")
    retention_s: int | None = Field(description="seconds of the log to keep; 0 = all, null = the setting")
    resolved_ts: Tso = Field(description="served watermark: every change at or below it is served; 0 = none yet")
    resolved_time: Time | None
    end_ts: Tso | None = Field(description="where the streams of its stores end; null = they do not")
    ended: bool = Field(description="whether everything up to `end_ts` is served")
    lag_s: Seconds | None = Field(description="from now, or `end_ts`, to `resolved_ts`; null without a watermark")


class ListedTenant(TenantSummary):
    """A tenant in a list."""

    readers: list[LiveReader] = Field(
        default_factory=list, description="with `readers=true`: those behind the most come first"
    )


class TenantList(BaseModel):
    """All tenants that the key may see."""

    items: list[ListedTenant]


class TaskOfTenant(BaseModel):
    """A task: a key range of a tenant that one sorter puts in order."""

    task_id: int
    kind: TaskKind
    start_key: HexKey
    end_key: EndKey = Field(description="empty = plus infinity")
    durable_ts: Tso = Field(description="everything at or below it is in the committed log")
    durable_time: Time
    epoch: int = Field(description="rises with each owner")
    owner: WorkerName | None = Field(description="the sorter; null = none")
    resubscribe_id: int = Field(description="a new value asks pushers to resubscribe the range")
    error: str | None = Field(description="why it has stopped", examples=["a prewrite is missing"])


class StoreOfTenant(BaseModel):
    """A TiKV store of a tenant, by what its pusher writes."""

    store_id: int
    incarnation: int = Field(description="of its pusher")
    max_cut_ts: Tso = Field(description="cut of the newest batch file that was read")
    dispatcher: str | None = Field(examples=["dispatcher-1"])
    end_ts: Tso | None = Field(description="where its stream ends; null = it does not")


class TenantDetail(TenantSummary):
    """A tenant with its tasks and stores, which a key that is limited to tables does not see."""

    tasks: list[TaskOfTenant] = Field(default_factory=list)
    stores: list[StoreOfTenant] = Field(default_factory=list)


class LagStage(BaseModel):
    """What one stage of the pipeline, or several between which nothing is known, holds back."""

    stages: list[StageName]
    duration_s: Seconds
    means: str = Field(examples=["read, not taken in by a sorter yet"])
    where: str = Field(examples=["task 3 (data [74, 748000000000000078)), sorter sorter-1"])


class LagOfStore(BaseModel):
    """How far the files of a store are read."""

    store_id: int
    incarnation: int
    newest_file: str | None = Field(
        examples=["data_change_buffer/cluster-1/tenant-1/store-1/000001/file-000000000007.seg"]
    )
    newest_cut_ts: Tso | None = Field(description="of the newest file in the bucket")
    newest_fault: str | None = Field(description="why the newest file does not count", examples=["it is corrupt"])
    read_cut_ts: Tso = Field(description="of the newest file that was read")
    behind_s: Seconds | None
    dispatcher: str | None = Field(examples=["dispatcher-1"])


class LagOfTask(BaseModel):
    """How far a task is."""

    task_id: int
    kind: TaskKind
    durable_ts: Tso
    behind_s: Seconds
    watermark_ts: Tso | None = Field(description="in its sorter's memory, as far as it is known")
    owner: WorkerName | None
    error: str | None = Field(examples=["a prewrite is missing"])


class TenantLag(TenantSummary):
    """The lag of a tenant. With `why=true` its causes too; what is after `sentence` once it has started."""

    readers: list[LiveReader] = Field(
        default_factory=list, description="those behind the most come first; not for a key that is limited to tables"
    )
    sentence: str = Field(
        default_factory=str,
        description="with `why=true`: what is late, since when, because of what, and what to do next",
        examples=["Tenant 1/1 is up to date: 1 s."],
    )
    stages: list[LagStage] = Field(default_factory=list, description="from a commit to a reader; their sum is the lag")
    slowest: Annotated[str, Field(examples=["fetch"])] = Field(
        default_factory=str, description="the names of the stage that holds back the most, joined by +"
    )
    waits_for: list[str] = Field(
        default_factory=list, description="what the slowest task waits for", examples=[["[74, +inf): a lock"]]
    )
    stores: list[LagOfStore] = Field(default_factory=list)
    tasks: list[LagOfTask] = Field(default_factory=list)
