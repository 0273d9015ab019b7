"""Keeps compiled kernels on disk, named by what they were compiled from.

numba's own cache is next to the source file and knows that file alone: every checkout compiles again, and code inlined
from another module is not renewed when that module changes. Here a kernel's folder is named by a hash of its module, of
our modules that it imports, and of the versions of Python, numba and numpy; its file by the argument types and the
processor. All checkouts and environments of a user share one cache, a changed source is compiled again, and processes
that write at the same time write the same.

The folder is $NUMBA_CACHE_DIR, else `tistream/kernels` in $XDG_CACHE_HOME (~/.cache). One that cannot be written, as in
the image, is read.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core import caching
from numba.core.serialize import dumps

OURS = {"dispatcher", "pusher", "reading", "schemas", "sorter", "tistream"}  #: packages with kernels or what they use
ROOT = Path(__file__).parents[2]  #: the folder of these packages
_VERSIONS = f"{sys.implementation.cache_tag} numba {numba.__version__} numpy {np.__version__}"
_FOR_ALL = 0o644  #: one user builds the image, another runs it
_IMPORT = re.compile(r"^(?:from|import) ([\w.]+)(?: import (\([^)]*\)|.*))?", re.MULTILINE)


def attach(dispatcher: Any) -> None:
    """Load a kernel of ours from the cache and keep it there. Does nothing without a folder."""
    if (dispatcher.py_func.__module__ or "").split(".")[0] in OURS and (_writable(folder()) or folder().is_dir()):
        dispatcher._cache = _KernelCache(dispatcher.py_func)


def folder() -> Path:
    """Where all kernels are kept."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(numba.config.CACHE_DIR or home / "tistream" / "kernels")


def prune(before_s: float) -> None:
    """Remove kernels of other sources and versions than this process uses, when last written before this Unix time."""
    used = {fingerprint(name) for name in list(sys.modules) if name.split(".")[0] in OURS}
    for old in folder().glob("[0-9a-f]" * 32):
        if old.name not in used and old.stat().st_mtime < before_s:
            shutil.rmtree(old, ignore_errors=True)


class _Locator(caching._CacheLocator):  # type: ignore[misc]
    def __init__(self, function: Callable[..., Any]) -> None:
        self._path = folder() / fingerprint(function.__module__)

    @classmethod
    def from_function(cls, function: Callable[..., Any], _file: str) -> _Locator:
        return cls(function)

    def ensure_cache_path(self) -> None:
        if _writable(folder()):
            super().ensure_cache_path()

    def get_cache_path(self) -> str:
        return str(self._path)

    def get_source_stamp(self) -> str:
        return self._path.name

    def get_disambiguator(self) -> str:
        return ""


class _Compiled(caching.CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = [_Locator]


class _KernelCache(caching.FunctionCache):  # type: ignore[misc]
    """numba's cache of one function, with a file for each signature instead of an index that all of them share."""

    _impl_class = _Compiled

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = _Files(Path(self.cache_path), f"{function.__module__}.{function.__qualname__}")


class _Files:
    """The signatures of one function."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name

    def load(self, key: Any) -> Any:
        try:
            return pickle.loads(self._file(key).read_bytes())  # noqa: S301 - of the user's own folder
        except FileNotFoundError:
            return None

    def save(self, key: Any, compiled: Any) -> None:
        if not _writable(self._path.parent):
            return
        with tempfile.NamedTemporaryFile(dir=self._path, delete=False) as made:
            made.write(dumps(compiled))
        Path(made.name).chmod(_FOR_ALL)
        Path(made.name).replace(self._file(key))

    def _file(self, key: Any) -> Path:
        types = [(repr(each), each.key) for each in key[0]]
        return self._path / f"{self._name}-{hashlib.sha256(repr((types, key[1:])).encode()).hexdigest()[:32]}"


@cache
def fingerprint(module: str) -> str:
    """Hash of all that the machine code of this module's kernels is made from, 32 hex digits."""
    sources: dict[str, str] = {}
    todo = [module]
    while todo:
        name = todo.pop()
        if name not in sources and name.split(".")[0] in OURS:
            sources[name], imported = _source(name)
            todo += imported
    whole = [_VERSIONS, *(f"{name}\0{source}" for name, source in sorted(sources.items()))]
    return hashlib.sha256("\0".join(whole).encode()).hexdigest()[:32]


@cache
def _source(module: str) -> tuple[str, list[str]]:
    """A module's source, and the names of what it imports: modules and what is in them. Empty for no module."""
    path = ROOT.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_name(path.name + ".py")
    if not path.is_file():
        return "", []
    source = path.read_text("utf-8")
    pairs = _IMPORT.findall(source)
    return source, [a for a, _ in pairs] + [f"{a}.{b}" for a, names in pairs for b in re.findall(r"\w+", names)]


@cache
def _writable(path: Path) -> bool:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return True
    except OSError:
        return False
