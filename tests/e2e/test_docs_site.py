"""The documentation as a site: it builds without a warning, holds every page, and needs nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import expect

from tests.kit.console_look import chromium

ROOT = Path(__file__).parents[2]
PAGES = sorted(page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md"))
ABSOLUTE = re.compile(r"\s*([a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
HERE = "http://127.0.0.1:"  # the reader's own service


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing: tests read no access log."""


class Addresses(HTMLParser):
    """All absolute addresses in a page's attributes, and the words of its navigation links."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = [value for name, value in attrs if value and not name.startswith("xmlns")]
        self.found += [value for value in given if ABSOLUTE.match(value) and not value.startswith(HERE)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A page that no line of the nav takes is a warning, and so an error with its name."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_each_page_has_a_place_in_the_navigation_and_a_twin(site: Path) -> None:
    home = (site / "index.html").read_text("utf-8")
    listed = re.findall(r"\]\(([^)]+\.md)\)", (site / "llms.txt").read_text("utf-8"))
    assert sorted(listed) == PAGES
    for page in PAGES:
        assert (site / page).read_bytes() == (ROOT / "docs" / page).read_bytes()
        built = (site / page).with_suffix(".html").read_text("utf-8")
        assert f'<link rel="alternate" type="text/markdown" href="{Path(page).name}">' in built
        assert page == "index.md" or f'href="{page.removesuffix(".md")}.html"' in home, f"{page}: not in the nav"


def test_no_page_refers_to_an_address_elsewhere(site: Path) -> None:
    assert not {page.name: addresses for page in site.rglob("*.html") if (addresses := Addresses(page).found)}
    for sheet in site.rglob("*.css"):
        text = sheet.read_text("utf-8")
        assert not re.search(r"@import|url\(\s*[\"']?(https?:)?//", text), sheet.name


def test_a_browser_asks_nobody_else(address: str) -> None:
    addresses: list[str] = []
    complaints: list[str] = []
    with chromium() as browser:
        page = browser.new_page()
        page.on("request", lambda request: addresses.append(request.url))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("response", lambda answer: complaints.append(answer.url) if answer.status >= 400 else None)
        for path in ("index.html", "tutorial.html", "reference/cli.html", "sorter.html"):
            page.goto(f"{address}/{path}")
        page.locator("input.md-search__input").click()
        page.locator("input.md-search__input").press_sequentially("watermark")
        expect(page.locator(".md-search-result__item").first).to_be_visible()
    assert not [line for line in complaints if not line.endswith("/sitemap.xml")]  # the theme looks for one anywhere
    assert not [url for url in addresses if not url.startswith((address, "data:"))]
