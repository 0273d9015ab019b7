"""The Python client: `connect(url)` or `connect_async(url)`, then pull.

asyncio and Arrow are imported on first use: they would make this import four times as slow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tistream.client.api import Client, connect
from tistream.client.core.requests import Page, Tenant
from tistream.client.cursors import CursorStore, FileCursorStore, SqlCursorStore

if TYPE_CHECKING:
    from tistream.client.aio import AsyncClient, connect_async
    from tistream.client.tables import ArrowPage, Progress

__all__ = [
    "ArrowPage",
    "AsyncClient",
    "Client",
    "CursorStore",
    "FileCursorStore",
    "Page",
    "Progress",
    "SqlCursorStore",
    "Tenant",
    "connect",
    "connect_async",
]
_LATER = {"ArrowPage": "tables", "Progress": "tables", "AsyncClient": "aio", "connect_async": "aio"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
