"""What commands and roles do with their process: memory, pandas, the port of metrics, kernels."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from numba.core.dispatcher import Dispatcher
from typer.testing import CliRunner

from pusher.core import cdcpb, cdcpb_rows
from tistream.cli import assembly, compiling, run
from tistream.cli.main import command_line

FAULTS = """
import resource, numpy as np
from tistream.cli.process_memory import keep_freed_memory
assert not {keep} or keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def fill():
    for _ in range(4):
        arrays = [np.ones(3 << 20, np.uint8) for _ in range(16)]
        del arrays
fill()
before = faults()
fill()
print(faults() - before)
"""


def test_freed_memory_is_used_again() -> None:
    with_setting, without = (
        int(subprocess.run([sys.executable, "-c", FAULTS.format(keep=keep)], check=True, capture_output=True).stdout)
        for keep in (True, False)
    )
    assert with_setting * 10 < without


KEPT_OUT = """
import sys
import pyarrow as pa
from tistream.cli.process_memory import keep_pandas_out
if {kept_out}:
    keep_pandas_out()
array = pa.array([1, None])
assert ("pandas" in sys.modules) is not {kept_out}
frame = pa.table({{"a": array}}).to_pandas()
assert pa.Table.from_pandas(frame)["a"].to_pylist()[0] == 1
import pandas
assert pa.array(pandas.Series([1, 2]), from_pandas=True).to_pylist() == [1, 2]
"""


def test_an_array_imports_no_pandas_and_a_conversion_does() -> None:
    for kept_out in (True, False):  # with pyarrow as it is, the first array imports it
        subprocess.run([sys.executable, "-c", KEPT_OUT.format(kept_out=kept_out)], check=True)


ROLES = {"meta": "meta", "dispatch": "dispatcher", "sort": "sorter", "maintain": "maintain", "serve": "api_server"}


@pytest.mark.parametrize("role", ROLES)
def test_a_process_has_the_port_that_its_flag_names(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(assembly, "open_process", lambda settings, *_: settings)
    monkeypatch.setattr(assembly, ROLES[role], lambda settings, *_: settings)
    monkeypatch.setattr(run, "_run", started.append)
    where = ["--catalog", "sqlite:///never.db", "--object-store", "memory://"]
    done = CliRunner().invoke(command_line(), [role, *where, "--metrics-port", "9464"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert [settings.metrics.port for settings in started] == [9464]


def test_the_feed_of_a_store_is_compiled() -> None:
    kernels = {
        name: value
        for module in (cdcpb, cdcpb_rows)
        for name, value in vars(module).items()
        if isinstance(value, Dispatcher) and name != "_scan_row" and not name.startswith("wire_")  # others call these
    }
    compiling.feed_of_a_store()
    assert {name: bool(kernel.signatures) for name, kernel in kernels.items()} == {"_scan": True, "_copy": True}
