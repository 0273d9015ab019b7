"""`tistream catalog restore` over a folder: what it prints for people, and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit.catalog_cases import elected, new_catalog
from tests.kit.invoked import invoke
from tests.kit.log_builder import TENANT, LogBuilder
from tistream.catalog.tenancy.consumers import add_consumer
from tistream.clock import SystemClock
from tistream.exports import restore as restore_module
from tistream.exports.exporter import Exporter
from tistream.objectstore.factory import open_store
from tistream.objectstore.generations import FIRST, GenerationWatch
from tistream.ts import to_text


def test_each_reader_is_named_for_people_and_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    bucket = f"file://{tmp_path}/bucket"
    catalog, store = new_catalog(tmp_path), open_store(bucket)
    log = LogBuilder(catalog, store).activate()
    add_consumer(catalog, TENANT, "warehouse", None)
    Exporter(catalog, store, GenerationWatch(store, FIRST, SystemClock())).step(elected(catalog))
    log.seed()
    catalog.close()
    monkeypatch.setattr(restore_module, "PAUSE_S", 0.0)
    capfd.readouterr()  # log lines of the export

    def restored(name: str, *more: str) -> tuple[str, str]:
        where = ("--catalog", f"sqlite:///{tmp_path}/{name}.db", "--object-store", bucket)
        status, out, err = invoke(monkeypatch, capfd, "catalog", "restore", *where, *more)
        assert status == 0, err
        return out, err

    out, err = restored("programs", "--json")
    facts = json.loads(out)
    assert "generation 2 is opened" in err
    assert (facts["generation"], facts["seeds_adopted"]) == (2, 1)
    (reader,) = facts["readers"]
    assert reader == {
        "tenant": "1/1",
        "kind": "consumer",
        "name": "warehouse",
        "state": "normal",
        "continues_ts": str(log.start_ts),
        "continues_time": to_text(log.start_ts),
        "repeats": "changes",
        "keeps_names_upto_ts": None,
    }
    out, _ = restored("people")
    assert "generation 3 is opened" in out
    assert "seed of tenant 1/1 at" in out
    (line,) = (
        line for line in out.splitlines() if line.startswith("consumer warehouse of tenant 1/1 continues above ")
    )
    assert line.endswith("Its members get again what they acknowledged since then.")
