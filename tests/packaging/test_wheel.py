"""The wheel: what is in it, and that it works where nothing else of the source tree is."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tistream import __version__

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
PACKAGES = tuple(SETTINGS["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TISTREAM_", "PIP_"))}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, built offline."""
    out = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*pip, "--no-index", "-q", "-w", out, ROOT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment that has the wheel, and sees the dependencies of this one."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    dependencies = dependencies_of(tmp_path_factory.mktemp("dependencies"))
    (site / "dependencies.pth").write_text(f"{dependencies}\n", "utf-8")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(folder / "bin" / "python")]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "-q", wheel], check=True, timeout=120, env=CLEAN)
    return folder / "bin"


def dependencies_of(folder: Path) -> Path:
    """This environment's packages except TiStream itself, as links: an editable install would show the source tree."""
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "tistream" not in path.name.lower() and path.suffix != ".pth":
            (folder / path.name).symlink_to(path)
    return folder


def test_it_holds_the_packages_and_their_data_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    source = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".nbi", ".nbc")
    }
    assert source == {name for name in names if ".dist-info/" not in name}
    for needed in (
        *(f"{package}/py.typed" for package in PACKAGES),
        "tistream/catalog/database/migrations/env.py",
        "tistream/catalog/database/migrations/versions/v0001_catalog.py",
        "simulator/recording/meta.json",
        "simulator/recording/events.ndjson.zst",
        "apiserver/console/templates/base.html",
        "apiserver/console/static/console.css",
        "apiserver/console/static/vendor/htmx-4.0.1/htmx.min.js",
        "apiserver/console/static/vendor/htmx-4.0.1/LICENSE",
    ):
        assert needed in names


def test_its_metadata(wheel: Path) -> None:
    (found,) = importlib.metadata.distributions(path=[str(wheel)])
    assert found.metadata["Name"] == "tistream"
    assert found.metadata["License-Expression"] == "Apache-2.0"
    assert found.version == __version__
    assert [(e.name, e.value) for e in found.entry_points] == [("tistream", "tistream.cli.main:main")]
    assert any(str(file).endswith("licenses/LICENSE") for file in found.files or ())


def test_the_command_works_where_it_is_installed(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [installed / "tistream", "tso", "1"], capture_output=True, text=True, timeout=30, cwd=tmp_path, env=CLEAN
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1 · 1970-01-01T00:00:00.000Z")


def test_every_package_comes_from_the_distribution(installed: Path, tmp_path: Path) -> None:
    program = (
        "import importlib, importlib.metadata as m, json\n"
        "files = {str(f.locate()) for f in m.distribution('tistream').files}\n"
        f"print(json.dumps([importlib.import_module(p).__file__ in files for p in {PACKAGES}]))"
    )
    done = subprocess.run(
        [installed / "python", "-c", program], capture_output=True, text=True, timeout=30, cwd=tmp_path, env=CLEAN
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [True] * len(PACKAGES)


def test_a_catalog_can_be_made_from_the_installed_migrations(installed: Path, tmp_path: Path) -> None:
    program = (
        "from tistream.catalog.database.engine import Catalog\n"
        f"c = Catalog('sqlite:///{tmp_path}/catalog.db'); c.migrate(); c.ping(); c.close()"
    )
    subprocess.run([installed / "python", "-c", program], check=True, timeout=60, cwd=tmp_path, env=CLEAN)
    assert (tmp_path / "catalog.db").stat().st_size > 0
