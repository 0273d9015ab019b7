"""The files of this checkout, without what is installed or built."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

BUILT = {"build", "dist", "artefacts", "node_modules", "__pycache__"}


def files_of(root: Path) -> Iterator[Path]:
    """All files below `root`, but for folders whose name begins with a dot, and those that hold what is built."""
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in BUILT]
        yield from (Path(folder, name) for name in files if not name.startswith("."))
