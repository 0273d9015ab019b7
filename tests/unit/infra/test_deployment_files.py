"""Dockerfile and compose say what the code understands: settings, flags, ports, packages."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from tistream import config
from tistream.cli.main import command_line

ROOT = Path(__file__).parents[3]
INFRA = ROOT / "infra"
DOCKERFILE = (INFRA / "Dockerfile").read_text("utf-8")
COMPOSE = yaml.safe_load((INFRA / "compose.yaml").read_text("utf-8"))
OF_CLIENTS = {"TISTREAM_URL", "TISTREAM_KEY", "TISTREAM_CONFIG"}
OF_COMPOSE = {"TISTREAM_DB_PASSWORD"}

SETTINGS = {config.ENV_PREFIX + key.replace(".", "_").upper() for key in config.known_keys()}


def commands() -> dict[str, Any]:
    return dict(getattr(get_command(command_line()), "commands", {}))


def flags_of(command: str) -> set[str]:
    return {flag for parameter in commands()[command].params for flag in parameter.opts}


def ours() -> Iterator[tuple[str, dict[str, Any]]]:
    """Compose's services that are processes of TiStream."""
    for name, service in COMPOSE["services"].items():
        if service.get("image") in ("tistream:local", "tistream-spark:local"):
            yield name, service


@pytest.mark.parametrize("name", ["Dockerfile", "spark.Dockerfile", "compose.yaml", "tistream.toml"])
def test_settings_that_are_named_exist(name: str) -> None:
    named = set(re.findall(r"\bTISTREAM_[A-Z_]+\b", (INFRA / name).read_text("utf-8")))
    assert sorted(named - SETTINGS - OF_CLIENTS - OF_COMPOSE) == []


def test_the_example_configuration_is_accepted() -> None:
    assert config.load(INFRA / "tistream.toml").meta.data_tasks == 2


def test_the_compose_file_starts_every_role_with_flags_it_has() -> None:
    started = [service["command"][0] for _, service in ours()]
    assert sorted(started) == [
        "dispatch",
        "dispatch",
        "maintain",
        "meta",
        "replicate",
        "serve",
        "sort",
        "sort",
        "spark",
    ]
    for name, service in ours():
        command, *args = service["command"]
        assert {arg for arg in args if arg.startswith("--")} <= flags_of(command), name


def test_spark_is_a_profile_whose_image_is_built_on_that_of_the_other_services() -> None:
    spark = COMPOSE["services"]["spark"]
    assert spark["profiles"] == ["spark"]
    base = spark["build"]["args"]["BASE"]
    built_by = spark["build"]["additional_contexts"][base].removeprefix("service:")
    assert COMPOSE["services"][built_by]["image"] == "tistream:local"
    text = (INFRA / spark["build"]["dockerfile"].removeprefix("infra/")).read_text("utf-8")
    assert re.search(r"^ARG BASE=.*\nFROM \$\{BASE\}$", text, re.MULTILINE)


def test_the_compose_file_gives_values_that_settings_accept() -> None:
    for _, service in ours():
        given = {k: re.sub(r"\$\{\w+:\?[^}]*\}", "word", v) for k, v in service["environment"].items()}
        loopback = {"TISTREAM_SERVER_HOST", "TISTREAM_SERVER_AUTH"}  # which depends on how requests show who they are
        settings = config.load(environ={k: v for k, v in given.items() if k not in loopback and k in SETTINGS})
        assert settings.catalog.url.startswith("mysql+pymysql://")
        assert settings.object_store.url.startswith("s3://")


def test_no_password_is_written_down() -> None:
    for name, service in COMPOSE["services"].items():
        for variable, value in (service.get("environment") or {}).items():
            if re.search(r"PASSWORD|SECRET|ACCESS_KEY", variable) and "RANDOM" not in variable:
                assert re.fullmatch(r"\$\{\w+:\?[^}]*\}", value), f"{name} {variable}"
    asked = set(re.findall(r"\$\{(\w+):\?", (INFRA / "compose.yaml").read_text("utf-8")))
    example = dict(line.split("=") for line in (INFRA / "env.example").read_text("utf-8").splitlines() if "=" in line)
    assert asked == set(example)
    assert not any(example.values())


def test_what_compose_mounts_is_there_and_ports_stay_on_the_machine() -> None:
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (INFRA / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_prometheus_looks_at_every_process_of_the_compose_file() -> None:
    scraped = yaml.safe_load((INFRA / "prometheus/prometheus.yml").read_text("utf-8"))["scrape_configs"]
    targets = {target for job in scraped for static in job["static_configs"] for target in static["targets"]}
    always = {name for name, service in ours() if "profiles" not in service}
    assert targets == {f"{name}:9464" for name in always}  # the HTTP port asks for a key
    looked_up = [dns for job in scraped for dns in job["dns_sd_configs"]]
    assert {(name, dns["type"], dns["port"]) for dns in looked_up for name in dns["names"]} == {
        (name, "A", 9464) for name, _ in ours() if name not in always
    }, "no target without its profile: nothing is reported as down"
    assert {job["job_name"] for job in scraped} == {"tistream"}  # what the rules ask for


def test_the_linter_of_compose_files_finds_nothing_serious() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "compose_lint", "--fail-on", "high", str(INFRA / "compose.yaml")],
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


def test_the_image_holds_every_package_and_runs_as_nobody_special() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert "COPY . .\n" in DOCKERFILE
    assert not set(packages["packages"]) & set((ROOT / ".dockerignore").read_text("utf-8").split())
    last = DOCKERFILE[DOCKERFILE.rindex("\nFROM ") :]
    assert re.findall(r"^USER (.+)$", last, re.MULTILINE) == ["10001:10001"]
    assert "HEALTHCHECK" in last
    assert 'ENTRYPOINT ["tistream"]' in last
    for source in re.findall(r"^COPY (?!--)(\S+) /", last, re.MULTILINE):
        assert (ROOT / source).is_file()


def test_the_image_of_spark_adds_java_and_the_extra_and_runs_as_the_same_user() -> None:
    text = (INFRA / "spark.Dockerfile").read_text("utf-8")
    assert re.findall(r"^USER (.+)$", text, re.MULTILINE) == ["root", "10001:10001"]
    assert "openjdk-17-jre-headless" in text
    (extra,) = re.findall(r"'tistream\[(\w+)\]'", text)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert any(package.startswith("pyspark") for package in extras[extra])


def test_the_health_check_follows_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/livez" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = str(server.server_address[1])
        monkeypatch.setenv("TISTREAM_METRICS_PORT", port)
        monkeypatch.setenv("TISTREAM_SERVER_PORT", "1")
        check = runpy.run_path(str(INFRA / "healthcheck.py"))
        assert check["PORTS"] == ("1", port)
        assert check["answers"](port)
        assert not check["answers"]("1")
        server.shutdown()
