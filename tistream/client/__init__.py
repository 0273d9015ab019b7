"""The Python client: `connect(url)`, or `connect_async(url)`, then pull."""

from tistream.client.aio import AsyncClient, connect_async
from tistream.client.api import Client, connect
from tistream.client.cursors import CursorStore, FileCursorStore, SqlCursorStore
from tistream.client.exchange import Page, Tenant
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
