"""Frames of streams name rows that could not be decoded."""

from __future__ import annotations

import orjson
import pyarrow as pa
import pytest

from apiserver.stream.frames import ArrowFrames, EventFrames, Frames, LineFrames, Mark
from reading.formats import create_format, parse_options
from reading.pages import arrow
from reading.pages.request import PullAnswer
from reading.rows.scope import Scope
from tests.kit.column_cases import CASES, added_run
from tests.kit.column_run import TENANT, ColumnRun, TableRun, Write

MARK = Mark(ts=400, cursor="c")


def answer(content: pa.Buffer, quarantined: int) -> PullAnswer:
    return PullAnswer(
        content=content,
        next_cursor="c",
        resolved_ts=400,
        has_more=False,
        quarantined=quarantined,
        waits=False,
        after=0,
        end=400,
    )


@pytest.mark.parametrize("good", [True, False])
def test_an_arrow_stream_lists_them_with_the_page(good: bool) -> None:
    bad = Write(handle=9, commit_ts=160, value=b"\xee broken")
    table = TableRun(name="t", writes=[bad, *([Write(handle=8, commit_ts=150, value={})] if good else [])])
    run = ColumnRun([table])
    page = arrow.native_page(run.history, run.rows, Scope(tenant=TENANT, database="d", table="t"), 400)
    assert page.quarantined == 1
    frames, head = ArrowFrames(None), answer(page.content, 1)
    body = frames.begin(head) + b"".join(map(bytes, frames.page(head, MARK))) + frames.end("shutdown", MARK, None)
    batch, facts = pa.ipc.open_stream(body).read_next_batch_with_custom_metadata()
    assert batch.num_rows == good
    (listed,) = orjson.loads(facts["quarantined"])
    assert (listed["table"], listed["commit_ts"]) == ("t", "160")
    assert facts["cursor"] == b"c"


def test_events_and_our_lines_count_them_with_the_watermark() -> None:
    own = create_format("ndjson")
    line = orjson.loads(bytes(LineFrames(own).page(answer(pa.py_buffer(b""), 3), MARK)[-1]))
    assert (line["type"], line["quarantined"]) == ("resolved", 3)
    assert "quarantined" not in orjson.loads(LineFrames(own).mark(MARK))
    for fmt in (own, create_format("canal-json")):
        event = bytes(EventFrames(fmt).page(answer(pa.py_buffer(b""), 3), MARK)[-1])
        assert b'"quarantined":3' in event


@pytest.mark.parametrize("word", ["canal-json", "open-protocol", "simple", "csv", "debezium"])
def test_lines_of_another_protocol_end_before_a_page_with_them(word: str) -> None:
    frames: Frames = LineFrames(create_format(word, parse_options({})))
    first, fine, bad = answer(pa.py_buffer(b""), 2), answer(pa.py_buffer(b""), 0), answer(pa.py_buffer(b""), 1)
    frames.begin(first)  # its count is in the headers
    assert [frames.fits(page) for page in (first, fine, bad, fine)] == [True, True, False, True]


def test_a_page_that_is_whole_says_nothing() -> None:
    run = ColumnRun([added_run({"c0": CASES["c0"]}, "t", lacking=True)])
    page = arrow.native_page(run.history, run.rows.slice(0, 2), Scope(tenant=TENANT, database="d", table="t"), 400)
    frames, head = ArrowFrames(None), answer(page.content, 0)
    body = frames.begin(head) + b"".join(map(bytes, frames.page(head, MARK))) + frames.end("shutdown", MARK, None)
    batch, facts = pa.ipc.open_stream(body).read_next_batch_with_custom_metadata()
    assert (batch.num_rows, b"quarantined" in facts) == (2, False)
