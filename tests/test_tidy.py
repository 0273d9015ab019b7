"""The house rules that a linter does not know: sizes, banned calls, layers that name every module."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.kit.checkout import files_of
from tests.kit.rotation import BUDGETS, path_of

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
CONTRACTS = SETTINGS["tool"]["importlinter"]["contracts"]
PACKAGES = (*SETTINGS["tool"]["importlinter"]["root_packages"], "tests/kit")
MODULES = sorted(p for name in PACKAGES for p in (ROOT / name).rglob("*.py"))
LOOSE_MODULES_MAX = 8  #: in `tistream`; what is more belongs into one of its packages
LINES_MAX = 500
FUNCTION_LINES_MAX = 70
#: functions that were longer when the rule came; the number may only fall
LONG_FUNCTIONS: dict[str, int] = {}
#: call -> what to use instead, and where it is allowed
BANNED = {
    "datetime.now": ("a Clock argument", ("tistream/clock.py",)),
    "datetime.utcnow": ("a Clock argument", ()),
    # an object store's own clock dates its objects, as S3's does
    "time.time": (
        "a Clock argument",
        ("tistream/clock.py", "tistream/objectstore", "tests/kit", "simulator/chaos/servers"),
    ),
    "time.time_ns": ("a Clock argument", ("tistream/clock.py", "tistream/objectstore")),
    "time.sleep": ("Clock.wait or an Event", ("tests/kit", "tistream/cli", "simulator/chaos/servers")),
    "print": ("structlog, or the command line", ("tistream/cli", "simulator/demo", "tests/kit")),
    "uuid.uuid1": ("secrets.token_hex", ()),
}
FORBIDDEN_NAMES = {"utils", "common", "misc", "manager", "base", "helpers"}


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


class Facts(NamedTuple):
    """Of all modules."""

    bare: list[str]  #: modules without a docstring
    lengths: dict[str, int]  #: of each function, in lines
    banned: list[str]  #: calls and handlers that no module may have


@cache
def _facts() -> Facts:
    """One tree at a time: all of them at once are millions of objects, which slow each later collection down."""
    facts = Facts([], {}, [])
    for path in MODULES:
        name, tree = _name(path), ast.parse(path.read_text("utf-8"))
        if not name.endswith("__init__.py") and not ast.get_docstring(tree):
            facts.bare.append(name)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                facts.lengths[f"{name}:{node.name}"] = node.end_lineno - node.lineno + 1
            elif isinstance(node, ast.Call) and (use := _forbidden(node.func, name)):
                facts.banned.append(f"{name}:{node.lineno}: use {use}")
            elif isinstance(node, ast.ExceptHandler) and node.type is None:
                facts.banned.append(f"{name}:{node.lineno}: bare except")
    return facts


def _forbidden(called: ast.expr, module: str) -> str:
    """What to use instead; empty when this module may call it."""
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        text = f"{called.value.id}.{called.attr}"
    else:
        text = called.id if isinstance(called, ast.Name) else ""
    use, allowed = BANNED.get(text, ("", ()))
    return "" if module.startswith(tuple(allowed) or ("\0",)) else use


def test_modules_have_prose_and_a_bounded_size() -> None:
    assert [_name(path) for path in MODULES if path.stem in FORBIDDEN_NAMES] == []
    lines = {_name(path): path.read_text("utf-8").count("\n") for path in MODULES}
    assert {name: count for name, count in lines.items() if count > LINES_MAX} == {}
    assert _facts().bare == [], "a module opens with prose"


def test_functions_stay_short() -> None:
    too_long = {k: n for k, n in _facts().lengths.items() if n > LONG_FUNCTIONS.get(k, FUNCTION_LINES_MAX)}
    assert not too_long


def test_banned_calls() -> None:
    assert not _facts().banned
    assert _forbidden(ast.parse("time.sleep(1)").body[0].value.func, "sorter/worker.py")  # type: ignore[attr-defined]


def test_every_module_stands_in_a_layer() -> None:
    layers = CONTRACTS[0]["layers"]
    named = {part.strip() for layer in layers for part in layer.split("|")} | {"tests.kit", "tistream.cli"}
    missing = []
    for path in MODULES:
        dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if dotted != "tistream" and not any(dotted == n or dotted.startswith(n + ".") for n in named):
            missing.append(dotted)
    assert not missing


def test_the_kernel_has_few_loose_modules() -> None:
    loose = [p.name for p in (ROOT / "tistream").glob("*.py") if p.name != "__init__.py"]
    assert len(loose) <= LOOSE_MODULES_MAX, loose


def test_packages_named_in_the_contracts_exist() -> None:
    for contract in CONTRACTS:
        for module in contract.get("source_modules", []):
            if "*" in module:
                continue
            path = ROOT.joinpath(*module.split("."))
            assert path.with_suffix(".py").exists() or (path / "__init__.py").exists(), module


def test_no_package_among_the_tests() -> None:
    assert {p.relative_to(ROOT / "tests").parts[0] for p in (ROOT / "tests").rglob("__init__.py")} == {"kit"}
    assert not (ROOT / "infra" / "__init__.py").exists()


def test_no_path_of_one_machine_and_no_index_address() -> None:
    pattern = re.compile(r"(?:^|[^\w./-])/(?:work|farm)/|https?://[a-z0-9.-]*(?:pypi|pythonhosted|npmjs)[a-z0-9.-]*/")
    suffixes = {".py", ".md", ".toml", ".txt", ".html", ".css", ".js", ".json", ".yaml", ".yml", ""}
    bad = [
        _name(path)
        for path in files_of(ROOT)
        if path.suffix in suffixes
        and not _name(path).startswith(("tests/expected", "simulator/recording", "tests/test_tidy.py"))
        and pattern.search(path.read_text("utf-8", errors="replace"))
    ]
    assert not bad


def test_budgets_name_what_exists() -> None:
    order = BUDGETS["order"]
    named = [*order["first"], *order["apart"], *(path for paths in order["together"].values() for path in paths)]
    assert [path for path in named if not (ROOT / "tests" / path).exists()] == []
    folders = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("test_*.py")}
    rotation = BUDGETS["rotation"]
    rotating = [*rotation["files"], *rotation["tests"]]
    assert [path for path in rotating if not (ROOT / "tests" / path_of(path)).exists()] == []
    assert folders == {part for parts in BUDGETS["suites"].values() for part in parts}
    assert BUDGETS["cpu_s"].keys() == BUDGETS["suites"].keys()
