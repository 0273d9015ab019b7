"""The cache of compiled kernels: what it is named by, who shares it, and what is removed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numba
import pytest

from tests.test_tidy import ROOT
from tistream.codec import kernel_cache
from tistream.codec.key_scan import scan_keys

RUN = """
import numpy as np
from tistream.codec.key_scan import scan_keys
bounds, data = np.array([0, 3], np.int32), np.zeros(3, np.uint8)
scan_keys(bounds, data, np.zeros(1, np.int64), np.zeros(1, np.bool_))
data.flags.writeable = False
scan_keys(bounds, data, np.zeros(1, np.int64), np.zeros(1, np.bool_))
print(sum(scan_keys.stats.cache_hits.values()), sum(scan_keys.stats.cache_misses.values()))
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Modules of a small tree: `sorter.a` imports from `sorter.b`, which imports the module `reading.c`."""
    monkeypatch.setattr(kernel_cache, "ROOT", tmp_path)
    for path, text in (
        ("sorter/__init__.py", ""),
        ("sorter/a.py", "import numpy as np\nfrom sorter.b import (\n    one,\n    two,\n)\n"),
        ("sorter/b.py", "from reading import c\n"),
        ("reading/c.py", "SIZE = 1\n"),
        ("reading/d.py", "SIZE = 1\n"),
    ):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    kernel_cache.fingerprint.cache_clear()
    kernel_cache._source.cache_clear()


@pytest.mark.parametrize(
    ("changed", "matters"),
    [("sorter/a.py", True), ("sorter/b.py", True), ("reading/c.py", True), ("reading/d.py", False)],
)
def test_a_fingerprint_is_of_a_module_and_all_that_it_imports(sources: Path, changed: str, matters: bool) -> None:
    before = kernel_cache.fingerprint("sorter.a")
    with (sources / changed).open("a") as file:
        file.write("# changed\n")
    forget()
    assert (kernel_cache.fingerprint("sorter.a") != before) == matters


def test_every_module_with_kernels_is_cached() -> None:
    users = {
        path.relative_to(ROOT).parts[0]
        for package in ROOT.glob("*/__init__.py")
        for path in package.parent.rglob("*.py")
        if "codec.compiled import" in path.read_text("utf-8")
    }
    assert users <= kernel_cache.OURS


def run(folder: Path, program: str = RUN, **env: str) -> str:
    path = os.pathsep.join(p for p in sys.path if p)
    clean = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**clean, "PYTHONPATH": path, "XDG_CACHE_HOME": str(folder), **env},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_another_process_loads_what_the_first_compiled_for_each_signature(tmp_path: Path) -> None:
    assert run(tmp_path) == "0 2"
    assert len(list(tmp_path.glob("tistream/kernels/*/tistream.codec.key_scan.scan_keys-*"))) == 2
    assert run(tmp_path) == "2 0"
    assert run(Path("/nowhere"), NUMBA_CACHE_DIR=str(tmp_path / "tistream" / "kernels")) == "2 0"


def test_a_folder_that_cannot_be_written_is_read(tmp_path: Path) -> None:
    assert run(tmp_path) == "0 2"
    path = next(tmp_path.glob("tistream/kernels/*/tistream.codec.key_scan.scan_keys-*"))
    assert path.stat().st_mode & 0o444 == 0o444  # the user that runs the image is not the one that built it
    path.unlink()
    # root may write anywhere: the folder only seems to be read-only
    program = f"from tistream.codec import kernel_cache\nkernel_cache._writable = lambda _: False\n{RUN}"
    assert run(tmp_path, program) == "1 1"
    assert not path.exists()


def test_without_a_folder_that_can_be_written_each_process_compiles(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert [run(tmp_path / "file") for _ in range(2)] == ["0 2", "0 2"]


def test_only_old_kernels_of_other_versions_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    used = kernel_cache.fingerprint(scan_keys.__module__)
    other, young = "0" * 32, "1" * 32
    for name, written in ((used, 1000), (other, 1000), (young, 3000), ("notes", 1000)):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (written, written))
    kernel_cache.prune(2000)
    assert {path.name for path in tmp_path.iterdir()} == {used, young, "notes"}
