"""The chart as helm renders it (infra/helm/rendered): what it starts exists, and what belongs together matches."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import hcl2
import pytest
import yaml
from typer.main import get_command

from tistream import __version__, config
from tistream.cli.main import command_line
from tistream.cli.ports import check_listening
from tistream.http.mutual_tls import OPEN_PATHS
from tistream.runtime import credentials

ROOT = Path(__file__).parents[3]
INFRA = ROOT / "infra"
TOOL = runpy.run_path(str(ROOT / "tools" / "chart.py"))
CASES: Mapping[str, Path | None] = TOOL["cases"]()
WORKLOADS = ("Deployment", "StatefulSet")
ROLES = {
    "api": "serve", "meta": "meta", "dispatcher": "dispatch", "sorter": "sort", "maintain": "maintain",
    "replicate": "replicate",
}  # fmt: skip
SETTINGS = {config.ENV_PREFIX + key.replace(".", "_").upper() for key in config.known_keys()}
OF_CLIENTS = {"TISTREAM_URL", "TISTREAM_KEY", *credentials.FILES.values()}

pytestmark = pytest.mark.parametrize("case", CASES)


@cache
def manifests(case: str) -> list[dict[str, Any]]:
    text = (TOOL["RENDERED"] / f"{case}.yaml").read_text("utf-8")
    return [each for each in yaml.safe_load_all(text) if each]


def of_kind(case: str, *kinds: str) -> list[dict[str, Any]]:
    return [each for each in manifests(case) if each["kind"] in kinds]


def pods(case: str) -> Iterator[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """(component, labels, pod, its one container)."""
    for workload in of_kind(case, *WORKLOADS):
        template = workload["spec"]["template"]
        (container,) = template["spec"]["containers"]
        labels = template["metadata"]["labels"]
        yield labels["app.kubernetes.io/component"], labels, template["spec"], container


def selected(case: str, labels: Mapping[str, str]) -> set[str]:
    """The components of the pods that a selector chooses."""
    assert "app.kubernetes.io/name" in labels, "another chart's pod may have the same instance"
    return {component for component, has, _, _ in pods(case) if labels.items() <= has.items()}


def test_it_is_what_helm_makes_of_the_chart(case: str) -> None:
    text = (TOOL["RENDERED"] / f"{case}.yaml").read_text("utf-8")
    assert text.startswith(TOOL["stamp"](CASES[case])), "the chart changed: run `python tools/chart.py`"
    if program := TOOL["found_helm"]():
        assert text == TOOL["render"](program, CASES[case])


def test_objects_and_images_are_of_this_version(case: str) -> None:
    labels = [each["metadata"]["labels"] for each in manifests(case)]
    assert {of_one["app.kubernetes.io/version"] for of_one in labels} == {__version__}
    assert {container["image"].rpartition(":")[2] for *_, container in pods(case)} == {__version__}


def test_every_role_is_started_with_flags_and_settings_that_exist(case: str) -> None:
    commands = getattr(get_command(command_line()), "commands", {})
    started = {}
    for component, _, _, container in pods(case):
        command, *args = container["args"]
        started[component] = command
        flags = {flag for parameter in commands[command].params for flag in parameter.opts + parameter.secondary_opts}
        assert {arg for arg in args if arg.startswith("--")} <= flags, component
        variables = [variable["name"] for variable in container["env"]]
        assert len(variables) == len(set(variables)), f"{component}: the last of two would win"
        assert {name for name in variables if name.startswith("TISTREAM_")} <= SETTINGS | OF_CLIENTS, component
    more = {"pusher": "push", "spark": "spark"}
    assert started == (ROLES if case == "minimal" else ROLES | more)


def test_settings_have_values_that_are_accepted(case: str) -> None:
    for component, _, _, container in pods(case):
        given = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        if component != "pusher":
            settings = config.load(environ={k: v for k, v in given.items() if k in SETTINGS})
            assert (settings.metrics.host, settings.metrics.port) == ("0.0.0.0", 9464)
            assert settings.object_store.url.startswith("s3://")
            assert settings.meta.data_tasks == {"minimal": 8, "production": 16, "trial": 4}[case]
            assert bool(settings.push.role_arn) == (component == "api" and case != "minimal")
            assert (settings.server.auth == "keys") == (component == "api")


def test_selectors_choose_pods_of_this_release_and_ports_that_they_have(case: str) -> None:
    for service in of_kind(case, "Service"):
        chosen = selected(case, service["spec"]["selector"])
        assert chosen == {service["metadata"]["labels"]["app.kubernetes.io/component"]}
        for component, _, _, container in pods(case):
            if component in chosen:
                named = {port["name"] for port in container["ports"]}
                assert {port["targetPort"] for port in service["spec"]["ports"]} <= named
    for workload in of_kind(case, *WORKLOADS):
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()
    names = [tuple(w["spec"]["selector"]["matchLabels"].items()) for w in of_kind(case, *WORKLOADS)]
    assert len(names) == len(set(names))
    budgets = of_kind(case, "PodDisruptionBudget")
    protected = [selected(case, budget["spec"]["selector"]["matchLabels"]) for budget in budgets]
    assert all(len(each) == 1 for each in protected)
    assert sorted(map(min, protected)) == sorted({component for component, *_ in pods(case)})


def test_a_pod_may_write_to_its_volumes_alone_and_has_no_rights(case: str) -> None:
    for component, _, pod, container in pods(case):
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()
        assert "memory" in container["resources"]["limits"], component
        assert bool(pod.get("imagePullSecrets")) == (case == "production")
        assert "podAntiAffinity" in pod["affinity"]


def test_what_a_container_mounts_is_there_and_hides_no_kernels(case: str) -> None:
    (kernels,) = set(re.findall(r"NUMBA_CACHE_DIR=(\S+)", (INFRA / "Dockerfile").read_text("utf-8")))
    assert kernels.startswith("/opt/tistream/")  # what the last stage copies
    for workload in of_kind(case, *WORKLOADS):
        spec = workload["spec"]["template"]["spec"]
        claimed = [claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", ())]
        declared = [volume["name"] for volume in spec["volumes"]] + claimed
        (container,) = spec["containers"]
        mounts = container["volumeMounts"]
        assert sorted(declared) == sorted(mount["name"] for mount in mounts)
        assert not [mount for mount in mounts if kernels.startswith(mount["mountPath"])]
        named = [arg for arg in spec["containers"][0]["args"] if arg.startswith("/")]
        for path in named + [
            each["value"] for each in spec["containers"][0]["env"] if each.get("value", "")[:1] == "/"
        ]:
            assert any(path.startswith(mount["mountPath"]) for mount in mounts), path


def test_only_sorters_and_notifiers_reach_dispatchers_and_only_prometheus_the_metrics(case: str) -> None:
    allowed: dict[tuple[str, int], list[Any]] = {}
    isolated: set[str] = set()
    for policy in of_kind(case, "NetworkPolicy"):
        chosen = selected(case, policy["spec"]["podSelector"]["matchLabels"])
        isolated |= chosen
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        for rule in policy["spec"]["ingress"]:
            for port in rule["ports"]:
                for component in chosen:
                    allowed.setdefault((component, port["port"]), []).extend(rule.get("from", ["anywhere"]))
    everyone = {component for component, *_ in pods(case)}
    assert isolated == everyone
    assert set(allowed) == {("api", 8711), ("dispatcher", 8712)} | {(component, 9464) for component in everyone}
    assert allowed["api", 8711] == ["anywhere"]
    callers = {"sorter", "meta"} if case == "production" else {"sorter"}  # which passes notifications on
    assert all(set(each) == {"podSelector"} for each in allowed["dispatcher", 8712])
    chosen_callers = [selected(case, each["podSelector"]["matchLabels"]) for each in allowed["dispatcher", 8712]]
    assert set().union(*chosen_callers) == callers
    prometheus = {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}
    for component in everyone:
        assert allowed[component, 9464] == [{"namespaceSelector": {}, "podSelector": prometheus}]


def test_prometheus_looks_at_every_pod_under_the_job_that_the_rules_name(case: str) -> None:
    (monitor,) = of_kind(case, "PodMonitor")
    everyone = {component for component, *_ in pods(case)}
    assert selected(case, monitor["spec"]["selector"]["matchLabels"]) == everyone
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    for _, labels, _, container in pods(case):
        assert [p["containerPort"] for p in container["ports"] if p["name"] == endpoint["port"]] == [9464]
        assert labels[monitor["spec"]["jobLabel"]] == "tistream"
    (rules,) = of_kind(case, "PrometheusRule")
    assert rules["spec"] == yaml.safe_load((INFRA / "prometheus" / "alerts.yml").read_text("utf-8"))


def test_terraforms_roles_trust_the_charts_accounts(case: str) -> None:
    tree = {path.name: hcl2.loads(path.read_text("utf-8")) for path in (INFRA / "terraform").glob("*.tf")}
    defaults = {
        name.strip('"'): str(body.get("default", "")).strip('"')
        for variable in tree["variables.tf"]["variable"]
        for name, body in variable.items()
    }
    text = (INFRA / "terraform" / "iam.tf").read_text("utf-8")
    accounts = dict(re.findall(r"^    (service|api) +=(.+)$", text, re.MULTILINE))
    named = {
        role: re.sub(r"\$\{var\.(\w+)\}|var\.(\w+)", lambda match: defaults[match[1] or match[2]], account).strip(' "')
        for role, account in accounts.items()
    }
    assert 'values   = ["system:serviceaccount:${var.namespace}:${each.value}"]' in text
    deployment = (ROOT / "docs" / "deployment.md").read_text("utf-8")
    assert f"--namespace {defaults['namespace']} " in deployment
    created = {account["metadata"]["name"] for account in of_kind(case, "ServiceAccount")}
    assert created == set(named.values())
    for component, _, pod, _ in pods(case):
        expected = named["api" if component == "api" else "service"]
        assert pod["serviceAccountName"] == ("default" if component == "pusher" else expected)
    if case == "production":
        roles = {
            account["metadata"]["name"]: account["metadata"]["annotations"]["eks.amazonaws.com/role-arn"].split("/")[1]
            for account in of_kind(case, "ServiceAccount")
        }
        assert roles == {account: f"{defaults['name']}-{role}" for role, account in named.items()}


def test_the_number_of_api_servers_has_one_owner(case: str) -> None:
    (api,) = [each for each in of_kind(case, "Deployment") if each["metadata"]["name"] == "tistream-api"]
    scalers = of_kind(case, "HorizontalPodAutoscaler")
    assert ("replicas" in api["spec"]) != bool(scalers)
    for scaler in scalers:
        assert scaler["spec"]["scaleTargetRef"]["name"] == "tistream-api"
    for ingress in of_kind(case, "Ingress"):
        (path,) = ingress["spec"]["rules"][0]["http"]["paths"]
        assert path["backend"]["service"] == {"name": "tistream-api", "port": {"name": "http"}}


def test_numbers_are_written_out(case: str) -> None:
    words = [word for _, _, _, container in pods(case) for word in container["args"]]
    words += [each["value"] for _, _, _, container in pods(case) for each in container["env"] if "value" in each]
    assert not [word for word in words if re.fullmatch(r"[\d.]+e\+\d+", word)]


def test_pushers_have_what_their_entries_say(case: str) -> None:
    args = {labels["pusher"]: container["args"] for _, labels, _, container in pods(case) if "pusher" in labels}
    if case != "production":
        assert list(args) == (["orders"] if case == "trial" else [])
        return
    orders, billing = args["orders"], args["billing"]
    assert "--seed-rows" in orders
    assert orders[orders.index("--ca-path") :][:6:2] == ["--ca-path", "--cert-path", "--key-path"]
    assert orders[orders.index("--spill-mib") + 1] == "4096"
    assert [billing[i + 1] for i, word in enumerate(billing) if word == "--table"] == [
        "billing.invoices",
        "billing.payments",
    ]
    assert billing[billing.index("--start-ts") + 1] == "462051891486294017"
    assert "--seed-rows" not in billing
    assert "--ca-path" not in billing


def test_each_side_of_the_feed_expects_the_name_in_the_certificate_of_the_other(case: str) -> None:
    names = {}
    for each in of_kind(case, "Certificate"):
        if each["spec"]["secretName"].endswith("-tls"):
            continue  # of the HTTP ports
        (names[each["spec"]["secretName"]],) = each["spec"]["dnsNames"]
        assert {"server auth", "client auth"} <= set(each["spec"]["usages"])
    expected = {}
    for component, _, pod, container in pods(case):
        given = {each["name"]: each.get("value") for each in container["env"]}
        if peer := given.get("TISTREAM_FEED_TLS_PEER_NAME"):
            (secret,) = (each["secret"]["secretName"] for each in pod["volumes"] if each["name"] == "feed")
            expected[component] = (names[secret], peer)
    if case == "production":
        assert expected["dispatcher"] == expected["sorter"][::-1]
    assert (case == "production") == bool(expected)


def test_every_port_has_a_certificate_or_is_said_to_have_none(case: str) -> None:
    secrets = {each["spec"]["secretName"] for each in of_kind(case, "Certificate")}
    (monitor,) = of_kind(case, "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    for component, _, pod, container in pods(case):
        given = {each["name"]: each.get("value", "127.0.0.9") for each in container["env"]}
        settings = config.load(environ={name: value for name, value in given.items() if name in SETTINGS})
        has_tls = bool(settings.tls.cert)
        assert has_tls == (case == "production"), component
        for setting in ("server.host", "metrics.host"):
            check_listening(setting, "0.0.0.0", has_tls=has_tls, insecure=settings.insecure.listen)
        if component == "dispatcher":
            flight = bool(settings.feed.tls_certificate)
            check_listening("dispatcher.host", "10.1.1.1", has_tls=flight, insecure=settings.insecure.listen)
        probes = [container[f"{each}Probe"]["httpGet"] for each in ("startup", "liveness", "readiness")]
        assert [probe.get("scheme", "HTTP") for probe in probes] == ["HTTPS" if has_tls else "HTTP"] * 3
        assert {probe["path"] for probe in probes} == set(OPEN_PATHS), "which need no client certificate"
        if component == "pusher":
            assert given["TISTREAM_URL"].startswith("https://" if has_tls else "http://")
            assert ("TISTREAM_CA" in given) == has_tls
        if has_tls:
            (mounted,) = (each["secret"]["secretName"] for each in pod["volumes"] if each["name"] == "tls")
            assert mounted in secrets
            assert mounted == endpoint["tlsConfig"]["ca"]["secret"]["name"]
    assert endpoint.get("scheme", "http") == ("https" if case == "production" else "http")
    if case == "production":
        (names,) = (
            each["spec"]["dnsNames"]
            for each in of_kind(case, "Certificate")
            if each["metadata"]["name"] == "tistream-tls"
        )
        assert {"tistream-api", endpoint["tlsConfig"]["serverName"]} <= set(names)
