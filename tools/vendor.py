"""Fetch the console's JavaScript into apiserver/console/static/vendor and write vendor.json with versions and hashes.

python tools/vendor.py            # needs npm; run it only to change a version below
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

VENDOR = Path(__file__).parents[1] / "apiserver" / "console" / "static" / "vendor"
#: npm package -> (folder, version, files of the package to keep)
PACKAGES = {
    "htmx.org": ("htmx", "4.0.1", ("dist/htmx.min.js", "LICENSE")),
    "swagger-ui-dist": ("swagger-ui", "5.35.0", ("swagger-ui-bundle.js", "swagger-ui.css", "LICENSE", "NOTICE")),
    "uplot": ("uplot", "1.6.32", ("dist/uPlot.iife.min.js", "dist/uPlot.min.css", "LICENSE")),
}


def main() -> None:
    """Replace the vendored files."""
    shutil.rmtree(VENDOR, ignore_errors=True)
    for package, (name, version, files) in PACKAGES.items():
        target = VENDOR / f"{name}-{version}"
        target.mkdir(parents=True)
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["npm", "pack", "--silent", f"{package}@{version}"], cwd=folder, check=True)
            with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
                for file in files:
                    member = archive.extractfile(f"package/{file}")
                    assert member is not None, file
                    (target / Path(file).name).write_bytes(member.read())
    (VENDOR / "vendor.json").write_text(json.dumps(manifest(VENDOR), indent=2) + "\n", "utf-8")


def manifest(root: Path) -> dict[str, str]:
    """Path below `root` -> SHA-384 of the file, as browsers write it."""
    files = sorted(p for p in root.rglob("*") if p.is_file() and p.name != "vendor.json")
    return {p.relative_to(root).as_posix(): _integrity(p.read_bytes()) for p in files}


def _integrity(data: bytes) -> str:
    return "sha384-" + base64.b64encode(hashlib.sha384(data).digest()).decode()


if __name__ == "__main__":
    main()
