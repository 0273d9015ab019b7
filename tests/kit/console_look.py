"""Looking at pages of the console in a real browser, Debian's Chromium, and collecting what it complains of."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

_CHROMIUM = "/usr/bin/chromium"
ARTEFACTS = Path(__file__).parents[2] / "artefacts" / "console"  #: screenshots, for people to look at
WIDTHS = (390, 1280)
Scheme: TypeAlias = Literal["light", "dark"]

expect.set_options(timeout=60_000)  # a busy machine is slow, not wrong


@contextmanager
def chromium(*arguments: str) -> Iterator[Browser]:
    """A browser without a window."""
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=[*sandbox, *arguments])
        yield browser
        browser.close()


class Tabs:
    """Tabs of one site, and what the browser complained of: errors, and addresses elsewhere."""

    def __init__(self, browser: Browser, url: str) -> None:
        self.browser, self.url = browser, url
        self.complaints: list[str] = []

    def context(self, scheme: Scheme = "light", width: int = 1280) -> BrowserContext:
        """With its own cookies."""
        tabs = self.browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
        tabs.set_default_timeout(60_000)
        return tabs

    def watched(self, page: Page) -> Page:
        """The page, whose complaints are collected from now on."""
        page.on("pageerror", lambda error: self.complaints.append(f"page error: {error}"))
        page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("request", lambda request: self._asked(request.url))
        return page

    def _asked(self, url: str) -> None:
        if not url.startswith(self.url + "/") and urlsplit(url).scheme != "data":
            self.complaints.append(f"off loopback: {url}")


@pytest.fixture(autouse=True)
def no_tab_is_left(site: Tabs) -> Iterator[None]:
    """Close the tabs of each test of a module that imports this, also of one that fails."""
    yield
    for context in site.browser.contexts:
        context.close()


def look(page: Page, name: str, scheme: Scheme) -> None:
    """At both widths nothing sticks out, and a screenshot is left; axe finds nothing."""
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.screenshot(path=str(ARTEFACTS / f"{name}-{scheme}-{width}.png"), full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") == width, f"{name} sticks out at {width}"
    report = Axe().run(page)
    assert report.violations_count == 0, (name, report.generate_report())
