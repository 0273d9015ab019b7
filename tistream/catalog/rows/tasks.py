"""Tasks, their owners and their progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tistream.catalog.rows.tenants import TaskKind
from tistream.ids import Tenant
from tistream.keyrange import KeyRange


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A task as the catalog has it."""

    task_id: int
    tenant: Tenant
    kind: TaskKind
    range: KeyRange
    start_ts: int  #: the task's log is complete above this
    durable_ts: int  #: everything at or below it is in the committed log
    epoch: int  #: rises with each assignment
    owner: str | None  #: worker id
    snapshot_key: str | None
    snapshot_no: int  #: number of the newest snapshot; 0 = none yet
    resubscribe_id: int  #: a pusher that sees a new value resubscribes the range
    error: str | None  #: why the task is stopped; None while it runs
    merge_with: int | None = None  #: the neighbour to merge with


class TaskPlace(NamedTuple):
    """The owner of a task; small, because the leader reads all of them."""

    task_id: int
    tenant: Tenant
    kind: TaskKind
    epoch: int
    owner: str | None


class Assignment(NamedTuple):
    """Assigns a task to a worker if its epoch is still `seen_epoch`."""

    task_id: int
    worker_id: str
    seen_epoch: int
    tenant: Tenant | None = None  #: for the event


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierRow:
    """The progress of one range."""

    range: KeyRange
    durable_ts: int
    resubscribe_id: int
