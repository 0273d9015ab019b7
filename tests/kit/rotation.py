"""Which twentieth of the rotating tests a run takes, and from which number the simulator's seeds count.

`make test` takes the twentieth that the commit's hash names; `make soak` takes all of them. `tests/budgets.toml` lists
what rotates: whole files, and tests that stand alone.
"""

from __future__ import annotations

import hashlib
import subprocess
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUDGETS = tomllib.loads((ROOT / "tests" / "budgets.toml").read_text("utf-8"))
PARTS: int = BUDGETS["rotation"]["parts"]
_FILES: tuple[str, ...] = tuple(BUDGETS["rotation"]["files"])
_TESTS: tuple[str, ...] = tuple(BUDGETS["rotation"]["tests"])


def path_of(nodeid: str) -> str:
    """The file of a test, below `tests`."""
    return nodeid.partition("::")[0].removeprefix("tests/")


@cache
def commit_number() -> int:
    """The first 48 bits of the commit's hash; of a hash over the Python files where there is no repository."""
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    if git.returncode == 0:
        return int(git.stdout[:12], 16)
    digest = hashlib.sha256()
    for folder in ("tistream", "sorter", "reading", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return int(digest.hexdigest()[:12], 16)


def part_named(text: str) -> int | None:
    """The part that `--rotation` names: "commit", or a number below `PARTS`; None for "all" and for "only", which leave
    out no rotating test."""
    if text in ("all", "only"):
        return None
    part = commit_number() % PARTS if text == "commit" else int(text)
    if not 0 <= part < PARTS:
        raise ValueError(f"--rotation is all, only, commit or a number below {PARTS}, not {text}")
    return part


def unit(nodeid: str) -> str | None:
    """What rotates as one: the test, or its file; None for a test of every run."""
    path = path_of(nodeid)
    if path in _FILES:
        return path
    return nodeid if nodeid.removeprefix("tests/").startswith(_TESTS) else None


def left_out(nodeids: Iterable[str], rotation: str) -> set[str]:
    """The tests that this run leaves out. Units are dealt out in turn, files in the order of their cost, so that each
    part has as many."""
    units = {nodeid: unit(nodeid) for nodeid in nodeids}
    if rotation == "only":
        return {nodeid for nodeid, name in units.items() if name is None}
    part = part_named(rotation)
    if part is None:
        return set()
    present = set(units.values())
    files = [path for path in _FILES if path in present]
    tests = sorted(name for name in present if name is not None and name not in _FILES)
    taken = {name for dealt in (files, tests) for n, name in enumerate(dealt) if n % PARTS == part}
    return {nodeid for nodeid, name in units.items() if name is not None and name not in taken}
