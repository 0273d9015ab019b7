"""What workers say about themselves with a heartbeat: load, and what their watermarks wait for.

A report is a claim about the recent past for balancing and for people. Nothing about correctness rests on it: an owner
that read an old one moves the wrong task, and loses nothing. Rates are averages over RATE_WINDOW_S. Stored as JSON in
the worker's row, replaced by each heartbeat that carries one, and bounded: REPORT_BYTES_MAX.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from tistream.errors import CorruptObject
from tistream.ids import Tenant

RATE_WINDOW_S = 10.0
REPORT_BYTES_MAX = 1 << 20
STUCK_MAX = 5  #: reasons told per task


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckReport:
    """Why part of a task's range does not go on."""

    start_key: bytes
    end_key: bytes  #: empty = plus infinity
    watermark: int | None  #: None: a hole, nobody has spoken of it yet
    region_id: int = 0
    version: int = 0
    store_id: int = 0
    file: str = ""  #: "incarnation/seq" of the newest file of that store; empty when none spoke of the range
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """A task as its sorter sees it."""

    task_id: int
    epoch: int
    rows_per_s: float = 0.0
    bytes_per_s: float = 0.0
    open_rows: int = 0
    held_bytes: int = 0
    watermark: int | None = None
    split_key: bytes | None = None  #: a key inside the range that has about half of the traffic on either side
    standing_s: float = 0.0  #: how long the watermark has stood where it is
    stuck: tuple[StuckReport, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """A store's folder as its dispatcher sees it."""

    tenant: Tenant
    store_id: int
    incarnation: int = 0
    seq: int = 0  #: the newest file that was read
    bytes_per_s: float = 0.0
    files_per_s: float = 0.0
    silent_s: float = 0.0  #: since the newest file was read


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """One worker's load. A sorter names tasks, a dispatcher stores."""

    bytes_per_s: float = 0.0
    held_bytes: int = 0
    tasks: tuple[TaskReport, ...] = ()
    stores: tuple[StoreReport, ...] = ()
    problems: tuple[dict[str, Any], ...] = field(default=())  #: as tistream.service.Problem.shown gives them


def encode_report(report: WorkerReport) -> str:
    """As JSON. What does not fit is left out from the end of the longest list: reports are for orientation."""
    tasks, stores = list(report.tasks), list(report.stores)
    while True:
        text = orjson.dumps(
            {
                "bytes_per_s": report.bytes_per_s,
                "held_bytes": report.held_bytes,
                "tasks": [_task(task) for task in tasks],
                "stores": [_store(store) for store in stores],
                "problems": list(report.problems),
            }
        )
        if len(text) <= REPORT_BYTES_MAX or not (tasks or stores):
            return text.decode()
        if len(tasks) >= len(stores):
            del tasks[len(tasks) // 2 :]
        else:
            del stores[len(stores) // 2 :]


def decode_report(text: str) -> WorkerReport:
    """A report read back. CorruptObject when it is not one."""
    try:
        tree = orjson.loads(text or "{}")
        return WorkerReport(
            bytes_per_s=tree.get("bytes_per_s", 0.0),
            held_bytes=tree.get("held_bytes", 0),
            tasks=tuple(_read_task(task) for task in tree.get("tasks", ())),
            stores=tuple(_read_store(store) for store in tree.get("stores", ())),
            problems=tuple(tree.get("problems", ())),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise CorruptObject("a worker's report is not one", reason=str(e)) from e


def _task(task: TaskReport) -> dict[str, Any]:
    return {
        "task_id": task.task_id,
        "epoch": task.epoch,
        "rows_per_s": task.rows_per_s,
        "bytes_per_s": task.bytes_per_s,
        "open_rows": task.open_rows,
        "held_bytes": task.held_bytes,
        "watermark": task.watermark,
        "split_key": None if task.split_key is None else task.split_key.hex(),
        "standing_s": task.standing_s,
        "stuck": [
            {
                "start_key": stuck.start_key.hex(),
                "end_key": stuck.end_key.hex(),
                "watermark": stuck.watermark,
                "region_id": stuck.region_id,
                "version": stuck.version,
                "store_id": stuck.store_id,
                "file": stuck.file,
                "reason": stuck.reason,
            }
            for stuck in task.stuck[:STUCK_MAX]
        ],
    }


def _read_task(tree: dict[str, Any]) -> TaskReport:
    split_key = tree["split_key"]
    return TaskReport(
        **{
            **tree,
            "split_key": None if split_key is None else bytes.fromhex(split_key),
            "stuck": tuple(
                StuckReport(
                    **{
                        **stuck,
                        "start_key": bytes.fromhex(stuck["start_key"]),
                        "end_key": bytes.fromhex(stuck["end_key"]),
                    }
                )
                for stuck in tree["stuck"]
            ),
        }
    )


def _store(store: StoreReport) -> dict[str, Any]:
    return {
        "cluster_id": store.tenant.cluster_id,
        "tenant_id": store.tenant.tenant_id,
        "store_id": store.store_id,
        "incarnation": store.incarnation,
        "seq": store.seq,
        "bytes_per_s": store.bytes_per_s,
        "files_per_s": store.files_per_s,
        "silent_s": store.silent_s,
    }


def _read_store(tree: dict[str, Any]) -> StoreReport:
    more = {name: value for name, value in tree.items() if name not in ("cluster_id", "tenant_id")}
    return StoreReport(tenant=Tenant(tree["cluster_id"], tree["tenant_id"]), **more)
