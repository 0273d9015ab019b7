"""Every command and program of README.md and docs/ works as it stands, page by page, against one real service.

The README comes first: its first blocks start that service, over a recording of a real TiDB, and the other pages use
it, except for those that start one of their own. How a block is run, and which are not, is said in its info string
(tistream/testing/doc_blocks.py).

Each page has a folder with `tistream/recording` and `examples` of this repository, and with `ts`, the folder of the
README's service. These words are replaced: the ports 8711 to 8713 by free ones, 10.0.0.1:2379 by the PD of a modelled
cluster, and the README's database and bucket by ones of the test kit. Behind a push of the recording the tests wait
until all of it is served: a reader at a keyboard is slower.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tistream.client import connect
from tistream.testing.doc_blocks import Block, PagePlayer, runnable
from tistream.testing.mariadb import mariadb, new_database
from tistream.testing.ports import free_port
from tistream.testing.processes import TiStreamProcess, client
from tistream.testing.s3server import CREDENTIALS, s3_server

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
WRITTEN = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "reference"]  # that has usage
OTHERS = [page for page in WRITTEN if any(runnable(page))]
DATABASE = "mysql+pymysql://user:password@db:3306/tistream"
BUCKET = "s3://bucket/prefix?region=eu-central-1"
PD = "10.0.0.1:2379"


@dataclass
class Site:
    """The README's service, and the folder it lives in."""

    folder: Path
    port: str
    said: str  #: all that the README's blocks wrote to standard output


@pytest.fixture(scope="module")
def pd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a modelled cluster's PD."""
    log = tmp_path_factory.mktemp("cluster") / "cluster.log"
    with TiStreamProcess("sim", "--serve-tikv", "--seed", "7", log=log) as cluster:
        deadline = time.monotonic() + 60
        while "\n" not in cluster.output():
            assert cluster.alive, cluster.output()
            assert time.monotonic() < deadline, cluster.output()
            time.sleep(0.05)
        yield cluster.output().split("\n")[0]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, last_resolved_ts: int) -> Iterator[Site]:
    """The README played from top to bottom."""
    folder = tmp_path_factory.mktemp("readme")
    port, meta, api = (str(free_port()) for _ in range(3))
    furnish(folder)
    with ExitStack() as stack:
        s3 = stack.enter_context(s3_server())
        s3.create_bucket("tistream")
        words = {DATABASE: new_database(stack.enter_context(mariadb()), "readme"), BUCKET: s3.url("tistream", "readme")}
        player = PagePlayer(folder, environment(port) | CREDENTIALS, words | {"8711": port, "8712": meta, "8713": api})
        stack.callback(player.close)
        said = "".join(play(player, block, port, last_resolved_ts) for block in runnable(README))
        for each in (meta, api):
            with connect(f"http://127.0.0.1:{each}", retry_s=60) as c:
                c.get("/readyz")
        player.close_terminals()
        yield Site(folder, port, said)


def test_the_readme_shows_rows_of_the_recording(site: Site) -> None:
    assert '"type":"insert","database":"shop","table":"customers"' in site.said
    assert f"TiStream at http://127.0.0.1:{site.port}: ok" in site.said


@pytest.mark.parametrize("page", OTHERS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_the_blocks_of_a_page(
    page: Path, site: Site, tmp_path: Path, last_resolved_ts: int, request: pytest.FixtureRequest
) -> None:
    blocks = list(runnable(page))
    text = "".join(block.text for block in blocks)
    furnish(tmp_path)
    port = site.port
    if "tistream up" in text:
        port = str(free_port())
    else:
        (tmp_path / "ts").symlink_to(site.folder / "ts")
    words = {"8711": port}
    if PD in text:
        words[PD] = request.getfixturevalue("pd")
    player = PagePlayer(tmp_path, environment(port), words)
    try:
        for block in blocks:
            play(player, block, port, last_resolved_ts)
    finally:
        player.close()


def furnish(folder: Path) -> None:
    """Make a folder look like a clone of this repository, as far as the pages go."""
    (folder / "tistream").mkdir()
    (folder / "tistream" / "recording").symlink_to(ROOT / "tistream" / "recording")
    (folder / "examples").symlink_to(ROOT / "examples")


def environment(port: str) -> dict[str, str]:
    """The address of the service is in it, because commands that are silent about it mean the default port."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TISTREAM_", "AWS_"))}
    return {**clean, "TISTREAM_URL": f"http://127.0.0.1:{port}"}


def play(player: PagePlayer, block: Block, port: str, last_resolved_ts: int) -> str:
    said = player.play(block)
    if "tistream push --capture" in block.text:
        deadline = time.monotonic() + 240
        with client(f"http://127.0.0.1:{port}") as c:
            while c.page(1, 1, start_ts="latest").resolved_ts < last_resolved_ts:
                assert time.monotonic() < deadline, "the recording is not sorted"
                time.sleep(0.1)
    return said
