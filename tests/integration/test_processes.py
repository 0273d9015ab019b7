"""Processes: their end, signals, probes and metrics."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from simulator.chaos.servers.processes import TiStreamProcess, running
from tests.kit.catalog_cases import begin
from tests.kit.log_builder import LogBuilder
from tests.kit.waiting import WAIT_S, eventually
from tistream import config
from tistream.catalog.database.engine import Catalog
from tistream.catalog.work.stores import issue_incarnation
from tistream.cli import assembly
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.objectstore.local import LocalStore
from tistream.runtime.metrics import described

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
    """Names of the threads that read from dispatchers, and write to them."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("feed grpc://")]


def test_a_sorter_that_has_ended_reads_from_no_dispatcher(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    where = {"catalog.url": f"sqlite:///{tmp_path}/catalog.db", "object_store.url": f"file://{tmp_path}/bucket"}
    settings = config.load(None, {}, {**where, "server.port": 0, "sorter.drain_timeout_s": 0})
    parts = [assembly.open_parts(settings) for _ in range(3)]
    begin(parts[0].catalog, T, 1, KeyRange(b"a", b"z"))
    issue_incarnation(parts[0].catalog, T, 7)
    services = (assembly.meta(parts[0], "m"), assembly.dispatcher(parts[1], "d"), assembly.sorter(parts[2], "s"))
    for each in services:
        each.start()
    try:
        eventually(exchanges)
    finally:
        sorter = services[2]
        sorter.close()
        left = exchanges()
        for each in services[:2]:
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


def test_who_comes_back_from_a_library_too_late_does_not_crash_a_command(tmp_path: Path) -> None:
    """A command that succeeds, and one that fails."""
    for args, status in (("--version",), 0), (("raw", "check", "--storage", f"file://{tmp_path}"), 2):
        process = subprocess.run([sys.executable, "-c", LATE, *args], capture_output=True, text=True, check=False)
        assert process.returncode == status, process.stderr
    assert "no complete backup" in process.stderr


def told_port(process: TiStreamProcess) -> str:
    """The address that the process says when it has started."""
    deadline = time.monotonic() + WAIT_S
    while not (match := re.search(r"probes at (http://[\d.]+:\d+)", process.output())):
        assert process.alive, process.output()
        assert time.monotonic() < deadline, process.output()
        time.sleep(0.05)
    return match[1]


def until_ready(url: str) -> dict[str, str]:
    deadline = time.monotonic() + WAIT_S
    while True:
        answer = httpx2.get(f"{url}/readyz")
        if answer.status_code == 200:
            checks: dict[str, str] = answer.json()["checks"]
            return checks
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.1)


def shown(url: str) -> dict[str, float]:
    """Families without labels, and their values."""
    families = text_string_to_metric_families(httpx2.get(f"{url}/metrics").text)
    return {s.name: s.value for family in families for s in family.samples if not s.labels}


def test_a_dispatcher_and_a_sorter_show_what_they_do(tmp_path: Path) -> None:
    where = ("--catalog", f"sqlite:///{tmp_path}/catalog.db", "--object-store", f"file://{tmp_path}/bucket")
    catalog = Catalog(where[1])
    catalog.migrate()
    LogBuilder(catalog, LocalStore(tmp_path / "bucket")).register()
    processes = [
        TiStreamProcess(role, "--name", f"{role}-1", *where, "--metrics-port", "0", log=tmp_path / f"{role}.log")
        for role in ("dispatch", "sort")
    ]
    with running(processes):
        names: set[str] = set()
        for process in processes:
            url = told_port(process)
            assert until_ready(url) == {"catalog": "ok", "object store": "ok", "lease": "ok", "services": "ok"}
            assert httpx2.get(f"{url}/healthz").json()["status"] == "ok"
            samples = shown(url)
            assert 0 <= samples["tistream_lease_age_seconds"] < WAIT_S
            assert samples["process_resident_memory_bytes"] > 1e6
            names |= set(samples)
        assert {"tistream_dispatcher_stores", "tistream_sorter_tasks", "tistream_sorter_held_bytes"} <= names
        assert all(process.stop() == 0 for process in processes)
    catalog.close()


def test_without_being_told_there_is_no_port() -> None:
    assert config.load().metrics.port == -1


def test_every_name_that_is_shown_is_a_documented_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text("utf-8")
    assert all(f"`{each.name}`" in page for each in described())


QUERIES = """
import json, os, signal, threading, time

from tistream.cli.run import on_signals

asked, ended = [], threading.Event()
on_signals(lambda: asked.append(True))

import polars as pl

raised = []

def query():
    rows = pl.DataFrame({"a": range(100_000)})
    while not ended.is_set():
        try:
            rows.select(pl.col("a").sort().cum_sum())
        except BaseException as e:
            raised.append(repr(e))

threads = [threading.Thread(target=query) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(300):
    time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
ended.set()
for thread in threads:
    thread.join()
print(json.dumps([raised, len(asked) > 0]))
"""

#: signals meet the main thread inside the lock of the event that they set
EVENTS = """
import os, signal, threading

from tistream.cli.run import on_signals

stopped, over = threading.Event(), threading.Event()
on_signals(stopped.set)

def ask():
    for _ in range(20_000):
        os.kill(os.getpid(), signal.SIGTERM)
    over.set()

threading.Thread(target=ask).start()
while not over.is_set():
    stopped.set()
    stopped.clear()
os.kill(os.getpid(), signal.SIGINT)
print(stopped.wait(10))
"""


ENDING = """
import os, signal, time

from tistream.cli.run import on_signals

on_signals(lambda: print("drains", flush=True), lambda: print("stops", flush=True))
for _ in range(3):
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)
time.sleep(10)
"""


def test_the_signal_behind_the_last_step_ends_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, timeout=60, text=True, check=False)
    assert (done.stdout.split(), done.returncode) == (["drains", "stops"], -signal.SIGTERM)


def test_a_signal_interrupts_no_query_of_another_thread() -> None:
    done = subprocess.run([sys.executable, "-c", QUERIES], capture_output=True, check=True, timeout=120)
    assert json.loads(done.stdout) == [[], True]


def test_a_signal_never_waits_for_a_lock_of_the_thread_that_it_interrupts() -> None:
    done = subprocess.run([sys.executable, "-c", EVENTS], capture_output=True, check=True, timeout=60, text=True)
    assert done.stdout.split() == ["True"]
