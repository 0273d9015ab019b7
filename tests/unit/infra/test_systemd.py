"""The systemd units start what the command line has, stop as the chart's pods do, and systemd finds them in order and
confined."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tistream import config
from tistream.cli.main import EXIT, command_line
from tistream.errors import ErrorKind

ROOT = Path(__file__).parents[3]
UNITS = ROOT / "infra" / "systemd"
SERVICES = sorted(UNITS.glob("*.service"))
COMMON = UNITS / "tistream-.service.d" / "common.conf"
#: role -> its template of the chart
CHART = {
    **{"serve": "api", "meta": "meta", "dispatch": "workers", "sort": "workers", "maintain": "executors"},
    **{"replicate": "replicators", "push": "pushers"},
}
EXPOSURE_MAX = 1.5  #: of 10, as systemd counts it; 9.6 is that of a unit without any of these settings


class Lists(dict[str, Any]):
    """Settings of a section, where one may be repeated."""

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(value, list) and name in self:
            self[name].extend(value)
        else:
            super().__setitem__(name, value)


def settings(path: Path) -> dict[str, list[str]]:
    """What the section [Service] of a unit says."""
    parser = ConfigParser(dict_type=Lists, strict=False, interpolation=None, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path, "utf-8")
    return {name: value.split("\n") for name, value in parser["Service"].items()}


def role_of(unit: Path) -> str:
    return unit.stem.removeprefix("tistream-").rstrip("@")


def commands() -> dict[str, Any]:
    return dict(getattr(get_command(command_line()), "commands", {}))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The units as on a machine, with this environment's program in place of /opt/tistream's."""
    folder = tmp_path_factory.mktemp("units")
    shutil.copytree(UNITS, folder, dirs_exist_ok=True)
    for unit in folder.glob("*.service"):
        unit.write_text(unit.read_text("utf-8").replace("/opt/tistream/bin", str(Path(sys.executable).parent)), "utf-8")
    return folder


def analyze(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *args], capture_output=True, text=True, timeout=60, check=False)


def instance(folder: Path, unit: Path) -> Path:
    """A unit as it is started: an instance of a template."""
    if not unit.stem.endswith("@"):
        return folder / unit.name
    there = folder / f"{unit.stem}1.service"
    shutil.copy(folder / unit.name, there)
    return there


def test_there_is_a_unit_for_each_role() -> None:
    assert {role_of(unit) for unit in SERVICES} == set(CHART)


@pytest.mark.parametrize("unit", SERVICES, ids=role_of)
def test_a_unit_starts_a_command_with_options_that_it_has(unit: Path) -> None:
    (line,) = settings(unit)["ExecStart"]
    program, command, *args = shlex.split(line)
    assert (program, command) == ("/opt/tistream/bin/tistream", role_of(unit))
    options = {flag for parameter in commands()[command].params for flag in parameter.opts}
    assert {word for word in args if word.startswith("--")} <= options
    assert not [word for word in args if not word.startswith("--") and not re.search(r"[%$]", word)], "all are named"


@pytest.mark.parametrize("unit", SERVICES, ids=role_of)
def test_a_unit_has_as_long_to_stop_as_a_pod(unit: Path) -> None:
    template = ROOT / "infra/helm/tistream/templates" / f"{CHART[role_of(unit)]}.yaml"
    (grace,) = re.findall(r"terminationGracePeriodSeconds: (\d+)", template.read_text("utf-8"))
    assert settings(unit)["TimeoutStopSec"] == [grace]


def test_what_no_restart_helps_is_not_restarted() -> None:
    common = settings(COMMON)
    assert common["RestartPreventExitStatus"] == [str(EXIT[ErrorKind.INVALID])]
    assert common["Restart"] == ["on-failure"]


@pytest.mark.parametrize("unit", SERVICES, ids=role_of)
def test_systemd_verifies_a_unit(unit: Path, installed: Path) -> None:
    done = analyze("verify", str(instance(installed, unit)))
    ours = [line for line in done.stderr.splitlines() if "tistream" in line]
    assert (done.returncode, ours) == (0, []), done.stderr


def test_systemd_refuses_a_unit_that_is_wrong(installed: Path) -> None:
    wrong = installed / "tistream-wrong.service"
    text = (installed / "tistream-serve.service").read_text("utf-8")
    wrong.write_text(text.replace("TimeoutStopSec=30", "TimeoutStopSec=soon"), "utf-8")
    assert "Failed to parse time value" in analyze("verify", str(wrong)).stderr
    wrong.unlink()


@pytest.mark.parametrize("unit", SERVICES, ids=role_of)
def test_systemd_finds_a_unit_confined(unit: Path, installed: Path) -> None:
    there = str(instance(installed, unit))
    assert analyze("security", "--offline=yes", f"--threshold={round(EXPOSURE_MAX * 10)}", there).returncode == 0
    assert analyze("security", "--offline=yes", "--threshold=1", there).returncode != 0, "the threshold counts"


@pytest.mark.parametrize("name", ["tistream.env", "tistream-push.env"])
def test_the_examples_name_settings_that_there_are_and_no_secret(name: str) -> None:
    known = {config.ENV_PREFIX + key.replace(".", "_").upper() for key in config.known_keys()}
    known |= {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    if name == "tistream-push.env":
        words = settings(UNITS / "tistream-push@.service")["ExecStart"][0]
        known = {*re.findall(r"\$\{?([A-Z]+)", words), "TISTREAM_URL", "TISTREAM_KEY", "TISTREAM_CA"}
    lines = (UNITS / name).read_text("utf-8").splitlines()
    given = dict(line.removeprefix("#").split("=", 1) for line in lines if re.match(r"#?[A-Z_]+=", line))
    assert given
    assert set(given) <= known
    secrets = {value for variable, value in given.items() if re.search(r"KEY|SECRET", variable)}
    assert not [value for value in secrets if value and not value.startswith("/etc/")], "a file of a key is none"


def test_the_environment_of_the_example_is_accepted() -> None:
    lines = [line for line in (UNITS / "tistream.env").read_text("utf-8").splitlines() if not line.startswith("#")]
    assert config.load(environ=dict(line.split("=", 1) for line in lines)).server.auth == "keys"
