"""A log with one commit_ts that is larger than a page may be, once the bounds of a page are made tiny."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from reading.log import reader
from reading.pages import changes
from tests.kit.api_world import ApiWorld, api_world
from tests.kit.log_builder import LogBuilder, recording_end
from tests.kit.recording import committed_rows, recorded_history
from tests.kit.row_encoder import encode_v2, record_key
from tistream.model import change
from tistream.model.change import Op

C = recording_end() - 1000  # of the large transaction
K_DUP, LARGE = 199, 274  # (id, u unique, v, q); (id, a, b)


def a_row(table_id: int, handle: int, ts: int, value: Any, old: Any, start_ts: int) -> dict[str, Any]:
    new, before = (None if image is None else encode_v2(image) for image in (value, old))
    op = int(Op.DELETE if value is None else Op.PUT)
    key = record_key(table_id, handle)
    stamps = {"start_ts": start_ts, "commit_ts": ts, "expire_ts": 0, "flags": 0}
    return {"table_id": table_id, "op": op, "key": key, "value": new, "old_value": before, **stamps}


def number(n: int) -> bytes:
    return n.to_bytes(4, "little")


def the_transaction(text: bytes, count: int) -> pa.Table:
    """Two transactions with one commit_ts over two tables, a change before them and one behind."""
    rows = [a_row(LARGE, 1, C - 50, {2: b"before"}, None, C - 60), a_row(LARGE, 2, C + 50, {2: b"after"}, None, C + 40)]
    for n in range(count):
        start_ts = C - 10 - n % 2
        moved = {2: number(n), 3: b"old"}
        match n % 4:
            case 0:
                rows.append(a_row(K_DUP, n, C, {2: number(n + 1000), 3: text}, moved, start_ts))
            case 1:
                rows.append(a_row(K_DUP, n, C, {2: number(n), 3: text}, moved, start_ts))
            case 2:
                rows.append(a_row(K_DUP, n, C, None, moved, start_ts))
            case 3:
                rows.append(a_row(LARGE, n + 10, C, {2: text}, None, start_ts))
    order = ("table_id", "commit_ts", "start_ts", "key")
    recorded = committed_rows()
    jobs = recorded.filter(pc.equal(recorded["table_id"], recorded_history().job_table.id))
    whole = pa.concat_tables([pa.Table.from_pylist(rows, schema=change.COMMITTED), jobs])
    return whole.sort_by([(name, "ascending") for name in order])


@contextmanager
def built(folder: Any, rows: pa.Table) -> Iterator[ApiWorld]:
    with api_world(folder, rows=rows, builder=partial(LogBuilder, rows_per_object=7)) as world:
        world.log.build(1)
        yield world


def bound(monkeypatch: pytest.MonkeyPatch, *, commit: int, body: int) -> None:
    for module in (reader, changes):
        monkeypatch.setattr(module, "COMMIT_BYTES_MAX", commit)
    monkeypatch.setattr(changes, "_BODY_BYTES", body)
    monkeypatch.setattr(changes, "_STREAM_PAGE_BYTES", body)
    monkeypatch.setattr(changes, "BODY_BYTES_MAX", 4 * commit)
