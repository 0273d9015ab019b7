"""The warm-up compiles for every kind of column, and its failure is nobody's concern."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from reading.pages.body import render
from tistream.cli import warm
from tistream.codec.row.decode import decode
from tistream.codec.row.layout import ValueKind, kind_of


def test_every_kind_of_column_is_decoded_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[ValueKind] = set()

    def spy(layout, keys, values):  # type: ignore[no-untyped-def]
        decoded = decode(layout, keys, values)
        assert not decoded.errors
        seen.update(map(kind_of, layout.columns))
        return decoded

    texts: list[bytes] = []

    def rendered(*args: Any) -> pa.Buffer:
        content = render(*args)
        texts.append(content.to_pybytes())
        return content

    monkeypatch.setattr("reading.rows.decode.decode", spy)
    monkeypatch.setattr("reading.pages.body.render", rendered)
    for columns in (warm._INTEGERS, warm._COMMON, warm._RARE):
        warm.warm(columns)
        last = f"c{len(columns) + 1}".encode()
        assert [text.count(b"\n") for text in texts] == [4] * len(warm._FORMATS)
        assert all(last in line for text in texts for line in text.splitlines())
        texts.clear()
    assert seen == set(ValueKind) - {ValueKind.UNKNOWN}


def test_a_failure_ends_the_thread_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("no room for the cache")

    monkeypatch.setattr(warm, "warm", fail)
    thread = warm.start()
    thread.join(100)
    assert not thread.is_alive()


#: imports the command line as a service does, then lists the modules that the warm-up adds
_ADDED = """
import json, sys
from tistream.cli import warm
before = set(sys.modules)
warm.everything()
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_the_thread_imports_nothing() -> None:
    """Two threads that import one package wait for each other's modules, and Python lets one of them fail."""
    run = subprocess.run([sys.executable, "-c", _ADDED], capture_output=True, text=True, check=True, timeout=200)
    rooms = ("reading", "schemas", "tistream")
    added = json.loads(run.stdout.splitlines()[-1])
    assert [name for name in added if name.partition(".")[0] in rooms] == []
