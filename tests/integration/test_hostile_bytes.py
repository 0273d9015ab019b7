"""Objects made to exhaust a service are refused for little memory, and real ones of the largest size are not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from schemas.history import History
from schemas.registry.pushed import history_of, is_small, saved
from tests.kit.hostile_bytes import ATTACKS, real_schema
from tistream.errors import CorruptObject
from tistream.limits import SCHEMA_WORKER_BYTES_MAX
from tistream.runtime.confined import confined

TABLES = 100_000
MIB_MAX = 96  #: that one object takes in the process that reads it
PROCESS_MIB_MAX = (SCHEMA_WORKER_BYTES_MAX >> 20) + 128  #: of the process that parses a large schema, with its imports


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What became of each attack, and of the real schema, in one process with a bound."""
    folder = tmp_path_factory.mktemp("hostile")
    for name, attack in ATTACKS.items():
        data = attack.make()
        assert len(data) < 1 << 20, "small in the bucket"
        (folder / f"{attack.kind}.{name}").write_bytes(data)
    (folder / "schema.a-real-one").write_bytes(real_schema(TABLES))
    run = [sys.executable, "-m", "tests.kit.hostile_reader", str(folder)]
    done = subprocess.run(run, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0, done.stderr
    return {said["name"]: said for said in map(json.loads, done.stdout.splitlines())}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_for_little_memory(outcomes: dict[str, dict[str, Any]], name: str) -> None:
    said = outcomes[name]
    assert said["became"].startswith("CorruptObject"), said
    assert said["mib"] <= MIB_MAX, said
    assert said["process_mib"] <= PROCESS_MIB_MAX, said


def test_a_real_schema_of_100_000_tables_passes_for_little_memory(outcomes: dict[str, dict[str, Any]]) -> None:
    said = outcomes["a-real-one"]
    assert said["became"] == "used"
    assert said["mib"] <= MIB_MAX, said


def test_a_process_answers_with_what_parsing_here_gives() -> None:
    small, large = real_schema(20), real_schema(1000)
    assert is_small(small)
    assert not is_small(large)
    history = history_of(small)
    assert saved(small) == history.dump()
    assert History.load(saved(small)).snapshot(history.start_ts) == history.snapshot(history.start_ts)
    assert len(history_of(large).snapshot(history.start_ts).tables) == 1000


def too_much(_: bytes) -> bytes:
    return bytes(1 << 30)


def too_long(_: bytes) -> bytes:
    while True:
        pass


def too_deep(_: bytes) -> bytes:
    return too_deep(_)


def dies(_: bytes) -> bytes:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("name", "cause"),
    [("too_much", "64 MiB of memory"), ("too_long", "more than 3 s"), ("too_deep", "too deeply"), ("dies", "with 3")],
)
def test_what_a_function_does_in_its_process_is_one_error_here(name: str, cause: str) -> None:
    seconds = 3 if name == "too_long" else 120
    with pytest.raises(CorruptObject, match=cause):
        confined(f"tests.integration.test_hostile_bytes:{name}", b"", memory_bytes=64 << 20, seconds=seconds)
