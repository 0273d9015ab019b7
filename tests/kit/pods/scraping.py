"""A real Prometheus in a pod of its own, configured as its operator would from a PodMonitor and a PrometheusRule."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import yaml

from tests.kit.pods.cluster import NAMESPACE, Cluster
from tests.kit.waiting import eventually

_PORT = 9090
_LABELS = {"app.kubernetes.io/name": "prometheus"}


class Prometheus:
    """Use `prometheus`. Rules hold for `for_s` at most: durations are tested with promtool, on simulated time."""

    def __init__(self, cluster: Cluster, folder: Path, for_s: float) -> None:
        self._cluster, self._folder, self._for_s = cluster, folder, for_s
        self.address = f"http://{cluster.visitor('prometheus', _LABELS)}:{_PORT}"

    def configure(self) -> None:
        """Write configuration, rules and the pods that there are now."""
        (monitor,) = self._cluster.of_kind("PodMonitor")
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        (rules,) = self._cluster.of_kind("PrometheusRule")
        groups = json.loads(json.dumps(rules["spec"]["groups"]))
        for rule in (rule for group in groups for rule in group["rules"]):
            if "for" in rule:
                rule["for"] = f"{self._for_s:g}s"
        self._write("rules.yml", {"groups": groups})
        scraping = {
            "job_name": monitor["metadata"]["name"],
            "metrics_path": endpoint["path"],
            "file_sd_configs": [{"files": ["pods.json"]}],
        }
        timing = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        self._write("prometheus.yml", {"global": timing, "rule_files": ["rules.yml"], "scrape_configs": [scraping]})
        self.discover()

    def discover(self) -> None:
        """The pods that the PodMonitor chooses, as targets."""
        (monitor,) = self._cluster.of_kind("PodMonitor")
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        targets = []
        for pod in list(self._cluster.pods.values()):
            if monitor["spec"]["selector"]["matchLabels"].items() <= pod.labels.items():
                labels = {"job": pod.labels[monitor["spec"]["jobLabel"]], "pod": pod.name, "namespace": NAMESPACE}
                targets.append({"targets": [f"{pod.address}:{pod.ports[endpoint['port']]}"], "labels": labels})
        new_file = self._folder / "pods.json.new"
        new_file.write_text(json.dumps(targets), "utf-8")
        new_file.replace(self._folder / "pods.json")

    def query(self, expression: str) -> list[tuple[Mapping[str, str], float]]:
        """Labels and value of each series now."""
        answer = httpx2.get(f"{self.address}/api/v1/query", params={"query": expression}, timeout=10).json()
        assert answer["status"] == "success", answer
        return [(each["metric"], float(each["value"][1])) for each in answer["data"]["result"]]

    def firing(self) -> set[tuple[str, str]]:
        """(alert, pod) of what fires now."""
        answer = httpx2.get(f"{self.address}/api/v1/alerts", timeout=10).json()
        alerts = [each for each in answer["data"]["alerts"] if each["state"] == "firing"]
        return {(each["labels"]["alertname"], each["labels"].get("pod", "")) for each in alerts}

    def _write(self, name: str, content: Any) -> None:
        (self._folder / name).write_text(yaml.safe_dump(content), "utf-8")

    def _answers(self) -> bool:
        try:
            return bool(httpx2.get(f"{self.address}/-/ready", timeout=2).is_success)
        except httpx2.TransportError:
            return False


@contextmanager
def prometheus(cluster: Cluster, folder: Path, *, for_s: float) -> Iterator[Prometheus]:
    """A running server that looks once a second."""
    program = shutil.which("prometheus")
    assert program, "prometheus is missing: tools/debian.sh installs it"
    folder.mkdir()
    server = Prometheus(cluster, folder, for_s)
    server.configure()
    with (folder / "log").open("wb") as out:
        command = [program, "--config.file=prometheus.yml", f"--storage.tsdb.path={folder / 'data'}"]
        command += [f"--web.listen-address={server.address.removeprefix('http://')}"]
        where = ["ip", "netns", "exec", cluster.network.namespace("prometheus")]
        process = subprocess.Popen([*where, *command], cwd=folder, stdout=out, stderr=out)
        try:
            eventually(server._answers, lambda: (folder / "log").read_text("utf-8")[-3000:])
            yield server
        finally:
            process.terminate()
            process.wait(30)
