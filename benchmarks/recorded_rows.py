"""The recording's table `shop_arch.bulk5k` (10 columns, 142 bytes a row) on one core, beside TiCDC on the same rows.

TiCDC's mounter decoded 559,000 rows a second and its canal-json encoder wrote 62,000, in one goroutine
on two shared cores. Those are constants here, so unlike the other ratios these move with the machine; TiCDC's own runs
differed by up to 40 %. Ours count processor time, so that a busy machine does not count as a slow program.

The rows are decoded in one call and encoded as one page; the page is the table's inserts, repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import Result
from reading.core.split import order_messages
from reading.decode import decode_rows
from reading.formats import create_format
from reading.formats.lines import written
from reading.scope import Scope
from schemas.layout import row_layout
from tests.kit.recording import committed_rows, recorded_history
from tistream.codec.row.decode import decode
from tistream.ids import Tenant

TICDC_DECODED = 559_000  # rows a second
TICDC_ENCODED = 62_000  # rows a second
REPEAT = 10
RUNS = 9


def run() -> Iterator[Result]:
    """Decoding and encoding."""
    pa.set_cpu_count(1)
    history, log = recorded_history(), committed_rows()
    found = history.find("shop_arch", "bulk5k", history.resolved_ts)
    rows = log.filter(pc.and_(pc.equal(log["table_id"], found.id), pc.is_valid(log["value"])))
    rows = rows.filter(pc.is_null(rows["old_value"]))
    many = pa.concat_tables([rows] * REPEAT).combine_chunks()
    keys, values = many["key"].combine_chunks(), many["value"].combine_chunks()
    layout = row_layout(found)
    yield _rate("recorded-rows/decode-vs-ticdc", lambda: decode(layout, keys, values), len(keys), TICDC_DECODED)
    scope = Scope(tenant=Tenant(1, 1), database="shop_arch", table="bulk5k")
    (changes,) = order_messages(decode_rows(history, many, scope).changes, split=True)
    canal = create_format("canal-json")
    yield _rate("recorded-rows/canal-json-vs-ticdc", lambda: written(canal.rows(changes)), len(changes), TICDC_ENCODED)


def _rate(name: str, work: Callable[[], object], rows: int, ticdc: int) -> Result:
    work()
    ratios = []
    for _ in range(RUNS):
        start = time.process_time()
        work()
        ratios.append(rows / (time.process_time() - start) / ticdc)
    return Result.of(name, ratios, 3.0)
