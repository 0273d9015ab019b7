"""Lines of a page: order, DDL in its place, watermark last, ends; and their estimated size."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reading.core.changes import INSERT, TableChanges
from reading.filters import Selected
from reading.formats import FORMAT_NAMES, FormatOptions
from reading.formats.lines import Block
from reading.formats.pieces import bare
from reading.pages import body
from reading.pages.rendering import Rendering
from reading.rows.decode import Quarantined
from reading.rows.scope import Scope
from schemas.model import DdlEvent
from tests.kit.column_cases import CASES, added_run
from tests.kit.column_run import ColumnRun, Write
from tests.kit.log_builder import TENANT, recording_end
from tests.kit.recording import changed_rows, recorded_history
from tests.kit.schema_models import a_table, an_event


@dataclass(frozen=True)
class Words:
    """A format whose lines say where they come from."""

    name: str = "words"
    media_type: str = "text/plain"
    terminator: bytes = b";"
    splits_updates: bool = False
    marks: bool = True

    def rows(self, changes: TableChanges) -> list[Block]:
        words = [f"{ts}.{order}" for ts, order in zip(changes.commit_ts, changes.order, strict=True)]
        halves = np.arange(len(words))[::2], np.arange(len(words))[1::2]
        return [Block(at=at, pieces=[b"r", bare(pa.array([words[n] for n in at], pa.string()))]) for at in halves]

    def ddl(self, event: DdlEvent) -> list[bytes]:
        return [f"d{event.commit_ts}.{n}".encode() for n in range(event.sub)]

    def watermark(self, ts: int) -> bytes | None:
        return f"w{ts}".encode() if self.marks else None


def changes(order_and_ts: list[tuple[int, int]]) -> TableChanges:
    n = len(order_and_ts)
    empty = pa.RecordBatch.from_struct_array(pa.array([{}] * n, pa.struct([])))
    ts = np.array([ts for _, ts in order_and_ts], np.uint64)
    return TableChanges(
        table=a_table(),
        kind=np.full(n, INSERT, np.uint8),
        order=np.array([order for order, _ in order_and_ts], np.int64),
        physical_id=np.full(n, 7, np.int64),
        start_ts=ts,
        commit_ts=ts,
        key=pa.array([b"k"] * n, pa.binary()),
        after=empty,
        before=empty,
        split=np.zeros(n, np.bool_),
    )


def ddl(ts: int, lines: int = 1) -> DdlEvent:
    return an_event(commit_ts=ts, sub=lines)


def words(buffer: pa.Buffer) -> list[str]:
    text: str = buffer.to_pybytes().decode()
    assert text.endswith(";") or not text
    return text.split(";")[:-1]


def test_lines_of_several_tables_come_in_the_order_of_the_page() -> None:
    lines = body.render(Words(), [changes([(0, 1), (3, 5)]), changes([]), changes([(2, 5), (1, 4)])], [])
    assert words(lines) == ["r1.0", "r4.1", "r5.2", "r5.3"]


def test_ddl_follows_rows_of_its_time_and_precedes_later_ones() -> None:
    lines = body.render(Words(), [changes([(0, 3), (1, 5), (2, 5), (3, 6)])], [ddl(5), ddl(2), ddl(9)], watermark=9)
    assert words(lines) == ["d2.0", "r3.0", "r5.1", "r5.2", "d5.0", "r6.3", "d9.0", "w9"]


def test_events_of_one_job_stay_in_their_order_and_may_have_no_line() -> None:
    assert words(body.render(Words(), [], [ddl(5, 2), ddl(5, 0), ddl(5, 1)])) == ["d5.0", "d5.1", "d5.0"]


@given(rows=st.lists(st.integers(1, 20), max_size=20).map(sorted), events=st.lists(st.integers(0, 21), max_size=6))
def test_placement_for_any_timestamps(rows: list[int], events: list[int]) -> None:
    page_words = words(body.render(Words(), [changes(list(enumerate(rows)))], [ddl(ts) for ts in events]))
    want = sorted([(ts, 0, f"r{ts}.{n}") for n, ts in enumerate(rows)] + [(ts, 1, f"d{ts}.0") for ts in events])
    assert [w.partition(".")[0] for w in page_words] == [w.partition(".")[0] for *_, w in want]
    assert [w for w in page_words if w[0] == "r"] == [f"r{ts}.{n}" for n, ts in enumerate(rows)]


def test_a_separator_is_between_lines_only() -> None:
    lines = body.render(Words(), [changes([(0, 1), (1, 2)])], [ddl(2)], separator=b",")
    assert lines.to_pybytes() == b"r1.0,r2.1,d2.0"


@pytest.mark.parametrize("fmt", [Words(), Words(marks=False)])
def test_nothing_is_nothing(fmt: Words) -> None:
    assert body.render(fmt, [], []).size == 0
    assert body.render(fmt, [changes([])], [], separator=b",").size == 0


def test_a_format_without_watermarks_gets_none() -> None:
    assert words(body.render(Words(marks=False), [changes([(0, 1)])], [], watermark=7)) == ["r1.0"]


def test_only_ndjson_has_lines_for_rows_that_cannot_be_decoded() -> None:
    bad = Quarantined(
        database="d", table="t", table_id=7, column="c", key=b"\x74\x80", commit_ts=4, offset=3, cause="too short"
    )
    rows = [changes([(0, 3), (1, 5)])]
    assert words(body.render(Words(), rows, [], [bad])) == ["r3.0", "r5.1"]
    page_words = words(body.render(Words(name="ndjson"), rows, [], [bad]))
    assert (page_words[0], page_words[2]) == ("r3.0", "r5.1")
    assert '"type":"error"' in page_words[1]
    assert '"key":"7480"' in page_words[1]
    assert '"cause":"too short"' in page_words[1]


def test_a_line_of_ndjson_is_one_line_to_every_reader() -> None:
    """JavaScript's and Python's line splitters end a line at U+2028 and U+2029, too."""
    breaks = "\u2028\u2029"
    run = ColumnRun([added_run({"c0": CASES["c0"]}, f"t{breaks}", lacking=True)])
    table = run.tables[100]
    table.ddls[0] = replace(table.ddls[0], query=f"ALTER TABLE t /* {breaks} */")
    table.writes.append(Write(handle=9, commit_ts=480, value=b"\xee broken"))
    run = ColumnRun([table])
    lines = run.lines("ndjson", {})
    assert lines.count(b"\n") == len(lines.decode().splitlines()) == 14
    assert {orjson.loads(line)["table"] for line in lines.splitlines()} == {f"t{breaks}"}


def rows() -> pa.Table:
    ordered = changed_rows().sort_by([("commit_ts", "ascending"), ("start_ts", "ascending")]).combine_chunks()
    return ordered.slice(0, 3000)


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_a_body_is_about_as_large_as_estimated(name: str) -> None:
    history, log = recorded_history(), rows()
    rendering = Rendering(
        scope=Scope(tenant=TENANT), format=name, options=FormatOptions(), buffers=None, watermarks=False
    )
    page = rendering.page(history, Selected(rows=log, quarantined=()), history.start_ts, recording_end(), has_more=True)
    estimated = int(rendering.sizes(history, log).sum())
    assert 0.5 * page.content.size < estimated < 20 * page.content.size
