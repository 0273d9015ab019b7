"""The Python client: `connect(url)` or `connect_async(url)`, then `.tenant(1, 1)`, `.table("shop.customers")` and what
is wanted of it.

asyncio and Arrow are imported on first use: they would make this import four times as slow.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tistream.client.api import Client, connect
from tistream.client.consumers import Consumer
from tistream.client.core.membership import Batch
from tistream.client.core.requests import ChangeOptions, Page, TenantState
from tistream.client.cursors import CursorStore, FileCursorStore, SqlCursorStore
from tistream.client.entries import Entries
from tistream.client.results import Changes, KeyChanges, Rows, TableChanges
from tistream.client.tenant import Keys, Scope, Table, Tenant

if TYPE_CHECKING:
    from tistream.client.aio.api import AsyncClient, connect_async
    from tistream.client.aio.consumers import AsyncConsumer
    from tistream.client.aio.entries import AsyncEntries
    from tistream.client.aio.tenant import AsyncKeys, AsyncScope, AsyncTable, AsyncTenant
    from tistream.client.frames import ArrowPage, Progress

__all__ = [
    "ArrowPage",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncEntries",
    "AsyncKeys",
    "AsyncScope",
    "AsyncTable",
    "AsyncTenant",
    "Batch",
    "ChangeOptions",
    "Changes",
    "Client",
    "Consumer",
    "CursorStore",
    "Entries",
    "FileCursorStore",
    "KeyChanges",
    "Keys",
    "Page",
    "Progress",
    "Rows",
    "Scope",
    "SqlCursorStore",
    "Table",
    "TableChanges",
    "Tenant",
    "TenantState",
    "connect",
    "connect_async",
]
_LATER = {
    "ArrowPage": "frames",
    "AsyncClient": "aio.api",
    "AsyncConsumer": "aio.consumers",
    "AsyncEntries": "aio.entries",
    "AsyncKeys": "aio.tenant",
    "AsyncScope": "aio.tenant",
    "AsyncTable": "aio.tenant",
    "AsyncTenant": "aio.tenant",
    "Progress": "frames",
    "connect_async": "aio.api",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
