"""A process that ends leaves no thread of its own inside a library, and what a library still does ends with it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.kit.waiting import WAIT_S, eventually
from tistream import config
from tistream.catalog.tenancy.tenants import NewTask, TaskKind, activate_tenant, register_tenant
from tistream.catalog.work.stores import issue_incarnation
from tistream.cli import assembly
from tistream.ids import Tenant
from tistream.keyrange import KeyRange

T = Tenant(1, 1)

# A C library that calls back when the process exits, by when the interpreter is gone: as a thread does that comes back
# from a call that took longer.
LATE = """
import ctypes, sys
from tistream.cli.main import main

late = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
ctypes.CDLL(None).__cxa_atexit(late, None, None)
sys.argv[0] = "tistream"
main()
"""


def exchanges() -> list[str]:
    """The threads that read from dispatchers, and write to them."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("feed grpc://")]


def test_a_sorter_that_has_ended_reads_from_no_dispatcher(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    where = {"catalog.url": f"sqlite:///{tmp_path}/catalog.db", "object_store.url": f"file://{tmp_path}/bucket"}
    settings = config.load(None, {}, {**where, "server.port": 0, "sorter.drain_timeout_s": 0})
    parts = [assembly.open_parts(settings) for _ in range(3)]
    register_tenant(parts[0].catalog, T)
    assert activate_tenant(parts[0].catalog, T, 1, [NewTask(kind=TaskKind.DATA, range=KeyRange(b"a", b"z"))])
    issue_incarnation(parts[0].catalog, T, 7)
    made = (assembly.meta(parts[0], "m"), assembly.dispatcher(parts[1], "d"), assembly.sorter(parts[2], "s"))
    for each in made:
        each.start()
    try:
        eventually(exchanges)
    finally:
        sorter = made[2]
        sorter.close()
        left = exchanges()
        for each in made[:2]:
            each.close()
    assert left == []


def test_who_comes_back_from_a_library_too_late_does_not_crash_a_service(tmp_path: Path) -> None:
    args = ("up", "--data", str(tmp_path), "--port", "0", "--auth", "none")
    with subprocess.Popen([sys.executable, "-c", LATE, *args], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any("Ctrl-C stops it" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()  # `with` would wait for it
