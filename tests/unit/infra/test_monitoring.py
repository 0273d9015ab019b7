"""Dashboard, rules and runbooks speak of metrics that there are, and of all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tistream.runtime import metrics

ROOT = Path(__file__).parents[3]
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
    found = dict(DESCRIBED)
    for each in DESCRIBED.values():
        if each.kind == "histogram":
            found |= {each.name + suffix: each for suffix in ("_bucket", "_sum", "_count")}
    return found


def expressions() -> list[tuple[str, str]]:
    """(where it stands, the expression)."""
    found = [(rule["alert"], rule["expr"]) for rule in RULES]
    for panel in DASHBOARD["panels"]:
        found += [(panel["title"], target["expr"]) for target in panel.get("targets", ())]
    return found


@pytest.mark.parametrize(("where", "expression"), expressions())
def test_an_expression_names_metrics_and_labels_that_there_are(where: str, expression: str) -> None:
    known = series()
    names = NAME.findall(expression)
    assert names or expression.startswith("up{"), where
    assert not [name for name in names if name not in known]
    for name, matchers in MATCHER.findall(expression):
        assert set(re.findall(r"(\w+)[=!]~?", matchers)) <= {*known[name].labels, "instance", "job"}
    labels = {label for name in names for label in known[name].labels} | {"instance", "job", "le"}
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
    assert {page.name for page in (ROOT / "docs/runbooks").glob("*.md")} == named | {"index.md"}


def test_every_rule_is_tested_to_fire_and_to_stay_quiet() -> None:
    def fires(case: dict[str, Any]) -> set[str]:
        return {test["alertname"] for test in case["alert_rule_test"] if test["exp_alerts"]}

    def stays_quiet(case: dict[str, Any]) -> set[str]:
        return {test["alertname"] for test in case["alert_rule_test"] if not test["exp_alerts"]}

    alerts = {rule["alert"] for rule in RULES}
    assert set().union(*map(fires, CASES)) == set().union(*map(stays_quiet, CASES)) == alerts


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_no_metric_has_a_label_whose_values_grow_with_tables_keys_or_objects() -> None:
    bounded = {
        *("service", "direction", "stage", "point", "operation", "kind", "outcome"),
        *("method", "status", "state", "code", "fatal", "version", "scope", "reason", "part"),
    }
    of_tenants = {"tistream_checkpoint_lag_seconds", "tistream_resolved_ts_lag_seconds"}
    of_consumers = {name for name, _ in (*metrics.OF_CONSUMERS, *metrics.OF_REPLICATIONS)}
    of_tables = {f"tistream_replication_table_{what}_total" for what in ("rows", "bytes")}  # TABLES_SHOWN_MAX of them
    for each in metrics.described():
        named = {"cluster", "tenant"} if each.name in of_tenants | of_consumers | of_tables else set()
        named |= {"changefeed"} if each.name in of_consumers | of_tables else set()
        named |= {"table"} if each.name in of_tables else set()
        assert set(each.labels) <= bounded | named, each.name
