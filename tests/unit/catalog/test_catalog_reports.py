"""What workers say of themselves stays bounded, and nonsense is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from tistream.catalog.rows.reports import StoreReport, StuckReport, TaskReport, WorkerReport
from tistream.catalog.work.reports import REPORT_BYTES_MAX, decode_report, encode_report
from tistream.errors import CorruptObject
from tistream.ids import Tenant

FULL = WorkerReport(
    bytes_per_s=5.0,
    held_bytes=6,
    tasks=(
        TaskReport(
            task_id=1,
            epoch=2,
            rows_per_s=1.0,
            watermark=7,
            split_key=b"k",
            stuck=(StuckReport(start_key=b"a", end_key=b"", watermark=None, region_id=4, file="1/2", reason="silent"),),
        ),
    ),
    stores=(StoreReport(tenant=Tenant(3, 4), store_id=5, incarnation=1, seq=9, silent_s=0.5),),
    problems=({"code": "TS-1063"},),
)
NAMES = {"task_id", "epoch", "cluster_id", "tenant_id", "store_id", "start_key", "end_key"}


def test_a_report_that_is_too_long_loses_its_end() -> None:
    tasks = tuple(TaskReport(task_id=n, epoch=1, split_key=bytes(200)) for n in range(5000))
    text = encode_report(WorkerReport(tasks=tasks, held_bytes=7))
    assert len(text) <= REPORT_BYTES_MAX
    read = decode_report(text)
    assert read.held_bytes == 7
    assert len(read.tasks) > 1000
    assert read.tasks == tasks[: len(read.tasks)]
    problems = tuple({"code": "TS-1020", "message": "x" * 1000} for _ in range(5000))
    text = encode_report(WorkerReport(problems=problems))
    assert len(text) <= REPORT_BYTES_MAX
    assert 500 < len(decode_report(text).problems) < 5000


@pytest.mark.parametrize("text", ["[]", "{", '{"tasks": [{"task_id": 1}]}', '{"stores": [{}]}', '{"tasks": 3}'])
def test_what_is_not_a_report_is_refused(text: str) -> None:
    with pytest.raises(CorruptObject, match="report"):
        decode_report(text)


def objects(tree: Any) -> Iterator[dict[str, Any]]:
    """Every object of a report but the problems, which are kept as they are."""
    if isinstance(tree, dict):
        yield tree
        for name, value in tree.items():
            if name != "problems":
                yield from objects(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from objects(value)


def test_fields_of_a_newer_neighbour_are_ignored_wherever_they_stand() -> None:
    tree = orjson.loads(encode_report(FULL))
    reports = list(objects(tree))
    assert len(reports) == 5, "worker, task, stuck, store, tenant"
    for value in ("x", 1, None, {"a": [1]}):
        for each in reports:
            each["added_by_a_newer_version"] = value
        assert decode_report(orjson.dumps(tree).decode()) == FULL


def test_a_field_that_a_newer_neighbour_no_longer_sends_has_its_default() -> None:
    tree = orjson.loads(encode_report(FULL))
    for each in objects(tree):
        for name in [name for name in each if name not in NAMES | {"tasks", "stores", "stuck", "tenant"}]:
            del each[name]
    read = decode_report(orjson.dumps(tree).decode())
    assert read.tasks == (
        TaskReport(task_id=1, epoch=2, stuck=(StuckReport(start_key=b"a", end_key=b"", watermark=None),)),
    )
    assert read.stores[0].store_id == 5


@pytest.mark.parametrize("nonsense", ["x", True, [1], {"a": 1}, 2**63, -1, -0.5, None])
def test_every_field_that_holds_something_else_is_refused_or_harmless(nonsense: object) -> None:
    """What is read can be computed with: no later step fails because of a value."""
    for at in range(5):
        names = list(list(objects(orjson.loads(encode_report(FULL))))[at])
        for name in names:
            tree = orjson.loads(encode_report(FULL))
            list(objects(tree))[at][name] = nonsense
            try:
                read = decode_report(orjson.dumps(tree).decode())
            except CorruptObject:
                continue
            assert type(read.bytes_per_s) is float
            assert type(read.held_bytes) is int
            encode_report(read)
            for task in read.tasks:
                assert {type(task.task_id), type(task.epoch), type(task.open_rows), type(task.held_bytes)} == {int}
                assert {type(task.bytes_per_s), type(task.rows_per_s), type(task.standing_s)} == {float}
                assert task.watermark is None or 0 <= task.watermark < 1 << 63
