"""`tistream compile` calls every kernel that a pusher of a TiKV store needs: none is compiled while rows wait."""

from __future__ import annotations

from numba.core.dispatcher import Dispatcher

from pusher.core import cdcpb, cdcpb_rows
from tistream.cli import compiling


def test_the_feed_of_a_store_is_compiled() -> None:
    kernels = {
        name: value
        for module in (cdcpb, cdcpb_rows)
        for name, value in vars(module).items()
        if isinstance(value, Dispatcher) and name != "_scan_row" and not name.startswith("wire_")  # others call these
    }
    compiling.feed_of_a_store()
    assert {name: bool(kernel.signatures) for name, kernel in kernels.items()} == {
        "_scan": True,
        "_copy": True,
        "_scan_resolved": True,
    }
