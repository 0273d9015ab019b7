"""A running 0.1.0 is upgraded under load, goes back, and forward again: a cluster process by process, `tistream up` as
a whole. What its clients, consumers and changefeeds get is what TiDB and TiCDC gave, each change once and in order."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from simulator.chaos.servers.processes import pull_all
from tests.kit.drill import Drill, compare_consumed, in_folder, on_servers, reached
from tests.kit.old_release import installed
from tests.kit.recording import EXPECTED
from tests.kit.replica import compare
from tests.kit.ticdc import CANAL, compare_canal, compare_lake
from tests.kit.waiting import eventually
from tistream.catalog.database.revisions import MIGRATIONS
from tistream.catalog.work.features import living
from tistream.release import THIS_RELEASE, Release

OLD = Release(0, 1, 0)
#: docs/compatibility.md: meta servers first, pushers last
ORDER = ("meta-1", "api-1", "dispatcher-1", "sorter-1", "sorter-2", "replicate-1", "push")
LAST = "maintain-1"  #: of the old release until the end, so that the way back stays open
SLOW = "0.2"  #: speed of the recording: its 36 s last three minutes
NO_EXPORTS = {"TISTREAM_EXPORTS_INTERVAL_S": "0"}  #: no feature is switched on; 0.1.0 does not know the setting
FENCED = 5  #: the exit status of a process that may not run


class Upgrade(Drill):
    """A deployment of 0.1.0."""

    def upgrade(self, *args: str) -> Any:
        """What `tistream upgrade` of this release says."""
        return json.loads(self.command("upgrade", *args, "--json"))

    def migrate(self) -> None:
        """Check, then run the migrations, beside the processes of 0.1.0."""
        before = self.upgrade("--check")
        assert (before["revision"], before["min_release"], before["done"]) == ("0001", str(OLD), False)
        assert before["processes"].keys() == {str(OLD)}
        assert self.catalog.revision() == "0001", "nothing was changed"
        assert self.upgrade("--run")["revision"] == MIGRATIONS.newest

    def replace(self, names: tuple[str, ...], release: Release) -> None:
        """One after the other, while changes come: the log grows under each mix."""
        for name in names:
            before = reached(self.catalog)
            self.cluster.run(name, old=release == OLD)
            if name.startswith(("sorter", "dispatcher", "replicate", "maintain")):
                assert living(self.catalog)[name] == release
            if before < self.upto:
                eventually(lambda before=before: reached(self.catalog) > before, self.cluster.logs)  # type: ignore[misc]
            self.all_live()

    def all_live(self) -> None:
        dead = [name for name, process in self.cluster.processes.items() if process.ended_by_itself]
        assert [name for name in dead if name != "push"] == [], self.cluster.logs()

    def judge(self) -> None:
        self.judge_readers()
        compare_consumed(self.consumed())
        assert (self.folder / "consumed.log").read_text() == "", "no partition was taken"
        assert compare_lake(self.folder / "lake") > 10_000
        assert (
            compare_canal(EXPECTED, pull_all(self.url, self.upto, format="canal-json", **CANAL).splitlines()) > 12_000
        )
        rows = pull_all(self.url, self.upto, format="ndjson")
        assert compare(EXPECTED, (json.loads(line) for line in rows.splitlines())) > 400


@pytest.mark.timeout(1200)
def test_a_cluster_of_0_1_0_goes_forward_back_and_forward_under_load(tmp_path: Path) -> None:
    with ExitStack() as stack:
        (settings,) = on_servers(stack, "upgraded")
        d = Upgrade(tmp_path, stack, settings, old=installed(str(OLD), tmp_path / "0.1.0"), speed=SLOW)
        d.start(*ORDER[:-1], LAST, old=True)
        d.migrate()
        d.replace(ORDER, THIS_RELEASE)
        assert d.upgrade("--check")["older_processes"] == [LAST], "which keeps features off"
        d.replace(tuple(reversed(ORDER)), OLD)
        assert d.upgrade("--check")["processes"].keys() == {str(OLD)}
        assert reached(d.catalog) < d.upto, "all of it under load"
        d.push_fast()
        d.replace((*ORDER[:-1], LAST, ORDER[-1]), THIS_RELEASE)
        assert d.upgrade("--run", "--wait", "--timeout", "120")["done"]
        d.judge()


@pytest.mark.timeout(600)
def test_up_of_0_1_0_goes_forward_back_and_forward_under_load(tmp_path: Path) -> None:
    """Its catalog is a file. Each time one process ends before the other starts, while the pusher continues."""
    with ExitStack() as stack:
        (settings,) = in_folder(tmp_path, "catalog")
        old, new = installed(str(OLD), tmp_path / "0.1.0"), dict(NO_EXPORTS)
        d = Upgrade(tmp_path, stack, settings, old=old, new=new, api="up", speed="0.5")
        d.start("up", old=True)
        d.migrate()
        began_s = time.monotonic()
        d.replace(("up",), THIS_RELEASE)
        replaced_s = time.monotonic() - began_s
        here = d.upgrade("--check")
        assert (here["processes"].keys(), here["min_release"]) == ({str(THIS_RELEASE)}, str(OLD)), (
            "the way back is open"
        )
        d.replace(("up",), OLD)
        assert d.upgrade("--check")["processes"].keys() == {str(OLD)}
        assert reached(d.catalog) < d.upto, "all of it under load"
        new.clear()
        d.push_fast()
        d.replace(("up", "push"), THIS_RELEASE)
        assert d.upgrade("--run", "--wait", "--timeout", "120")["done"]
        d.judge()
        eventually(lambda: d.upgrade("--check")["features_on"] == ["exports"], d.cluster.logs)
        up = d.cluster.processes["up"]
        assert up.stop() == 0, up.output()
        with pytest.raises(AssertionError, match=f"Start {THIS_RELEASE} or later"):
            d.cluster.run("up", old=True)
        assert d.cluster.processes["up"].wait(30) == FENCED, "the way back is closed"
        print(f"replaced in {replaced_s:.1f} s")
