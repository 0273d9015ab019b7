"""`tistream up --sample`: what its tenant's tables and changes are, by the API, is what its shop has, also behind a
restart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from simulator.sample import kept, push
from simulator.sample.core.tables import CUSTOMERS, ORDER_LINES, ORDERS, PAYMENTS
from simulator.sample.core.upstream import State
from simulator.sample.running import RunningSample
from tests.kit.waiting import eventually
from tistream.catalog.tenancy.keys import list_keys
from tistream.cli import assembly
from tistream.cli.run import TENANT, Sample
from tistream.cli.running import Running
from tistream.client import Client
from tistream.config import load
from tistream.errors import InvalidInput
from tistream.http.auth.core.roles import Role
from tistream.http.auth.issue import issue_key

NAMES = {CUSTOMERS: "customers", ORDERS: "orders", ORDER_LINES: "order_lines", PAYMENTS: "payments"}
MILLISECONDS = {"changed_at", "paid_at"}
Tables = dict[str, dict[int, dict[str, Any]]]


@contextmanager
def service(folder: Path) -> Iterator[Running]:
    settings = load(None, {}, {"server.port": 0, "server.auth": "keys", "maintenance.enabled": False})
    running = assembly.embedded(settings, folder, warm_up=False)
    running.start()
    try:
        yield running
    finally:
        running.close()


@contextmanager
def shop(running: Running, folder: Path) -> Iterator[RunningSample]:
    sample = Sample(folder)
    sample.start(running)
    try:
        assert sample.running is not None
        yield sample.running
    finally:
        sample.stop()


def moment(running: RunningSample) -> State:
    """The shop's rows as of a timestamp."""
    eventually(lambda: running.push.opened.is_set() or running.error, "the shop is closed")
    assert running.error is None
    with running.push.lock:
        return running.push.upstream.state()


def shown(name: str, value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, datetime):
        return value.isoformat(" ", "milliseconds" if name in MILLISECONDS else "seconds")
    return str(value) if isinstance(value, Decimal) else value


def tables_of(running: RunningSample, state: State) -> Tables:
    """The shop's rows with the columns of the moment."""
    return {
        NAMES[table_id]: {
            row["id"]: {name: shown(name, row.get(name)) for name in running.push.upstream.schema.names(table_id)}
            for row, _ in rows
        }
        for table_id, rows in state.rows.items()
    }


def as_of(client: Client, ts: int) -> Tables:
    rows: Tables = {}
    for name in NAMES.values():
        rows[name] = {row["id"]: row for row in client.tenant(1, 1).table(name, database="shop").rows(as_of=ts)}
    return rows


def by_changes(client: Client, ts: int) -> tuple[Tables, Counter[str]]:
    """The tables that the log's changes make, each old row being the row so far."""
    tables: Tables = {name: {} for name in NAMES.values()}
    kinds = Counter[str]()
    for event in client.tenant(1, 1).changes(end=ts):
        kinds[event["type"]] += 1
        if event["type"] == "ddl":
            continue
        rows, old, new = tables[event["table"]], event["old"], event["columns"]
        row_id = (new or old)["id"]
        before = rows.get(row_id)
        assert (old is None) == (before is None)
        if old is not None and before is not None:
            assert {name: value for name, value in old.items() if value is not None} == {
                name: value for name, value in before.items() if value is not None and name in old
            }
        if event["type"] == "delete":
            del rows[row_id]
        else:
            rows[row_id] = new
    return tables, kinds


def without_nulls(tables: Tables) -> Tables:
    return {
        name: {i: {k: v for k, v in row.items() if v is not None} for i, row in rows.items()}
        for name, rows in tables.items()
    }


def kept_step(folder: Path) -> int:
    """The step of the state in the file."""
    kept_sample = kept.read(folder / kept.NAME)
    return 0 if kept_sample is None else kept_sample.state.step


def served(client: Client, ts: int) -> None:
    eventually(lambda: client.tenant(1, 1).page(start="latest").resolved_ts >= ts, "the watermark stays behind")


def test_the_api_has_what_the_shop_has_also_behind_a_restart_and_another_log_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "WRITTEN_MS", 1500)
    monkeypatch.setattr(push, "REWRITE_MS", 1000)
    with service(tmp_path) as running:
        me = issue_key(running.parts.catalog, name="me", role=Role.CONSUMER, tenant=TENANT).text
        with Client(running.url, key=me) as client:
            with shop(running, tmp_path) as first:
                state = moment(first)
                served(client, state.ts)
                expected = tables_of(first, state)
                assert as_of(client, state.ts) == expected
                assert expected["customers"][1]["phone"] is None, "older than the column"
                assert [row["phone"] for row in expected["customers"].values() if row["phone"]]
                tables, kinds = by_changes(client, state.ts)
                assert without_nulls(tables) == without_nulls(expected)
                assert min(kinds[each] for each in ("insert", "update", "delete")) >= 3
                assert kinds["ddl"] == 6
                eventually(lambda: kept_step(tmp_path) > 0 or first.error, "no newer state is kept")
                assert first.error is None
            with shop(running, tmp_path) as second:
                assert moment(second).step >= kept_step(tmp_path)
                eventually(lambda: moment(second).ts > state.ts + (2_000 << 18), "it does not continue")
                later = moment(second)
                assert later.ts > state.ts
                served(client, later.ts)
                assert as_of(client, later.ts) == tables_of(second, later)
                assert as_of(client, state.ts) == expected, "what was is what it was"
        keys = [row for row in list_keys(running.parts.catalog, TENANT) if row.role == Role.PUSHER]
        assert len(keys) == 1, "the key is kept"
        (tmp_path / kept.NAME).unlink()
        with shop(running, tmp_path) as third:
            eventually(lambda: third.error, "it goes on without its file")
            with pytest.raises(InvalidInput, match=r"not the sample's.*sample\.json"):
                raise third.error or AssertionError
            assert not third.push.opened.is_set()
