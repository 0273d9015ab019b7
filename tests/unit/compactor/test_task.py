"""One plan row over a built log: the file against an independent sort, tries side by side, damage on either side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor import task
from compactor.core.plan import PlanRow, PlanSettings
from compactor.core.results import BaseResult, RangeResult, verified
from compactor.job import JobSettings, planned
from compactor.task import Failed, compact_range, contents, read_inputs
from tests.kit.catalog_cases import new_catalog
from tests.kit.log_builder import TENANT, LogBuilder
from tests.kit.open_folder import OpenFolder
from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.segments import SegmentFormat
from tistream.codec.wire import decode, encode
from tistream.errors import CorruptObject, ObjectNotFound, TiStreamError


@dataclass
class Rig:
    catalog: Catalog
    store: OpenFolder
    row: PlanRow


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A log of eight flushes and the plan row with most rows."""
    catalog, store = new_catalog(tmp_path), OpenFolder()
    LogBuilder(catalog, store).build(8)
    _, rows = planned(catalog, TENANT, JobSettings(lag_ms=0, plan=PlanSettings(inputs_min=2)), lambda: 1)
    yield Rig(catalog, store, max(rows, key=lambda r: sum(s.rows for s in r.segments)))
    catalog.close()


def by_python(tables: list[pa.Table]) -> list[dict[str, Any]]:
    """The same rows, put in order by Python."""
    rows = [row for table in tables for row in table.to_pylist()]
    return sorted(rows, key=lambda r: (r["table_id"], r["commit_ts"], r["start_ts"], r["key"]))


def stored(rig: Rig, result: RangeResult) -> pa.Table:
    return pq.read_table(pa.BufferReader(rig.store.objects[result.object_key]))


def test_the_file_holds_the_inputs_in_order(rig: Rig) -> None:
    result = compact_range(rig.store, rig.row, "a1")
    want = by_python(read_inputs(rig.store, rig.row))
    assert stored(rig, result).to_pylist() == want
    assert (result.before.rows, result.after) == (len(want), result.before)
    ts = [row["commit_ts"] for row in want]
    assert (result.before.lo_ts, result.before.hi_ts) == (min(ts), max(ts))
    assert verified([rig.row], [result]) == [result]


def test_tries_of_one_row_do_not_meet(rig: Rig) -> None:
    first, second = compact_range(rig.store, rig.row, "a1"), compact_range(rig.store, rig.row, "a2")
    assert first.object_key != second.object_key
    assert stored(rig, first).equals(stored(rig, second))
    assert verified([rig.row], [second, first]) == [first]


def test_a_compacted_file_is_compacted_again(rig: Rig) -> None:
    first = compact_range(rig.store, rig.row, "a1")
    again = PlanRow(
        tenant=rig.row.tenant,
        job=2,
        range_id=0,
        task_id=rig.row.task_id,
        segments=tuple(
            replace(
                rig.row.segments[0],
                object_key=first.object_key,
                number=g.number,
                offset=g.offset,
                length=g.length,
                crc=g.crc,
                rows=g.rows,
                lo_ts=g.lo_ts,
                hi_ts=g.hi_ts,
                format=SegmentFormat.PARQUET,
                footer=first.footer,
            )
            for g in first.groups
        ),
    )
    assert stored(rig, compact_range(rig.store, again, "b")).equals(stored(rig, first))


def test_damaged_and_missing_inputs_stop_it_and_nothing_is_written(rig: Rig) -> None:
    segment = rig.row.segments[0]
    data = rig.store.objects[segment.object_key]
    keys = set(rig.store.objects)
    rig.store.objects[segment.object_key] = data[: segment.offset] + b"\0" + data[segment.offset + 1 :]
    with pytest.raises(CorruptObject) as e:
        compact_range(rig.store, rig.row, "a1")
    assert (e.value.facts["object"], e.value.facts["segment"]) == (segment.object_key, segment.number)
    del rig.store.objects[segment.object_key]
    with pytest.raises(ObjectNotFound):
        compact_range(rig.store, rig.row, "a1")
    assert set(rig.store.objects) == keys - {segment.object_key}


@pytest.mark.parametrize("fault", ["a row is missing", "a value is another", "an old value is gone"])
def test_a_file_that_differs_is_not_written(rig: Rig, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    whole = task.merge

    def wrong(tables: list[pa.Table]) -> pa.Table:
        merged = whole(tables)
        if fault == "a row is missing":
            return merged.slice(1)
        name = "value" if fault == "a value is another" else "old_value"
        column = merged[name].to_pylist()
        at = next(n for n, value in enumerate(column) if value is not None)
        column[at] = b"other" if name == "value" else None
        index = merged.schema.get_field_index(name)
        return merged.set_column(index, merged.schema.field(index), pa.array(column, pa.binary()))

    monkeypatch.setattr(task, "merge", wrong)
    keys = set(rig.store.objects)
    with pytest.raises(TiStreamError, match="differs from its inputs"):
        compact_range(rig.store, rig.row, "a1")
    assert set(rig.store.objects) == keys


def test_the_fingerprint_does_not_depend_on_order_and_counts_doubles(rig: Rig) -> None:
    tables = read_inputs(rig.store, rig.row)
    whole = pa.concat_tables(tables).combine_chunks()
    turned = whole.take(list(range(whole.num_rows))[::-1])
    assert contents(tables) == contents([whole]) == contents([turned])
    assert contents([whole, whole.slice(0, 1), whole.slice(0, 1)]).fingerprint != contents([whole]).fingerprint


def test_the_driver_does_not_take_what_was_not_planned(rig: Rig) -> None:
    result = compact_range(rig.store, rig.row, "a1")
    fewer = replace(rig.row, segments=rig.row.segments[1:])
    with pytest.raises(TiStreamError, match="does not match its plan"):
        verified([fewer], [result])
    with pytest.raises(TiStreamError, match="no result"):
        verified([rig.row, replace(rig.row, range_id=9)], [result])
    after = replace(result.after, fingerprint=result.after.fingerprint ^ 1)
    with pytest.raises(TiStreamError, match="differs"):
        verified([rig.row], [replace(result, after=after)])


def test_plan_rows_and_results_travel_as_text(rig: Rig) -> None:
    result = compact_range(rig.store, rig.row, "a1")
    assert decode(PlanRow, encode(rig.row)) == rig.row
    assert decode(RangeResult | Failed, encode(result)) == result
    failed = Failed(range_id=3, code="TS-1020", message="damaged (object=bases/x)", object="bases/x")
    assert decode(BaseResult | Failed, encode(failed)) == failed
