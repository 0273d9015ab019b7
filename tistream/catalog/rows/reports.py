"""Load reports of workers, as their readers see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from tistream.ids import Tenant
from tistream.limits import INT_MAX

Count = Annotated[int, Field(ge=0, le=INT_MAX)]

Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]

STUCK_MAX = 5  #: reasons reported per task


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckReport:
    """Why part of a task's range is stalled."""

    start_key: bytes
    end_key: bytes  #: empty = plus infinity
    watermark: Count | None = None  #: None: a watermark gap, no store has reported it yet
    region_id: Count = 0
    version: Count = 0
    store_id: Count = 0
    file: str = ""  #: "incarnation/seq" of the newest file of that store; empty when none covers the range
    start_ts: Count = 0  #: of the transaction whose lock on `start_key` is undecided; 0 = no lock
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """A task as its sorter sees it."""

    task_id: Count
    epoch: Count
    rows_per_s: Rate = 0.0
    bytes_per_s: Rate = 0.0
    open_rows: Count = 0
    held_bytes: Count = 0
    watermark: Count | None = None
    split_key: bytes | None = None  #: a key inside the range with about half of the traffic on either side
    standing_s: Rate = 0.0  #: how long the watermark has been stalled
    stuck: tuple[StuckReport, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """A store's folder as its dispatcher sees it."""

    tenant: Tenant
    store_id: Count
    incarnation: Count = 0
    seq: Count = 0  #: the newest file read
    bytes_per_s: Rate = 0.0
    files_per_s: Rate = 0.0
    silent_s: Rate = 0.0  #: since the newest file was read


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """One worker's load. A sorter names tasks, a dispatcher stores; the leading meta server reports its problems."""

    bytes_per_s: Rate = 0.0
    held_bytes: Count = 0
    tasks: tuple[TaskReport, ...] = ()
    stores: tuple[StoreReport, ...] = ()
    problems: tuple[dict[str, Any], ...] = ()  #: as tistream.model.problem.Problem.shown gives them
