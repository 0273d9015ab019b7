"""What workers say of themselves stays bounded, and nonsense is refused."""

from __future__ import annotations

import pytest

from tistream.catalog.reports import REPORT_BYTES_MAX, TaskReport, WorkerReport, decode_report, encode_report
from tistream.errors import CorruptObject


def test_a_report_that_is_too_long_loses_its_end() -> None:
    tasks = tuple(TaskReport(task_id=n, epoch=1, split_key=bytes(200)) for n in range(5000))
    text = encode_report(WorkerReport(tasks=tasks, held_bytes=7))
    assert len(text) <= REPORT_BYTES_MAX
    read = decode_report(text)
    assert read.held_bytes == 7
    assert len(read.tasks) > 1000
    assert read.tasks == tasks[: len(read.tasks)]


@pytest.mark.parametrize("text", ["[]", "{", '{"tasks": [{"task_id": 1}]}', '{"stores": [{}]}', '{"tasks": 3}'])
def test_what_is_not_a_report_is_refused(text: str) -> None:
    with pytest.raises(CorruptObject, match="report"):
        decode_report(text)
