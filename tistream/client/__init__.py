"""The Python client: `connect(url)`, then pull."""

from tistream.client.api import Client, Page, connect

__all__ = ["Client", "Page", "connect"]
