"""The sdist, the two wheels that are built from it, and what each extra installs and runs in an empty environment."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.kit.recording import expected as messages
from tests.kit.waiting import eventually
from tistream import __version__

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PACKAGES = tuple(SETTINGS["tool"]["importlinter"]["root_packages"])
SERVICES = tuple(name for name in PACKAGES if name != "tistream")
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TISTREAM_", "PIP_"))}
Wheels = dict[str, Path]  # by distribution


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    """The wheels that are built from the sdist of this tree, offline."""
    out = tmp_path_factory.mktemp("wheels")
    hatch = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(out)]
    subprocess.run(hatch, cwd=ROOT, capture_output=True, check=True, timeout=120)
    (sdist,) = out.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(out, filter="data")
    source = out / sdist.name.removesuffix(".tar.gz")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps", "--no-build-isolation"]
    command: list[str | Path] = [*pip, "--no-index", "-q", "-w", out, source, source / "infra" / "server"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return {wheel.name.partition("-")[0].replace("_", "-"): wheel for wheel in out.glob("*.whl")}


@pytest.fixture(scope="module")
def environment(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes the environment that `pip install 'tistream[extras]'` leaves, and returns its folder of programs.

    Dependencies are links to this environment's files: exactly the distributions that the extras require.
    """

    @cache
    def install(*extras: str) -> Path:
        folder = tmp_path_factory.mktemp("-".join(("venv", *extras)))
        venv.create(folder, with_pip=False)
        site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
        names = required(extras)
        for name in names - set(wheels):
            link(importlib.metadata.distribution(name), site)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(folder / "bin" / "python")]
        command: list[str | Path] = [*pip, "install", "--no-deps", "--no-index", "-q"]
        command += [wheels[name] for name in names & set(wheels)]
        subprocess.run(command, check=True, timeout=120, env=CLEAN)
        return folder / "bin"

    return install


def required(extras: Sequence[str]) -> set[str]:
    """The distributions that pip installs with the extras, by the metadata of this tree and of what is installed."""
    project = SETTINGS["project"]
    names: set[tuple[str, str]] = set()

    def requirements_of(name: str, extra: str) -> Sequence[str]:
        if name == "tistream":
            listed: list[str] = project["optional-dependencies"].get(extra, project["dependencies"])
            return listed
        if name == "tistream-server":
            return ("tistream[services]",)  # test_their_metadata
        return importlib.metadata.requires(name) or ()

    def add(line: str, of_extra: str = "") -> None:
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": of_extra}):
            return
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) not in names:
                names.add((name, extra))
                for further in requirements_of(name, extra):
                    add(further, extra)

    add(f"tistream[{','.join(extras)}]")
    return {name for name, _ in names}


def link(distribution: importlib.metadata.Distribution, site: Path) -> None:
    """Link a distribution's top-level files and folders into another environment."""
    for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
        if not (site / top).exists():
            (site / top).symlink_to(Path(str(distribution.locate_file(top))))


def test_each_holds_its_packages_with_their_data_and_nothing_else(wheels: Wheels) -> None:
    assert set(wheels) == {"tistream", "tistream-server"}
    files_in = {name: contents(wheel) for name, wheel in wheels.items()}
    assert files_in["tistream"] == files_of("tistream") | {"pyspark_tistream.py"}
    judges = files_of("simulator/dst") | files_of("simulator/chaos")
    assert files_in["tistream-server"] == files_of(*SERVICES) - judges
    assert len(judges) > 50
    for needed in (
        *(f"{package}/py.typed" for package in SERVICES),
        "simulator/recording/meta.json",
        "simulator/recording/events.ndjson.zst",
        "apiserver/console/templates/base.html",
        "apiserver/console/static/console.css",
        "apiserver/console/static/vendor/htmx-4.0.1/htmx.min.js",
        "apiserver/console/static/vendor/htmx-4.0.1/LICENSE",
    ):
        assert needed in files_in["tistream-server"]
    for needed in (
        "tistream/py.typed",
        "tistream/catalog/database/migrations/env.py",
        "tistream/catalog/database/migrations/versions/v0001_catalog.py",
        "tistream/catalog/database/migrations/versions/v0002_audit_log.py",
    ):
        assert needed in files_in["tistream"]


def contents(archive: Path) -> set[str]:
    """The files of a wheel, without its metadata."""
    return {name for name in zipfile.ZipFile(archive).namelist() if ".dist-info/" not in name}


def files_of(*folders: str) -> set[str]:
    """The files of folders of the repository that are no caches."""
    return {
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".nbi", ".nbc")
    }


def test_their_metadata(wheels: Wheels) -> None:
    for name, wheel in wheels.items():
        (metadata,) = importlib.metadata.distributions(path=[str(wheel)])
        assert metadata.metadata["Name"] == name
        assert metadata.metadata["License-Expression"] == "Apache-2.0"
        assert metadata.version == __version__
        assert any(str(file).endswith("licenses/LICENSE") for file in metadata.files or ())
        programs = [(entry.name, entry.value) for entry in metadata.entry_points]
        if name == "tistream":
            assert programs == [("tistream", "tistream.cli.main:main")]
            assert f"tistream-server=={__version__}; extra == 'server'" in (metadata.requires or ())
        else:
            assert programs == []
            assert metadata.requires == [f"tistream[services]=={__version__}"]


def test_the_sdist_leaves_out_what_judges(wheels: Wheels) -> None:
    (sdist,) = wheels["tistream"].parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        folders = {"/".join(name.split("/")[1:3]) for name in archive.getnames()}
    assert {"simulator/demo", "infra/server"} <= folders
    assert not folders & {"simulator/dst", "simulator/chaos"}


def test_a_command_that_judges_says_that_it_is_part_of_the_repository(
    environment: Callable[..., Path], tmp_path: Path
) -> None:
    for command in ("sim", "chaos"):
        done = subprocess.run(
            [environment("server") / "tistream", command],
            capture_output=True,
            text=True,
            timeout=30,
            cwd=tmp_path,
            env=CLEAN,
        )
        assert done.returncode == 2, done.stderr
        assert "it is part of the repository only" in done.stderr


def test_the_command_works_where_it_is_installed(environment: Callable[..., Path], tmp_path: Path) -> None:
    done = subprocess.run(
        [environment() / "tistream", "tso", "1"], capture_output=True, text=True, timeout=30, cwd=tmp_path, env=CLEAN
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1 · 1970-01-01T00:00:00.000Z")


def test_every_package_comes_from_the_distribution(environment: Callable[..., Path], tmp_path: Path) -> None:
    program = (
        "import importlib, importlib.metadata as m, json\n"
        "files = {str(f.locate()) for name in ('tistream', 'tistream-server') for f in m.distribution(name).files}\n"
        f"print(json.dumps([importlib.import_module(p).__file__ in files for p in {PACKAGES}]))"
    )
    done = subprocess.run(
        [environment("server") / "python", "-c", program],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=tmp_path,
        env=CLEAN,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [True] * len(PACKAGES)


def test_a_catalog_can_be_made_from_the_installed_migrations(environment: Callable[..., Path], tmp_path: Path) -> None:
    program = (
        "from tistream.catalog.database.engine import Catalog\n"
        f"c = Catalog('sqlite:///{tmp_path}/catalog.db'); c.migrate(); c.ping(); c.close()"
    )
    subprocess.run([environment("server") / "python", "-c", program], check=True, timeout=60, cwd=tmp_path, env=CLEAN)
    assert (tmp_path / "catalog.db").stat().st_size > 0


IMPORT_ALL = """
import importlib.util, json, pkgutil, sys
missing = {}
for package in filter(importlib.util.find_spec, json.loads(sys.argv[1])):
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if module.name.startswith("tistream.catalog.database.migrations.") or module.name.endswith("__main__"):
            continue  # Alembic runs them
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as e:
            missing[module.name] = e.name
print(json.dumps(missing))
"""
# Every module that an import statement names and that is not there: many are imported when a command needs them.
IMPORTED = """
import ast, importlib.util, json, pathlib, sys
own = json.loads(sys.argv[1])
missing = {}

def is_there(name):
    top = importlib.util.find_spec(name.partition(".")[0])
    if top is None or name == top.name:
        return top is not None
    path = pathlib.Path(top.origin).parents[1] / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()

for package in own:
    folder = pathlib.Path(importlib.util.find_spec(package).origin).parent
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            else:
                continue
            for name in names:
                top = name.partition(".")[0]
                if not is_there(name if top in own else top):
                    missing.setdefault(name if top in own else top, []).append(str(path.relative_to(folder.parent)))
print(json.dumps(missing))
"""
# The modules that need more than `server`, and the extra that brings it.
BEYOND_SERVER = {"tistream.spark": "spark"}


def missing_in(programs: Path, cwd: Path) -> dict[str, Any]:
    """What cannot be imported, by module."""
    return answer_of(programs, IMPORT_ALL, cwd)


def answer_of(programs: Path, program: str, cwd: Path) -> dict[str, Any]:
    """What a program prints as JSON in an environment."""
    command: list[str | Path] = [programs / "python", "-c", program, json.dumps(PACKAGES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd, env=CLEAN)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_consumer_installs_nothing_that_only_serves() -> None:
    serving = {"numba", "grpcio", "alembic", "pymysql", "sqlalchemy", "fastapi", "uvicorn", "obstore", "boto3"}
    assert not required(()) & serving
    assert required(("server",)) > serving


def test_every_module_can_be_imported_with_the_extra_that_it_belongs_to(
    environment: Callable[..., Path], tmp_path: Path
) -> None:
    consumer = ("tistream.client", "tistream.cli.pull", "tistream.cli.status", "tistream.model", "tistream.errors")
    assert [name for name in missing_in(environment(), tmp_path) if name.startswith(consumer)] == []
    assert [
        name for name in missing_in(environment("server"), tmp_path) if not name.startswith(tuple(BEYOND_SERVER))
    ] == []
    for extra in sorted(set(BEYOND_SERVER.values())):
        extra_prefixes = tuple(prefix for prefix, brought in BEYOND_SERVER.items() if brought == extra)
        left = missing_in(environment("server", extra), tmp_path)
        assert [name for name in left if name.startswith(extra_prefixes)] == []
    asked_for = {"pandas", "duckdb"}  # forms of results of the client, which names the one that is missing
    imported = answer_of(environment("server"), IMPORTED, tmp_path)
    own = {name: paths for name, paths in imported.items() if name.startswith("simulator.")}
    assert {path for paths in own.values() for path in paths} == {"tistream/cli/sim.py"}
    assert set(imported) - set(own) - {"_typeshed"} - asked_for == {"pyspark"}
    assert [name for name in missing_in(environment("spark"), tmp_path) if name == "tistream.spark.source"] == []


def test_a_command_that_needs_the_server_names_the_extra(environment: Callable[..., Path], tmp_path: Path) -> None:
    for command in (("up", "--data", "x"), ("meta",), ("dispatch",), ("sort",), ("serve",), ("demo",), ("compile",)):
        done = subprocess.run(
            [environment() / "tistream", *command], capture_output=True, text=True, timeout=30, cwd=tmp_path, env=CLEAN
        )
        assert done.returncode == 2, (command, done.stderr)
        assert done.stderr.endswith("  It comes with the extra 'server' of tistream.\n"), (command, done.stderr)


@pytest.fixture
def service(environment: Callable[..., Path], tmp_path: Path) -> Iterator[str]:
    """The address of `tistream up`, from the server's environment."""
    command: list[str | Path] = [environment("server") / "tistream", "up", "--data", tmp_path / "data"]
    command += ["--port", "0", "--auth", "none"]
    output = tmp_path / "up.txt"
    with output.open("w") as file, subprocess.Popen(command, stderr=file, cwd=tmp_path, env=CLEAN) as process:
        try:
            eventually(lambda: ADDRESS.search(output.read_text("utf-8")), "no address")
            yield ADDRESS.findall(output.read_text("utf-8"))[0]
        finally:
            process.send_signal(signal.SIGTERM)


def test_a_consumer_reads_what_an_installed_service_serves(
    environment: Callable[..., Path], service: str, tmp_path: Path
) -> None:
    def run(*arguments: str, extras: tuple[str, ...] = ()) -> str:
        done = subprocess.run(
            [environment(*extras) / "tistream", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            env={**CLEAN, "TISTREAM_URL": service},
        )
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    run("tenant", "register", "-c", "1", "-t", "1")
    recording = str(ROOT / "simulator" / "recording")
    run("push", "--capture", recording, "-c", "1", "-t", "1", "--speed", "max", extras=("server",))
    expected = [
        json.loads(d["msg"]) for d in messages("ticdc-canal-json") if (d.get("db"), d["table"]) == ("shop", "customers")
    ]
    rows = [(message["type"], message["data"]) for message in expected if not message["isDdl"]]
    assert len(rows) > 10

    def pulled() -> list[tuple[str, object]]:
        lines = run("pull", "shop.customers", "--since", "earliest", "--format", "canal-json").splitlines()
        return [(message["type"], message["data"]) for message in map(json.loads, lines) if not message["isDdl"]]

    eventually(lambda: len(pulled()) >= len(rows), "the rows are not there")
    assert pulled() == rows
