"""Load reports that workers send with a heartbeat, including what stalled watermarks wait for.

Reports serve balancing and operators; correctness does not depend on them: a leader with an old report moves the wrong
task and loses nothing. Rates are averages over RATE_WINDOW_S. A report is JSON in the worker's row, at most
REPORT_BYTES_MAX, replaced by each heartbeat that carries one.

Workers of two versions run side by side during an upgrade: a reader ignores unknown fields and uses defaults for
missing ones. Every version names the task or store.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import orjson

from tistream.catalog.database.tables import INT_MAX
from tistream.errors import CorruptObject
from tistream.ids import Tenant

RATE_WINDOW_S = 10.0
REPORT_BYTES_MAX = 1 << 20
STUCK_MAX = 5  #: reasons reported per task


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckReport:
    """Why part of a task's range is stalled."""

    start_key: bytes
    end_key: bytes  #: empty = plus infinity
    watermark: int | None  #: None: a watermark gap, no store has reported it yet
    region_id: int = 0
    version: int = 0
    store_id: int = 0
    file: str = ""  #: "incarnation/seq" of the newest file of that store; empty when none covers the range
    start_ts: int = 0  #: of the transaction whose lock on `start_key` is undecided; 0 = no lock
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
    split_key: bytes | None = None  #: a key inside the range with about half of the traffic on either side
    standing_s: float = 0.0  #: how long the watermark has been stalled
    stuck: tuple[StuckReport, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """A store's folder as its dispatcher sees it."""

    tenant: Tenant
    store_id: int
    incarnation: int = 0
    seq: int = 0  #: the newest file read
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
    problems: tuple[dict[str, Any], ...] = field(default=())  #: as tistream.runtime.service.Problem.shown gives them


def encode_report(report: WorkerReport) -> str:
    """Encode as JSON, shortening the longest list until it fits REPORT_BYTES_MAX."""
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
    """Decode a report, ignoring unknown fields of newer versions. CorruptObject when a known field is invalid."""
    try:
        tree = orjson.loads(text or "{}")
        return WorkerReport(
            bytes_per_s=_rate(tree, "bytes_per_s"),
            held_bytes=_count(tree, "held_bytes"),
            tasks=tuple(_read_task(task) for task in tree.get("tasks", ())),
            stores=tuple(_read_store(store) for store in tree.get("stores", ())),
            problems=tuple(_read_problem(problem) for problem in tree.get("problems", ())),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        reason = f"{type(e).__name__}: {e}"
        raise CorruptObject("the report of a worker cannot be read", reason=reason) from e


def _rate(tree: dict[str, Any], name: str) -> float:
    value = tree.get(name, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{name} is not a number")
    return float(value)


def _count(tree: dict[str, Any], name: str, *, required: bool = False) -> int:
    value = tree[name] if required else tree.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= INT_MAX:
        raise ValueError(f"{name} is not a count")
    return value


def _words(tree: dict[str, Any], name: str) -> str:
    value = tree.get(name, "")
    if not isinstance(value, str):
        raise TypeError(f"{name} is not text")
    return value


def _ts(tree: dict[str, Any], name: str) -> int | None:
    return None if tree.get(name) is None else _count(tree, name)


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
                "start_ts": stuck.start_ts,
                "reason": stuck.reason,
            }
            for stuck in task.stuck[:STUCK_MAX]
        ],
    }


def _read_task(tree: dict[str, Any]) -> TaskReport:
    split_key = tree.get("split_key")
    return TaskReport(
        task_id=_count(tree, "task_id", required=True),
        epoch=_count(tree, "epoch", required=True),
        rows_per_s=_rate(tree, "rows_per_s"),
        bytes_per_s=_rate(tree, "bytes_per_s"),
        open_rows=_count(tree, "open_rows"),
        held_bytes=_count(tree, "held_bytes"),
        watermark=_ts(tree, "watermark"),
        split_key=None if split_key is None else bytes.fromhex(split_key),
        standing_s=_rate(tree, "standing_s"),
        stuck=tuple(_read_stuck(stuck) for stuck in tree.get("stuck", ())),
    )


def _read_stuck(tree: dict[str, Any]) -> StuckReport:
    return StuckReport(
        start_key=bytes.fromhex(tree["start_key"]),
        end_key=bytes.fromhex(tree["end_key"]),
        watermark=_ts(tree, "watermark"),
        region_id=_count(tree, "region_id"),
        version=_count(tree, "version"),
        store_id=_count(tree, "store_id"),
        file=_words(tree, "file"),
        start_ts=_count(tree, "start_ts"),
        reason=_words(tree, "reason"),
    )


def _read_problem(tree: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(tree, dict):
        raise TypeError("a problem is not an object")
    return tree


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
    return StoreReport(
        tenant=Tenant(_count(tree, "cluster_id", required=True), _count(tree, "tenant_id", required=True)),
        store_id=_count(tree, "store_id", required=True),
        incarnation=_count(tree, "incarnation"),
        seq=_count(tree, "seq"),
        bytes_per_s=_rate(tree, "bytes_per_s"),
        files_per_s=_rate(tree, "files_per_s"),
        silent_s=_rate(tree, "silent_s"),
    )
