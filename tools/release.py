"""Makes what a release consists of: what it leaves behind for the tests of later ones, and the packages.

    python tools/release.py            sdist and wheels in dist/, then tests/releases/VERSION with its SHA256SUMS
    python tools/release.py --again    the same, in place of files that were made before

VERSION is that of tistream/__init__.py. What has the tag vVERSION is released, and is never made again.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main(arguments: list[str]) -> int:
    """The exit status."""
    sys.path.insert(0, str(ROOT))
    from tests.kit.release import FOLDER, make
    from tistream import __version__

    if arguments not in ([], ["--again"]):
        print(__doc__, file=sys.stderr)
        return 2
    if _tagged(f"v{__version__}"):
        print(f"{__version__} is released: its files never change. Raise the version.", file=sys.stderr)
        return 1
    folder = FOLDER / __version__
    if folder.exists():
        if not arguments:
            print(f"{folder.relative_to(ROOT)} exists. --again makes it once more.", file=sys.stderr)
            return 1
        shutil.rmtree(folder)
    if status := subprocess.run(["make", "dist"], cwd=ROOT, check=False).returncode:
        return status
    make(__version__, sorted((ROOT / "dist").glob("*.whl")))
    print((folder / "SHA256SUMS").read_text("ascii"), end="")
    return 0


def _tagged(name: str) -> bool:
    listed = subprocess.run(["git", "tag", "--list", name], cwd=ROOT, capture_output=True, text=True, check=True)
    return bool(listed.stdout.strip())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
