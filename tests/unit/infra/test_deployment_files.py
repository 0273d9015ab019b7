"""Dockerfile and compose say what the code understands: settings, flags, ports, packages. Dashboard, rules and runbooks
speak of metrics that there are, and of all of them."""

from __future__ import annotations

import json
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
from tistream.runtime import metrics

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
        assert settings.insecure.listen, "its ports have no certificates"


def test_no_password_is_written_down() -> None:
    for name, service in COMPOSE["services"].items():
        for variable, value in (service.get("environment") or {}).items():
            if re.search(r"PASSWORD|SECRET|ACCESS_KEY", variable) and "RANDOM" not in variable:
                assert re.fullmatch(r"\$\{\w+:\?[^}]*\}", value), f"{name} {variable}"
    required = set(re.findall(r"\$\{(\w+):\?", (INFRA / "compose.yaml").read_text("utf-8")))
    example = dict(line.split("=") for line in (INFRA / "env.example").read_text("utf-8").splitlines() if "=" in line)
    assert required == set(example)
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


RULES = yaml.safe_load((ROOT / "infra/prometheus/alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
CASES = yaml.safe_load((ROOT / "infra/prometheus/alerts.test.yml").read_text("utf-8"))["tests"]
DASHBOARD = json.loads((ROOT / "infra/grafana/tistream.json").read_text("utf-8"))
DESCRIBED = {each.name: each for each in metrics.described()}
NAME = re.compile(r"\btistream_[a-z_]+\b")
#: name{label="value",...}
MATCHER = re.compile(r"(\btistream_[a-z_]+)\{([^}]*)\}")
GROUPED = re.compile(r"\b(?:by|without) \(([^)]*)\)")


def series() -> dict[str, metrics.Described]:
    """Every series' name, with those that a histogram has."""
    by_series = dict(DESCRIBED)
    for each in DESCRIBED.values():
        if each.kind == "histogram":
            by_series |= {each.name + suffix: each for suffix in ("_bucket", "_sum", "_count")}
    return by_series


def expressions() -> list[tuple[str, str]]:
    """(where it stands, the expression)."""
    named_expressions = [(rule["alert"], rule["expr"]) for rule in RULES]
    for panel in DASHBOARD["panels"]:
        named_expressions += [(panel["title"], target["expr"]) for target in panel.get("targets", ())]
    return named_expressions


@pytest.mark.parametrize(("where", "expression"), expressions())
def test_an_expression_names_metrics_and_labels_that_there_are(where: str, expression: str) -> None:
    described = series()
    names = NAME.findall(expression)
    assert names or expression.startswith("up{"), where
    assert not [name for name in names if name not in described]
    for name, matchers in MATCHER.findall(expression):
        assert set(re.findall(r"(\w+)[=!]~?", matchers)) <= {*described[name].labels, "instance", "job"}
    labels = {label for name in names for label in described[name].labels} | {"instance", "job", "le"}
    for group in GROUPED.findall(expression):
        assert {label.strip() for label in group.split(",")} <= labels


def test_every_metric_is_shown_on_the_dashboard() -> None:
    shown = {series()[name].name for _, expression in expressions() for name in NAME.findall(expression)}
    assert sorted(set(DESCRIBED) - shown) == []


def test_an_alert_of_lag_names_the_command_that_explains_it() -> None:
    explained = {rule["alert"]: rule["annotations"].get("explain") for rule in RULES if "_lag_" in rule["expr"]}
    command = "tistream explain lag -c {{ $labels.cluster }} -t {{ $labels.tenant }}"
    assert explained.keys() > {"TiStreamLagHigh", "TiStreamLagStands", "TiStreamReplicationLag"}
    assert set(explained.values()) == {command}


def test_every_rule_has_a_runbook_that_speaks_of_it() -> None:
    for rule in RULES:
        page = ROOT / rule["annotations"]["runbook"]
        assert f"`{rule['alert']}`" in page.read_text("utf-8"), rule["alert"]
    named = {Path(rule["annotations"]["runbook"]).name for rule in RULES}
    planned, alerts = (ROOT / "docs/runbooks/index.md").read_text("utf-8").split("## Alerts")
    assert set(re.findall(r"\(([\w-]+\.md)\)", alerts)) == named
    listed = named | set(re.findall(r"\(([\w-]+\.md)\)", planned))
    assert {page.name for page in (ROOT / "docs/runbooks").glob("*.md")} == listed | {"index.md"}


def test_every_rule_is_tested_to_fire_and_to_stay_quiet() -> None:
    def fires(case: dict[str, Any]) -> set[str]:
        return {test["alertname"] for test in case["alert_rule_test"] if test["exp_alerts"]}

    def stays_quiet(case: dict[str, Any]) -> set[str]:
        return {test["alertname"] for test in case["alert_rule_test"] if not test["exp_alerts"]}

    alerts = {rule["alert"] for rule in RULES}
    assert set().union(*map(fires, CASES)) == set().union(*map(stays_quiet, CASES)) == alerts


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    used: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & used
        assert at["x"] + at["w"] <= 24
        used |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_no_metric_has_a_label_whose_values_grow_with_tables_keys_or_objects() -> None:
    bounded = {
        *("service", "direction", "stage", "point", "operation", "kind", "outcome"),
        *("method", "status", "state", "code", "fatal", "version", "scope", "reason", "part"),
    }
    of_tenants = {"tistream_checkpoint_lag_seconds", "tistream_resolved_ts_lag_seconds"}
    of_consumers, of_changefeeds = ({name for name, _ in of} for of in (metrics.OF_CONSUMERS, metrics.OF_CHANGEFEEDS))
    of_tables = {f"tistream_replication_table_{what}_total" for what in ("rows", "bytes")}  # TABLES_SHOWN_MAX of them
    for each in metrics.described():
        of_one = of_tenants | of_consumers | of_changefeeds | of_tables
        named = {"cluster", "tenant"} if each.name in of_one else set()
        named |= {"consumer"} if each.name in of_consumers else set()
        named |= {"changefeed"} if each.name in of_changefeeds | of_tables else set()
        named |= {"table"} if each.name in of_tables else set()
        assert set(each.labels) <= bounded | named, each.name
