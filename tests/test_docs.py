"""The documentation speaks of everything that users meet, and its links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any
from urllib.parse import unquote

import pytest
from typer.main import get_command

from tests.kit.doc_blocks import blocks_of
from tistream.cli.main import command_line
from tistream.config import known_keys

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "tools" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REFERENCE: Any = load_tool()
DOCS = "\n".join(page.read_text("utf-8") for page in PAGES)


def test_the_map_of_packages_is_the_contract() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    assert "```\n" + "\n".join(["tistream.cli", *layers]) + "\n```" in page
    named = set(re.findall(r"`((?:tistream|tests|[a-z]+)(?:[./][a-z]+)*)`", page))
    packages = settings["tool"]["importlinter"]["root_packages"]
    inside = {f"tistream.{p.parent.name}" for p in (ROOT / "tistream").glob("*/__init__.py")}
    assert {*packages, *inside} <= named


def test_the_walk_through_the_code_names_what_there_is() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    walk = page[page.index("## Follow one change") : page.index("## The one rule")]
    for name in re.findall(r"`([a-z_]+(?:\.[A-Za-z_]+)+)`", walk):
        assert resolve_name(name), name


def test_the_glossary_names_files_that_exist() -> None:
    rows = re.findall(r"^\|.*\| `([a-z_/.]+)` \|$", (ROOT / "docs" / "glossary.md").read_text("utf-8"), re.MULTILINE)
    assert len(rows) > 60
    assert not [path for path in rows if not (ROOT / path).exists()]


def test_tests_that_pages_name_exist() -> None:
    """Whole paths, and names of files alone. Scenarios and mutants of the ledger are those of the page of evidence."""
    paths = set(re.findall(r"`(tests/[a-z0-9_./-]+)`", DOCS))
    files = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert len(paths) > 100
    assert not [path for path in paths if not (ROOT / path).exists()]
    assert not set(re.findall(r"`(test_\w+\.py)`", DOCS)) - files
    ledger, evidence = ((ROOT / "docs" / name).read_text("utf-8") for name in ("defects.md", "correctness.md"))
    played = re.findall(r"(?:scenario|mutant) `([\w-]+)`", ledger)
    assert [name for name in played if f"`{name}`" not in evidence] == []


def missing(words: list[str]) -> list[str]:
    """Those that no page holds as a word of its own."""
    return [word for word in words if not re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", DOCS)]


@pytest.mark.parametrize("name", sorted(REFERENCE.PAGES))
def test_reference_pages_are_what_the_code_says(name: str) -> None:
    written = (ROOT / "docs" / "reference" / name).read_text("utf-8")
    assert written == REFERENCE.PAGES[name](), "run: python tools/reference.py"


def test_every_setting_is_documented() -> None:
    assert not missing(list(known_keys()))


def test_every_error_code_is_documented_and_used_once() -> None:
    codes = [error.code for error in REFERENCE.error_classes()]
    assert len(codes) > 15
    assert len(codes) == len(set(codes)), "two errors share a code"
    assert not missing(codes)


def test_every_command_is_documented_and_explained() -> None:
    commands = dict(REFERENCE._commands("tistream", get_command(command_line())))
    assert {"tistream up", "tistream demo", "tistream inspect file", "tistream tenant register"} <= set(commands)
    assert not missing(list(commands))
    assert not [words for words, command in commands.items() if not command.help]


def test_every_option_is_explained() -> None:
    commands = dict(REFERENCE._commands("tistream", get_command(command_line())))
    silent = [f"{words} {p.name}" for words, c in commands.items() for p in c.params if not getattr(p, "help", None)]
    assert not silent


def test_every_route_is_documented_and_summed_up() -> None:
    paths = REFERENCE.api_app().openapi()["paths"]
    routes = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
    assert "GET /v1/clusters/{cluster_id}/tenants/{tenant_id}/changes" in routes
    assert not [route for route in routes if f"`{route}`" not in DOCS]
    assert not [route for path in paths.values() for route in path.values() if not route.get("summary")]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_relative_links_resolve(page: Path) -> None:
    dead = []
    for target in LINK.findall(FENCE.sub("", page.read_text("utf-8"))):
        path, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        there = (page.parent / unquote(path)).resolve() if path else page
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors(there.read_text("utf-8"))):
            dead.append(target)
    assert not dead


def anchors(text: str) -> set[str]:
    """Names of a page's headings, as they are linked to."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_block_says_what_becomes_of_it(page: Path) -> None:
    """So each command is run by tests/e2e/test_docs_commands.py, or says why not. Reference pages have usage lines."""
    wrong = []
    for block in blocks_of(page) if page.parent.name != "reference" else []:
        try:
            assert block.how
        except ValueError as e:
            wrong.append(str(e))
    assert not wrong


def test_every_command_in_a_text_has_the_options_that_it_is_given() -> None:
    """Blocks are executed elsewhere. Here: `tistream COMMAND --option` within a sentence, also in the API's words."""
    options = {
        words: {name for p in command.params for name in (*p.opts, *p.secondary_opts)} | {"--help"}
        for words, command in REFERENCE._commands("tistream", get_command(command_line()))
    }
    written = DOCS + (ROOT / "apiserver/openapi/descriptions.json").read_text("utf-8")
    wrong, seen = [], 0
    for match in re.finditer(r"\btistream((?: [a-z][a-z-]+)+)([^`\n\"|;]*)", written):
        parts = match[1].split()
        named = [" ".join(("tistream", *parts[:n])) for n in range(len(parts), 0, -1)]
        command = next((words for words in named if words in options), None)
        given = re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", match[2])
        seen += len(given)
        wrong += [f"{match[0].strip()}: {name}" for name in given if command and name not in options[command]]
    assert seen > 50
    assert wrong == []
