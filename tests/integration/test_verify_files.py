"""`tistream changefeed verify` of files: what a worker has written is right; what is twice, behind or missing is found
with the names of the files, and what an event names is no fault."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from reading.served.services import Services
from replicator.worker import ReplicationWorker
from tests.kit.dead_letters import CANAL
from tests.kit.lane_feed import give_lanes, letters_of_operators, open_operated
from tests.kit.log_builder import TENANT, recording_end
from tests.kit.served_log import ServedLog, served_log
from tests.kit.waiting import eventually
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.cli.main import command_line
from tistream.clock import SystemClock

CLOCK = SystemClock()
PROTOCOLS = {
    "canal": CANAL,
    "csv": "protocol=csv&include-commit-ts=true&output-old-value=true",
    "parquet": "protocol=parquet",
}


@dataclass
class Written:
    """The recording in a folder, by a changefeed whose name is that of the protocol."""

    served: ServedLog
    name: str
    folder: Path

    def verify(self) -> tuple[int, dict[str, Any]]:
        """(exit status, facts)."""
        more = ["-c", "1", "-t", "1", "--url", self.served.url, "--json"]
        done = CliRunner().invoke(command_line(["changefeed"]), ["changefeed", "verify", self.name, *more])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.output
        return done.exit_code, json.loads(done.stdout)

    def files_of(self, table: str) -> list[Path]:
        """In the order in which they are read."""
        found = self.folder.glob(f"shop/{table}/*/**/CDC0*")
        return sorted(found, key=lambda path: (int(path.relative_to(self.folder).parts[2]), path))

    def after(self, path: Path) -> Path:
        """The name of a next file in the folder of this one."""
        newest = max(path.parent.glob("CDC0*")).name
        return path.with_name(f"CDC{int(newest[3:9]) + 1:06d}{path.suffix}")

    def place(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def replicate(self) -> None:
        """Write until everything is there."""
        with worker(self.served):
            eventually(self._is_done, lambda: str(CHANGEFEEDS.get(self.served.catalog, TENANT, self.name)))

    def _is_done(self) -> bool:
        return CHANGEFEEDS.get(self.served.catalog, TENANT, self.name).checkpoint_ts >= recording_end()


@contextmanager
def worker(served: ServedLog) -> Iterator[None]:
    """One that has all lanes."""
    services, opened = Services.create(served.catalog, served.store, CLOCK), partial(open_operated, served.catalog)
    made = ReplicationWorker(services, "w", opened, letters_of_operators, slots=2, look_s=0.05)
    made.start()
    try:
        assert made.wait_until_ready(60)
        give_lanes(served.catalog, "w")
        yield
    finally:
        made.stop()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedLog]:
    with served_log(tmp_path_factory.mktemp("log")) as made:
        made.log.build(4)
        yield made


@pytest.fixture(scope="module", params=PROTOCOLS)
def original(served: ServedLog, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Written:
    name, folder = str(request.param), tmp_path_factory.mktemp(str(request.param)) / "lake"
    new = {"changefeed_id": name, "start_ts": "earliest", "sink_uri": f"file://{folder}?{PROTOCOLS[name]}", "lanes": 2}
    httpx2.post(f"{served.base}/changefeeds", json=new, timeout=60).raise_for_status()
    written = Written(served, name, folder)
    written.replicate()
    return written


@pytest.fixture
def written(original: Written, tmp_path: Path) -> Iterator[Written]:
    """As the worker has left it; put back behind the test."""
    shutil.copytree(original.folder, tmp_path / "kept")
    yield original
    shutil.rmtree(original.folder)
    shutil.copytree(tmp_path / "kept", original.folder)


def test_what_a_worker_has_written_is_right(written: Written) -> None:
    status, facts = written.verify()
    assert (status, facts["equal"], facts["found"]) == (0, True, [])
    assert facts["as_of"] == str(recording_end())
    assert facts["rows"] > 2000
    assert facts["files"] == len(list(written.folder.rglob("CDC0*")))


def test_a_file_that_is_there_again_is_a_fault(written: Written) -> None:
    first = written.files_of("acct")[0]
    again = written.after(first)
    shutil.copy(first, again)
    status, facts = written.verify()
    (found,) = facts["found"]
    assert (status, facts["equal"], found["kind"]) == (1, False, "again")
    assert (found["place"], found["other"]) == (written.place(again), written.place(first))
    assert found["rows"] == facts["again"] == rows_in(first) > 1


def test_changes_that_are_missing_are_a_fault(written: Written) -> None:
    gone = written.files_of("acct")[-1]
    rows = rows_in(gone)
    gone.unlink()
    status, facts = written.verify()
    (found,) = facts["found"]
    assert (status, found["kind"], found["place"]) == (1, "lost", "shop.acct")
    assert 1 < found["rows"] <= rows


def test_changes_behind_later_ones_are_a_fault(written: Written) -> None:
    """The first file of a folder is read last."""
    of_table = written.files_of("acct")
    first = of_table[0]
    rows = rows_in(first)
    behind = written.after(first)
    first.rename(behind)
    begins = [path for path in of_table if path.parent == first.parent and path != first]
    if not begins:  # one file a folder: its second half goes into a file of a lower number
        split(behind, first)
        rows = rows_in(behind)
    status, facts = written.verify()
    assert status == 1
    assert {found["kind"] for found in facts["found"]} == {"behind"}
    assert {found["place"] for found in facts["found"]} == {written.place(behind)}
    assert facts["behind"] == rows


def test_what_an_event_names_is_told_and_no_fault(written: Written) -> None:
    """An operator lets the changefeed write all of it again."""
    path = f"{written.served.base}/changefeeds/{written.name}"
    httpx2.post(f"{path}:pause", timeout=60).raise_for_status()
    before = set(written.folder.rglob("CDC0*"))
    begins = get_tenant(written.served.catalog, TENANT).start_ts
    httpx2.post(f"{path}:resume", json={"checkpoint_ts": str(begins)}, timeout=60).raise_for_status()
    written.replicate()
    new = {written.place(path) for path in set(written.folder.rglob("CDC0*")) - before}
    status, facts = written.verify()
    assert (status, facts["equal"]) == (0, True), facts["found"][:3]
    assert facts["again_named"] > 1000
    assert {found["kind"] for found in facts["found"]} <= {"again_named", "behind_named"}
    assert {found["place"] for found in facts["found"]} <= new


def rows_in(path: Path) -> int:
    if path.suffix == ".parquet":
        return int(pq.ParquetFile(path).metadata.num_rows)
    return path.read_bytes().count(b"\r\n")


def split(path: Path, second: Path) -> None:
    """The second half of the rows into another file."""
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        pq.write_table(table.slice(table.num_rows // 2), second)
        pq.write_table(table.slice(0, table.num_rows // 2), path)
        return
    lines = path.read_bytes().split(b"\r\n")[:-1]
    second.write_bytes(b"".join(line + b"\r\n" for line in lines[len(lines) // 2 :]))
    path.write_bytes(b"".join(line + b"\r\n" for line in lines[: len(lines) // 2]))
