"""Looking at a page of the console in a real browser: at both widths, and with axe (of the extra `dev`)."""

from __future__ import annotations

from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

WIDTHS = (390, 1280)


def look(page: Page, folder: Path, name: str, scheme: str) -> None:
    """At both widths nothing sticks out, and a screenshot is left in the folder; axe finds nothing."""
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.screenshot(path=str(folder / f"{name}-{scheme}-{width}.png"), full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") == width, f"{name} sticks out at {width}"
    found = Axe().run(page)
    assert found.violations_count == 0, (name, found.generate_report())
