"""What mkdocs (mkdocs.yml) does not do: patterns in the nav, a Markdown twin of each page, llms.txt.

A nav entry such as `runbooks/*.md` stands for the pages that match it and that no entry names, so a new page of a known
folder needs no line. A section whose patterns match nothing is left out. Each page says where its twin is.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ABOUT_CHARS = 240
_pages: list[Any] = []  #: of the build under way, in the order of the nav


def on_config(config: Any) -> Any:
    """Put pages in the place of patterns."""
    _pages.clear()
    named = set(_named(config.nav))
    config.nav = _expanded(config.nav, Path(config.docs_dir), named)
    return config


def on_nav(nav: Any, config: Any, files: Any) -> Any:
    """Keep the order of the pages."""
    _pages.extend(nav.pages)
    return nav


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Say where the page's Markdown is."""
    twin = Path(page.file.src_uri).name
    return output.replace("</head>", f'<link rel="alternate" type="text/markdown" href="{twin}"></head>', 1)


def on_post_build(config: Any) -> None:
    """Write the twins and llms.txt."""
    site = Path(config.site_dir)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    section = None
    for page in _pages:
        shutil.copyfile(page.file.abs_src_path, site / page.file.src_uri)
        if (above := page.parent.title if page.parent else "Start") != section:
            lines += ["", f"## {above}", ""] if section else [f"## {above}", ""]
            section = above
        about = _about(page.markdown)
        lines.append(f"- [{page.title}]({page.file.src_uri})" + (f": {about}" if about else ""))
    (site / "llms.txt").write_text("\n".join([*lines, ""]), "utf-8")


def _named(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        if isinstance(value, list):
            yield from _named(value)
        elif "*" not in value:
            yield value


def _expanded(entries: list[Any], docs: Path, named: set[str]) -> list[Any]:
    listed: list[Any] = []
    for entry in entries:
        if isinstance(entry, dict) and isinstance(inside := next(iter(entry.values())), list):
            if pages := _expanded(inside, docs, named):
                listed.append({next(iter(entry)): pages})
        elif isinstance(entry, str) and "*" in entry:
            matching = (page.relative_to(docs).as_posix() for page in sorted(docs.glob(entry)))
            listed += [page for page in matching if page not in named]
        else:
            listed.append(entry)
    return listed


def _about(markdown: str) -> str:
    """The first paragraph that is prose, as plain text, cut at a sentence where that is possible."""
    blocks = re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL).split("\n\n")
    prose = next((b for b in blocks if re.match(r"\w|`|\*\*", b.strip()) and not b.startswith("Written by")), "")
    text = " ".join(re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", prose).split())
    end = text.find(". ", 0, _ABOUT_CHARS)
    return text[: end + 1] if end > 0 else text[:_ABOUT_CHARS]
