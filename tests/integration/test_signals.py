"""Ctrl-C while threads have queries under way: they end when they are stopped, not before."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, os, signal, threading, time

from tistream.cli.run import on_signals

asked, ended = [], threading.Event()
on_signals(lambda: asked.append(threading.current_thread() is threading.main_thread()))

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
print(json.dumps([raised, len(asked) > 0, all(asked)]))
"""


def test_a_signal_interrupts_no_query_of_another_thread() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True, timeout=120)
    assert json.loads(done.stdout) == [[], True, True]
