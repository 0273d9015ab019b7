"""What subscriptions have promised, compared with a dict."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from sorter.core import promised as promised_module
from sorter.core.promised import Promised, joined
from tistream.model.change import REGIONS

Subscription = tuple[int, int]  #: region, subscription_open_ts


def listed(*rows: tuple[int, int, int], ready: bool = True) -> pa.RecordBatch:
    """Watermark rows of (region, subscription_open_ts, resolved_ts)."""
    zero = dict.fromkeys(REGIONS.names, 0) | {"start_key": b"", "end_key": b"", "subscription_ready_ts": int(ready)}
    named = [zero | {"region_id": r, "subscription_open_ts": o, "resolved_ts": ts} for r, o, ts in rows]
    return pa.RecordBatch.from_pylist(named, schema=REGIONS)


def before(promised: Promised, *rows: tuple[int, int, int], store: int = 1) -> list[int]:
    promises = promised.before(listed(*rows), store, 1)
    return [0] * len(rows) if promises is None else promises.tolist()


def test_promises_of_other_subscriptions_stores_and_opening_scans_do_not_count() -> None:
    promised = Promised()
    promised.note(listed((7, 1, 20)), 1, 1)
    promised.note(listed((8, 1, 30), ready=False), 2, 1)
    assert before(promised, (7, 1, 0)) == [20]
    assert before(promised, (7, 2, 0)) == [0], "a later subscription of the region"
    assert before(promised, (7, 1, 0), store=2) == [0]
    assert before(promised, (8, 1, 0), store=2) == [0], "its opening scan has not finished"


def test_a_subscription_named_twice_or_left_out_in_between_keeps_its_promise() -> None:
    promised = Promised()
    promised.note(listed((7, 1, 20), (7, 1, 0)), 1, 1)
    assert before(promised, (7, 1, 0), (7, 1, 0)) == [20, 20]
    promised.note(listed((9, 1, 5)), 1, 1)
    assert before(promised, (9, 1, 0), (7, 1, 0)) == [5, 20]


@pytest.mark.parametrize("seed", range(5))
def test_any_history_gives_what_a_dict_gives_also_after_a_restart(seed: int) -> None:
    rand, promised, plain = random.Random(seed), Promised(), dict[tuple[int, Subscription], int]()
    for _ in range(60):
        store = rand.randint(1, 2)
        rows = [(rand.randint(1, 3), rand.randint(1, 2), rand.randint(0, 99)) for _ in range(rand.randint(0, 4))]
        want = [plain.get((store, row[:2]), 0) for row in rows]
        assert before(promised, *rows, store=store) == want
        promised.note(listed(*rows), store, 1)
        for region, opened, ts in rows:
            at = store, (region, opened)
            plain[at] = max(ts, plain.get(at, 0))
        if rand.random() < 0.2:
            state, promised = promised.snapshot(), Promised()
            promised.restore(joined([state, state]))


def test_the_promises_of_ended_subscriptions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promised_module, "ENDED_MIN", 3)
    promised = Promised()
    for opened in range(1, 11):
        promised.note(listed((1, opened, 10 + opened)), 1, 1)
    assert promised.snapshot().num_rows == 4, "the listed one, and those opened last"
    assert before(promised, (1, 10, 0), (1, 7, 0), (1, 6, 0)) == [20, 17, 0]
