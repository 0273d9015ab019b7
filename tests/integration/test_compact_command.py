"""`tistream compact` without Spark, from the command line's words to its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.kit.catalog_cases import new_catalog
from tests.kit.log_builder import TENANT, LogBuilder, recording_end
from tistream.catalog.database.engine import Catalog
from tistream.catalog.work.stopped_items import list_stopped_items
from tistream.cli.main import command_line
from tistream.errors import InvalidInput
from tistream.objectstore.local import LocalStore


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A built log, and where it is."""
    catalog = new_catalog(tmp_path)
    LogBuilder(catalog, LocalStore(tmp_path / "bucket")).build(10)
    catalog.close()
    where = [f"--catalog=sqlite:///{tmp_path}/catalog.db", f"--object-store=file://{tmp_path}/bucket"]
    return ["compact", "--cluster=1", "--tenant=1", *where]


def test_a_log_is_compacted_once(words: list[str]) -> None:
    def report(*more: str) -> dict[str, object]:
        done = CliRunner().invoke(command_line(), [*words, "--engine=threads", *more], catch_exceptions=False)
        summary: dict[str, object] = json.loads(done.stdout)
        return summary

    assert report("--lag-s=99999999")["end"] == "nothing to do", "all of it is younger"
    first = report("--lag-s=0")
    assert (first["end"], first["tenant"], first["job"]) == ("committed", "1/1", 1)
    assert int(str(first["files_after"])) < int(str(first["files_before"]))
    assert report("--lag-s=0")["end"] == "nothing to do"


def test_bases_are_built_once(words: list[str]) -> None:
    def report(*more: str) -> dict[str, Any]:
        done = CliRunner().invoke(
            command_line(), [*words, "--engine=threads", "--lag-s=0", "--base-tail-mb=0", *more], catch_exceptions=False
        )
        summary: dict[str, Any] = json.loads(done.stdout)
        return summary

    assert "bases" not in report("--no-bases", "--no-merge")
    first = report("--no-merge")
    assert first.keys() == {"bases"}
    assert (first["bases"]["end"], first["bases"]["ts"]) == ("committed", str(recording_end()))
    assert first["bases"]["tables"] > 10 < first["bases"]["rows"]
    again = report()
    assert (again["end"], again["bases"]["end"]) == ("committed", "nothing to do")


def test_a_spark_setting_is_a_pair(words: list[str]) -> None:
    with pytest.raises(InvalidInput, match="NAME=VALUE"):
        CliRunner().invoke(command_line(), [*words, "--spark-conf=spark.executor.cores"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("role", "other", "folder"), [("compaction", "bases", "committed"), ("bases", "merge", "bases")]
)
def test_a_skipped_item_is_a_stop(words: list[str], tmp_path: Path, role: str, other: str, folder: str) -> None:
    def run(lag_s: int = 0) -> tuple[int, list[tuple[str, str, int]]]:
        more = ["--engine=threads", f"--lag-s={lag_s}", "--base-tail-mb=0", "--base-tail-ratio=0", f"--no-{other}"]
        done = CliRunner().invoke(command_line(), [*words, *more])
        catalog = Catalog(f"sqlite:///{tmp_path}/catalog.db")
        stops = [row.stopped for row in list_stopped_items(catalog, TENANT)]
        catalog.close()
        assert all(str(tmp_path / "bucket" / stopped.object) in map(str, whole) for stopped in stops)
        return done.exit_code, [(stopped.role, stopped.code, stopped.tries) for stopped in stops]

    whole: dict[Path, bytes] = {}
    if role == "bases":
        assert run(lag_s=3) == (0, [])
    whole |= {p: p.read_bytes() for p in (tmp_path / "bucket" / folder).rglob("*") if p.is_file()}
    for path in whole:
        path.write_bytes(b"")
    assert run() == (1, [(role, "TS-1020", 1)])
    assert run() == (1, [(role, "TS-1020", 2)])
    for path, data in whole.items():
        path.write_bytes(data)
    assert run() == (0, [])
