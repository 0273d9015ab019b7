"""The ends of streams: who may say them, what takes them back, and that what has ended does not lag."""

from __future__ import annotations

import pytest
from sqlalchemy import bindparam

from tests.kit.catalog_cases import OTHER, START, T, activate, advance
from tests.kit.manual_clock import ManualClock
from tistream import ts as tso
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import of_asked_tenant, stores
from tistream.catalog.log.committed import commit_flush
from tistream.catalog.work.gauges import CatalogGauges
from tistream.catalog.work.stores import issue_incarnation, list_stores
from tistream.catalog.work.stream_ends import StreamEnds, end_stream, ends_of, stream_end, stream_ends
from tistream.ids import Tenant
from tistream.runtime import metrics

END = START + tso.compose(5000)
DAYS_LATER = ManualClock(tso.physical_ms(END) + 3 * 86_400_000)


_ANY_STORE = stores.update().where(of_asked_tenant(stores), stores.c.store_id == bindparam("asked_store"))
_KEEPS_END = _ANY_STORE.values(incarnation=stores.c.incarnation + 1)
BROKEN = {
    "a replaced pusher ends the stream": ("tistream.catalog.work.stream_ends._END", _ANY_STORE),
    "a new incarnation keeps the end": ("tistream.catalog.work.stores._ISSUE", _KEEPS_END),
}


def complete_up_to(catalog: Catalog, tenant: Tenant, ts: int) -> None:
    """All tasks of an active tenant have flushed up to `ts`."""
    advances = [advance(task_id, START, ts) for task_id in activate(catalog, tenant)]
    assert len(commit_flush(catalog, tenant=tenant, objects={}, advances=advances)) == len(advances)


def started_again(catalog: Catalog) -> None:
    """A recording ends, its store starts again, and the first pusher repeats its request."""
    issue_incarnation(catalog, T, 1)
    assert end_stream(catalog, T, 1, 1, END)
    issue_incarnation(catalog, T, 1)
    assert stream_end(catalog, T) is None
    assert not end_stream(catalog, T, 1, 1, END), "it was replaced"
    assert stream_end(catalog, T) is None
    assert end_stream(catalog, T, 1, 2, END)
    assert stream_end(catalog, T) == END


class TestStreamEnds:
    def test_a_tenant_ends_when_all_of_its_stores_do_at_the_lowest_end(self, catalog: Catalog) -> None:
        assert not end_stream(catalog, T, 1, 1, END), "an unknown store"
        for store_id in (1, 2):
            issue_incarnation(catalog, T, store_id)
        issue_incarnation(catalog, OTHER, 1)
        assert stream_end(catalog, T) is None
        assert end_stream(catalog, T, 1, 1, END + 7)
        assert (stream_end(catalog, T), stream_ends(catalog)) == (None, {}), "store 2 goes on"
        assert end_stream(catalog, T, 2, 1, END)
        assert end_stream(catalog, T, 2, 1, END), "a repeated request"
        assert stream_end(catalog, T) == END
        assert stream_ends(catalog) == ends_of(list_stores(catalog)) == {T: END}

    def test_a_store_that_starts_again_goes_on_and_its_old_pusher_cannot_end_it(self, catalog: Catalog) -> None:
        started_again(catalog)

    @pytest.mark.parametrize("name", BROKEN)
    def test_each_broken_rule_is_noticed(self, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        monkeypatch.setattr(*BROKEN[name])
        with pytest.raises(AssertionError):
            started_again(catalog)

    def test_a_tenant_that_has_ended_does_not_lag_in_metrics(self, catalog: Catalog) -> None:
        for tenant in (T, OTHER):
            complete_up_to(catalog, tenant, END)
            issue_incarnation(catalog, tenant, 1)
        assert end_stream(catalog, T, 1, 1, END)
        families = {family.name: family.samples for family in CatalogGauges(catalog, DAYS_LATER)()}
        lags = {tuple(s.labels.values()): s.value for s in families["tistream_checkpoint_lag_seconds"]}
        assert lags == {
            (str(T.cluster_id), str(T.tenant_id)): 0.0,
            (str(OTHER.cluster_id), str(OTHER.tenant_id)): 3 * 86_400.0,
        }

    def test_one_that_has_not_reached_its_end_lags_by_what_is_left(self, catalog: Catalog) -> None:
        complete_up_to(catalog, T, END - tso.compose(4000))
        issue_incarnation(catalog, T, 1)
        assert end_stream(catalog, T, 1, 1, END)
        families = {family.name: family.samples for family in CatalogGauges(catalog, DAYS_LATER)()}
        assert [s.value for s in families["tistream_checkpoint_lag_max_seconds"]] == [4.0]

    def test_metrics_read_the_ends_now_and_then(self, catalog: Catalog) -> None:
        clock = ManualClock()
        ends = StreamEnds(catalog, clock)
        assert ends() == {}
        issue_incarnation(catalog, T, 1)
        assert end_stream(catalog, T, 1, 1, END)
        assert ends() == {}
        clock.advance(metrics.CATALOG_LOOK_S)
        assert ends() == {T: END}
