"""`tistream compile`: compiles all row kernels, once for a user and version.

Kernels become machine code at their first call and are kept on disk (`tistream.codec.kernel_cache`). Without this
command the first start compiles while rows wait. Two processes share the work: one decodes a row of every column type
and reads a message of a store, the other plays the recording through a whole service and reads it. With a full cache it
takes a few seconds.
"""

from __future__ import annotations

import tempfile
import threading
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path

import typer

from tistream.errors import TiStreamError

_PATIENCE_S = 600.0
_LINE_EVERY_S = 5.0
_KEPT_S = 30 * 86_400.0  # kernels of other versions are removed after that
_CHANGES = 2000  # of the recording: once they are read, every stage has run


def compile_all() -> None:
    """Compile the row kernels ahead of the first start. It says every few seconds what is not ready.

    The result is kept on disk (NUMBA_CACHE_DIR)."""
    import numba  # noqa: F401 - where it is missing, the command says so before it starts processes

    from tistream.clock import SystemClock
    from tistream.codec import kernel_cache

    clock = SystemClock()
    began_s = clock.monotonic()
    spawning = get_context("spawn")
    processes = [spawning.Process(target=part, name=part.__name__.strip("_")) for part in (_decoders, _way_of_a_row)]
    for process in processes:
        process.start()
    while sentinels := [process.sentinel for process in processes if process.exitcode is None]:
        over = wait(sentinels, _LINE_EVERY_S)
        for process in processes:
            if process.sentinel in over:
                process.join()  # it says that it ends before it has ended
        spent_s = clock.monotonic() - began_s
        if spent_s > _PATIENCE_S:
            break
        going = [process.name.replace("_", " ") for process in processes if process.exitcode is None]
        if going and not over:
            typer.echo(f"  compiling for {spent_s:.0f} s; not ready: {' and '.join(going)}", err=True)
    for process in processes:
        if process.exitcode != 0:
            process.kill()
            raise TiStreamError(f"Compiling ahead failed in {process.name} (exit status {process.exitcode}).")
    kernel_cache.prune(clock.unix_ms() / 1000 - _KEPT_S)
    typer.echo(f"Compiled in {clock.monotonic() - began_s:.0f} s.")


def _decoders() -> None:
    from tistream.cli import warm

    warm.everything()
    feed_of_a_store()
    writes_to_a_store()


def feed_of_a_store() -> None:
    """What a pusher does with the change feed of a TiKV store; recordings take another way."""
    from pusher.core.cdcpb_rows import read_entries
    from simulator.core.mvcc import RowColumns, Version
    from simulator.serve.core.rows import encode_rows
    from tistream.keyrange import KeyRange
    from tistream.model.change import Op

    rows = RowColumns()
    rows.add_committed(b"t", Version(1, 2, Op.PUT, b"new", b"old"))
    entries = b"".join(encode_rows(rows, KeyRange(), filter_loop=False))
    read_entries(entries)


def writes_to_a_store() -> None:
    """What a changefeed to TiKV does with a batch."""
    import numpy as np
    import pyarrow as pa

    from tistream.tikv.core.api_versions import Api
    from tistream.tikv.core.raw_messages import Columns, RawSpace, put_body

    columns = Columns.of(pa.array([b"k"], pa.binary()), pa.array([b"v"], pa.binary()))
    if columns.is_rising:
        put_body(RawSpace(Api.V2), columns, np.arange(1), np.ones(1, np.uint64))


def _way_of_a_row() -> None:
    """From the pushers to a reader, in a temporary folder."""
    from tistream.cli import assembly
    from tistream.cli.run import settings_in

    with tempfile.TemporaryDirectory(prefix="tistream-compile-") as folder:
        running = assembly.embedded(settings_in(Path(folder), 0), Path(folder), warm_up=False)
        running.start()
        try:
            _push_and_read(running.url)
        finally:
            running.close()


def _push_and_read(url: str) -> None:
    from simulator import demo
    from tistream.cli import push
    from tistream.client import Client

    tenant, changes = demo.TENANT, 0

    def feed(url: str, stop: threading.Event) -> None:
        push.push_recording(demo.RECORDING, url, tenant, None, stop=stop)

    with Client(url) as client:
        client.tenant(tenant.cluster_id, tenant.tenant_id).register()
        with demo.Pushing(feed, url) as pushing:
            for page in client.tenant(tenant.cluster_id, tenant.tenant_id).follow().pages():
                changes += len(page.lines())
                if pushing.error is not None:
                    raise pushing.error
                if changes > _CHANGES:
                    return
