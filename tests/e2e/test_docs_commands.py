"""Every command and program of README.md and docs/ works as it stands, page by page, against one real service.

The README comes first: its first blocks start that service, with the sample shop. The tutorial goes on in the same
folder, and stops and starts the service on its way. The other pages use one that holds a recording of a real TiDB, but
for the runbooks that tests/e2e/test_runbooks.py plays. How a block is run, and which are not, is said in its info
string (tests/kit/doc_blocks.py).

Each page has a folder with `simulator/recording` and `examples` of this repository, and with `ts`, the folder of the
service. These words are replaced: the ports 8711 to 8713 by free ones, 10.0.0.1:2379 by the PD of a modelled cluster,
and the README's database and bucket by files (tests/e2e/test_cluster.py has a process per role on a real database and
an S3 server). Behind a push of the recording the tests wait until all of it is served, and behind the sample's start
until it is there: a reader at a keyboard is slower.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from simulator.chaos.servers.ports import free_port
from simulator.chaos.servers.processes import TiStreamProcess, client
from tests.kit.doc_blocks import OVER_OWN_SERVERS, Block, PagePlayer, blocks_of, runnable
from tests.kit.waiting import eventually
from tistream.client import Client, connect
from tistream.errors import NotFound, StateForbids, StoreUnavailable

ROOT = Path(__file__).parents[2]
README, TUTORIAL = ROOT / "README.md", ROOT / "docs" / "tutorial.md"
WRITTEN = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "reference"]  # that has usage
OTHERS = [
    page
    for page in WRITTEN
    if page != TUTORIAL and page.name not in OVER_OWN_SERVERS and any(block.commands for block in blocks_of(page))
]
pytestmark = pytest.mark.timeout(600)  # patience on a busy machine: a page starts many processes
DATABASE = "mysql+pymysql://user:password@db:3306/tistream"
BUCKET = "s3://bucket/prefix?region=eu-central-1"
PD = "10.0.0.1:2379"


@dataclass
class Site:
    """The README's service: where it is, who plays its pages, and what these wrote to standard output."""

    player: PagePlayer
    port: str
    said: dict[Path, str] = field(default_factory=dict)

    def play(self, page: Path, *, until_ts: int) -> None:
        """A page from top to bottom, in the service's own folder."""
        self.said[page] = "".join(play(self.player, block, self.port, until_ts) for block in runnable(page))


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
def readme(tmp_path_factory: pytest.TempPathFactory, last_resolved_ts: int) -> Iterator[Site]:
    """The README played from top to bottom. Its service goes on."""
    folder = tmp_path_factory.mktemp("readme")
    port, meta, api = (str(free_port()) for _ in range(3))
    furnish(folder)
    words = {"8711": port, "8712": meta, "8713": api}
    words |= {DATABASE: f"sqlite:///{folder}/roles.db", BUCKET: f"file://{folder}/roles"}
    site = Site(PagePlayer(folder, environment(port), words), port)
    try:
        site.play(README, until_ts=last_resolved_ts)
        for each in (meta, api):
            with connect(f"http://127.0.0.1:{each}", retry_s=60, first_answer_s=60) as c:
                c.get("/readyz")
        site.player.close_terminals(keep="tistream up")
        yield site
    finally:
        site.player.close()


@pytest.fixture(scope="module")
def tutorial(readme: Site, last_resolved_ts: int) -> Site:
    """The tutorial played behind the README."""
    readme.play(TUTORIAL, until_ts=last_resolved_ts)
    return readme


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, last_resolved_ts: int) -> Iterator[Site]:
    """The service with the recording, as the tutorial's last part starts it."""
    folder = tmp_path_factory.mktemp("recorded")
    port = str(free_port())
    furnish(folder)
    site = Site(PagePlayer(folder, environment(port), {"8711": port, "./recorded": "./ts"}), port)
    try:
        for block in blocks_of(TUTORIAL)[-2:]:
            title = "In a separate terminal" if "tistream up" in block.text else ""
            info = f'sh title="{title}"' if title else "sh"
            play(site.player, replace(block, info=info), port, last_resolved_ts)
        yield site
    finally:
        site.player.close()


def test_the_readme_shows_rows_of_the_sample(readme: Site) -> None:
    assert '"type":"insert","database":"shop","table":"orders"' in readme.said[README]
    assert f"TiStream at http://127.0.0.1:{readme.port}: ok" in readme.said[README]


def test_a_reader_of_the_tutorial_goes_on_behind_what_it_had(tutorial: Site) -> None:
    upto = [int(ts) for ts in re.findall(r"^\d+ messages, up to (\d+)$", tutorial.said[TUTORIAL], re.MULTILINE)]
    assert len(upto) >= 2
    assert upto == sorted(upto)
    assert (tutorial.player.folder / "cursor").read_text("utf-8")


@pytest.mark.parametrize("page", OTHERS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_the_blocks_of_a_page(
    page: Path, site: Site, tmp_path: Path, last_resolved_ts: int, request: pytest.FixtureRequest
) -> None:
    blocks = list(runnable(page))
    furnish(tmp_path)
    (tmp_path / "ts").symlink_to(site.player.folder / "ts")
    words = {"8711": site.port, "8712": str(free_port()), "8713": str(free_port())}
    if any(PD in block.text for block in blocks):
        words[PD] = request.getfixturevalue("pd")
    player = PagePlayer(tmp_path, environment(site.port), words)
    try:
        for block in blocks:
            play(player, block, site.port, last_resolved_ts)
    finally:
        player.close()


def furnish(folder: Path) -> None:
    """Make a folder look like a clone of this repository, as far as the pages go."""
    (folder / "simulator").mkdir()
    (folder / "simulator" / "recording").symlink_to(ROOT / "simulator" / "recording")
    (folder / "examples").symlink_to(ROOT / "examples")


def environment(port: str) -> dict[str, str]:
    """The address of the service is in it, because commands that are silent about it mean the default port."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TISTREAM_", "AWS_"))}
    return {**clean, "TISTREAM_URL": f"http://127.0.0.1:{port}"}


def play(player: PagePlayer, block: Block, port: str, last_resolved_ts: int) -> str:
    said = player.play(block)
    if "--sample" in block.text:
        with client(f"http://127.0.0.1:{port}") as c:
            eventually(lambda: has_orders(c), "the sample does not write")
    if "tistream push --capture" in block.text:
        deadline = time.monotonic() + 240
        with client(f"http://127.0.0.1:{port}") as c:
            while c.tenant(1, 1).page(start="latest").resolved_ts < last_resolved_ts:
                assert time.monotonic() < deadline, "the recording is not sorted"
                time.sleep(0.1)
    return said


def has_orders(c: Client) -> bool:
    """Whether the sample's tenant is active, and orders can be pulled."""
    try:
        return bool(c.tenant(1, 1).table("shop.orders").page().lines()[1:])
    except (NotFound, StateForbids, StoreUnavailable):  # of a service that starts
        return False
