"""The cost of the API over the bytes that it serves, over a real port, with a checked key.

The baseline serves the same bytes in the plainest way: an address of the same server, before all of its middleware,
that streams them from a file with Starlette's `FileResponse`. The server is a separate process; the client is a socket
that reads as fast as it can. The bytes must be equal, and the rows of each pull those of the log.

    table    undecoded rows of one table as Arrow, cut at both ends: its segments follow one another in commit order
    tenant   the same for four tables in three tasks: rows are put into commit order across segments
    file     a committed file as it is in the bucket

`cold` fetches and unpacks each segment for each answer, as for a single reader; `warm` has them in the reader's memory,
as when several readers follow one another.
"""

from __future__ import annotations

import http.client
import multiprocessing
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from starlette.responses import FileResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from apiserver.app import create_app
from benchmarks import rows as synthetic
from benchmarks.harness import Result, compare
from reading.log.reader import LogReader
from reading.pages.arrow import RAW
from tests.kit.api_world import BASE, api_world
from tests.kit.log_builder import TENANT, recording_end
from tests.kit.made_rows import table_of
from tests.kit.recording import committed_rows
from tistream.cli.server import HttpServer
from tistream.http.auth.authenticator import Authenticator
from tistream.http.auth.core.roles import Role
from tistream.http.auth.issue import issue_key
from tistream.model import change
from tistream.objectstore.factory import open_store

_ROWS = 120_000
_FLUSHES = 8
_TABLES = {270: ("shop_arch", "bulk5k"), 118: ("shop", "customers"), 120: ("shop", "tags"), 264: ("shop", "acct")}
_PAGE = "limit=200000&format=raw-arrow"


def run() -> Iterator[Result]:
    """Undecoded rows as Arrow, and a committed file, each against its own bytes."""
    ours, theirs = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, folder), daemon=True)
        server.start()
        port, key, largest = ours.recv()
        try:
            yield from _ratios(Path(folder), http.client.HTTPConnection("127.0.0.1", port, timeout=120), key, largest)
        finally:
            ours.send("stop")
            server.join(30)


def _ratios(folder: Path, http_: http.client.HTTPConnection, key: str, largest: str) -> Iterator[Result]:
    log = rows()
    at = log["commit_ts"].to_numpy()
    cut = f"start_ts={at[_ROWS // 20]}&end_ts={at[-_ROWS // 20]}"
    addresses = {
        "table": f"{BASE}/databases/shop_arch/tables/bulk5k/changes?{cut}&{_PAGE}",
        "tenant": f"{BASE}/changes?{cut}&{_PAGE}",
    }
    middle = log.slice(_ROWS // 20 + 1, _ROWS - 2 * (_ROWS // 20))
    for name, address in addresses.items():
        for heat in ("cold", "warm"):
            ask = partial(_get, http_, f"/{heat}{address}", key)
            content = ask()
            (folder / f"{name}-{heat}").write_bytes(content)
            _prove(content, middle if name == "tenant" else middle.filter(pc.equal(middle["table_id"], 270)))
            plain = partial(_get, http_, f"/plain/{name}-{heat}")
            mib = f"{len(content) >> 20} MiB"
            yield compare(f"api-serving/{name} {heat} {mib}", ask, plain, proof=_same, target=0.9)
    ask = partial(_get, http_, f"/warm{largest}", key)
    (folder / "file").write_bytes(ask())
    yield compare("api-serving/file", ask, partial(_get, http_, "/plain/file"), proof=_same, target=0.9)


def _same(a: bytes, b: bytes) -> bool:
    return a == b


def _prove(content: bytes, expected: pa.Table) -> None:
    """The rows of an answer are the first of these, with the names of their tables, in order."""
    table = pa.ipc.open_stream(content).read_all()
    expected = expected.slice(0, table.num_rows)
    names = [_TABLES[n] for n in expected["table_id"].to_pylist()]
    columns = [pa.array([name[n] for name in names], pa.string()) for n in (0, 1)]
    if table.num_rows < _ROWS // 4 or not table.equals(pa.table([*columns, *expected.columns], schema=RAW)):
        raise ValueError("a pull gives other rows than the log has")


def rows() -> pa.Table:
    """Rows of four tables in commit order: 450 bytes each, half of them in the first table."""
    generated = synthetic.change_rows(_ROWS)
    rng = np.random.default_rng(2)
    apart = (1_500 << 18) // _ROWS  # all of them after the recording's last DDL
    commit_ts = np.uint64(recording_end()) - np.arange(_ROWS, 0, -1, dtype=np.uint64) * np.uint64(apart)
    tables = np.array(list(_TABLES))[rng.choice(len(_TABLES), _ROWS, p=[0.55, 0.15, 0.15, 0.15])]
    flat = np.zeros((_ROWS, 19), np.uint8)
    flat[:, 0] = ord("t")
    flat[:, 1:9] = _comparable(tables)
    flat[:, 9:11] = np.frombuffer(b"_r", np.uint8)
    flat[:, 11:] = _comparable(rng.permutation(_ROWS))
    keys = pa.FixedSizeBinaryArray.from_buffers(pa.binary(19), _ROWS, [None, pa.py_buffer(flat)]).cast(pa.binary())
    old = pc.if_else(pa.array(rng.random(_ROWS) < 0.2), generated.column("value"), pa.scalar(None, pa.binary()))
    stamps = {"start_ts": commit_ts - np.uint64(5), "commit_ts": commit_ts}
    images = {"value": generated.column("value"), "old_value": old}
    return table_of(change.COMMITTED, table_id=tables, op=generated.column("op"), key=keys, **stamps, **images)


def _with_ddl(generated: pa.Table) -> pa.Table:
    """The rows and those of the recording's system tables, from which the schema history is made."""
    recorded = committed_rows()
    recorded = recorded.filter(pc.greater(recorded["table_id"], 1 << 47))
    return pa.concat_tables([recorded, generated]).sort_by("commit_ts")


def _comparable(numbers: Any) -> Any:
    return (numbers.astype(np.int64) ^ np.int64(-(2**63))).astype(">i8").view(np.uint8).reshape(-1, 8)


def _get(connection: http.client.HTTPConnection, path: str, key: str = "") -> bytes:
    connection.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 200:
        raise ValueError(content[:500])
    return content


def serve(parent: Connection, folder: str) -> None:
    """Build the log and serve it, and the files that the parent leaves in the folder, until stopped."""
    with ExitStack() as stack:
        inside = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (inside / "bucket").mkdir()
        world = stack.enter_context(api_world(inside, open_store(f"file://{inside}/bucket"), _with_ddl(rows())))
        world.log.build(_FLUSHES)
        authenticator = Authenticator(world.catalog, world.clock)
        key = issue_key(world.catalog, name="benchmark", role=Role.CONSUMER, tenant=TENANT)
        cold = replace(world.services, reader=LogReader(world.catalog, world.store, world.clock, cache_bytes=0))
        app = create_app(world.services, authenticator=authenticator)
        both = _Both({"/warm": app, "/cold": create_app(cold, authenticator=authenticator)}, Path(folder))
        server = HttpServer(cast("Any", both), "127.0.0.1", 0, app.state.followers.close)
        server.start()
        files = world.ok("/files", format="all").json()["items"]
        largest = max(files, key=lambda item: int(item["bytes"]))["url"].removeprefix("http://testserver")
        parent.send((int(server.url.rpartition(":")[2]), key.text, largest))
        parent.recv()
        server.stop()


class _Both:
    """Applications by the first word of the path; `/plain/` are files, with nothing before them."""

    def __init__(self, apps: dict[str, ASGIApp], folder: Path) -> None:
        self._apps, self._folder = apps, folder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._apps["/warm"](scope, receive, send)
        word, path = scope["path"][:5], scope["path"][5:]
        if scope["path"].startswith("/plain/"):
            return await FileResponse(self._folder / scope["path"][7:])(scope, receive, send)
        await self._apps[word]({**scope, "path": path, "raw_path": path.encode()}, receive, send)
