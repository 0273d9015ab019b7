"""Both clients have one shape, typed to the last argument, and show no data and no key."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

import tistream.client
from tests.kit.client_script import Script, page
from tistream.client import AsyncClient, Batch, Client, TenantState, consumers, entries, results, tenant
from tistream.client.aio import consumers as aio_consumers
from tistream.client.aio import entries as aio_entries
from tistream.client.aio import results as aio_results
from tistream.client.aio import tenant as aio_tenant
from tistream.client.core.requests import Page

KEY = "tsk_secretsecret"
PAIRS = [
    (Client, AsyncClient),
    (tenant.Scope, aio_tenant.AsyncScope),
    (tenant.Tenant, aio_tenant.AsyncTenant),
    (tenant.Table, aio_tenant.AsyncTable),
    (tenant.Keys, aio_tenant.AsyncKeys),
    (consumers.Consumer, aio_consumers.AsyncConsumer),
    (results.Changes, aio_results.AsyncChanges),
    (results.TableChanges, aio_results.AsyncTableChanges),
    (results.KeyChanges, aio_results.AsyncKeyChanges),
    (entries.Entries, aio_entries.AsyncEntries),
    (results.Rows, aio_results.AsyncRows),
]


def arguments_of(kind: type) -> dict[str, list[tuple[str, Any, Any]]]:
    """The public methods, with name, kind and default of each argument."""
    return {
        name: [(p.name, p.kind, p.default) for p in inspect.signature(member).parameters.values()]
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(("sync", "aio"), PAIRS, ids=lambda kind: kind.__name__)
def test_what_one_can_the_other_can(sync: type, aio: type) -> None:
    assert arguments_of(sync) == arguments_of(aio)
    assert arguments_of(sync)


def test_no_argument_is_of_any_kind() -> None:
    folder = Path(tistream.client.__file__).parent
    loose = [
        f"{path.name}: {node.name}"
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.args.kwarg is not None
        and "Any" in ast.unparse(node.args.kwarg.annotation or ast.Name("Any"))
    ]
    assert loose == []
    assert (folder.parent / "py.typed").is_file()


def test_what_is_shown_is_short_and_holds_no_key() -> None:
    script = Script(page("c", content=b"x" * 10_000))
    with Client("http://ann:pw@host:1", key=KEY, transport=script) as client:
        one = client.tenant(1, 2)
        shown = [
            client, one, one.database("shop"), one.table("shop.t"), one.consumer("loader", member="m"),
            one.changes(), one.table("shop.t").changes(), one.table("shop.t").rows(as_of="-1h"), one.page(),
            Batch(page=one.page(), partition=1, epoch=2, checkpoint_ts=3),
            TenantState(cluster_id=1, tenant_id=2, state="ACTIVE", resolved_ts=3, facts={"key": KEY}),
            AsyncClient("http://ann:pw@host:1", key=KEY), AsyncClient("http://host:1", key=KEY).tenant(1, 2),
        ]  # fmt: skip
    for each in shown:
        assert len(repr(each)) < 250, each
        assert KEY not in repr(each)
        assert "pw" not in repr(each)
    assert [repr(each) for each in shown[:5]] == [
        "Client('http://host:1')",
        "Tenant('1/2' at http://host:1)",
        "Scope('1/2 shop' at http://host:1)",
        "Table('1/2 shop.t' at http://host:1)",
        "Consumer('1/2 loader', member='m')",
    ]


def test_an_error_has_no_key() -> None:
    """Not even in what a debugger shows of its objects."""
    with Client("http://host:1", key=KEY, transport=Script(page("a"))) as client:
        assert KEY not in repr(vars(client))


def test_a_page_has_the_changes_without_the_watermark() -> None:
    lines = b'{"type":"insert","columns":{"id":1}}\n{"type":"resolved","resolved_ts":"9"}\n'
    one_page = Page(content=lines, next_cursor="c", resolved_ts=9, has_more=False)
    assert one_page.changes() == [{"type": "insert", "columns": {"id": 1}}]
