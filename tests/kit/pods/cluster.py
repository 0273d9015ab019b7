"""Runs a chart's manifests on this machine: controllers, services, policies, volumes, Secrets.

    with Cluster(manifests, images, folder) as cluster:
        cluster.external("s3", 4566, port_on_this_machine)     a name for a server outside
        cluster.secret("tistream-catalog", {"catalog-url": ...})
        cluster.apply()
        cluster.pods["tistream-api-0"].container.is_ready

A pod whose Secret is not there yet waits, as it does in Kubernetes. Of the kinds that the chart makes, those that act
on running pods act here; an Ingress, an autoscaler and a disruption budget have nothing to do on one node.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.kit.pods.image import Image
from tests.kit.pods.kubelet import Container
from tests.kit.pods.network import Allowed, Network, ServiceRule
from tests.kit.pods.sandbox import Mount

NAMESPACE = "tistream"
_Everyone = Mapping[str, tuple[Mapping[str, str], str]]  #: pod -> labels, address
_CONTROLLERS = ("Deployment", "StatefulSet")


class NotYet(Exception):
    """A pod refers to a Secret or ConfigMap that is not there."""


@dataclass(slots=True)
class Pod:
    """A pod that runs."""

    name: str
    labels: Mapping[str, str]
    address: str
    container: Container
    controller: str
    grace_s: float
    ports: Mapping[str, int] = field(default_factory=dict)


class Cluster:
    """Use it as a context: at its end every pod is gone."""

    def __init__(self, manifests: Sequence[Mapping[str, Any]], images: Mapping[str, Image], folder: Path) -> None:
        """`images`: reference as in the manifests -> what runs for it."""
        self.manifests, self._images, self._folder = manifests, images, folder
        self.network = Network()
        self.pods: dict[str, Pod] = {}
        self._objects: dict[tuple[str, str], dict[str, str]] = {}
        self._scaled: dict[str, int] = {}
        self._external: dict[str, ServiceRule] = {}
        self._addresses: dict[str, str] = {}
        self._labels: dict[str, Mapping[str, str]] = {}  # of pods that are not of the chart
        self._lock = threading.RLock()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.network)
        return self

    def __exit__(self, *exc: object) -> None:
        for pod in list(self.pods.values()):
            pod.container.stop(0.1)
        self.pods.clear()
        self._stack.close()

    def of_kind(self, *kinds: str) -> Iterator[Mapping[str, Any]]:
        return (each for each in self.manifests if each["kind"] in kinds)

    def secret(self, name: str, data: Mapping[str, str], kind: str = "Secret") -> None:
        """Create a Secret or a ConfigMap."""
        self._objects[kind, name] = dict(data)

    def external(self, name: str, port: int, port_here: int) -> None:
        """A service whose server listens on the node's address."""
        address = self.network.service_address()
        self._addresses[name] = address
        self._external[name] = ServiceRule(address, port, (self.network.node,), port_here)

    def visitor(self, name: str, labels: Mapping[str, str]) -> str:
        """A pod that is not of the chart; its address. The caller runs something in its namespace."""
        self._labels[name] = labels
        address = self.network.add(name)
        self._connect()
        return address

    def apply(self) -> None:
        """Start the pods that are missing and can start."""
        with self._lock:
            for service in self.of_kind("Service"):
                if service["spec"].get("clusterIP") != "None":
                    name = service["metadata"]["name"]
                    self._addresses.setdefault(name, self.network.service_address())
            for controller in self.of_kind(*_CONTROLLERS):
                for name in self._names(controller):
                    if name not in self.pods:
                        try:
                            self._start(name, controller)
                        except NotYet:
                            continue
            self._connect()

    def delete(self, name: str) -> int:
        """`kubectl delete pod`: it ends in its grace period, and its controller starts another; the exit status."""
        with self._lock:
            pod = self.pods.pop(name)
        self._connect()
        status = pod.container.stop(pod.grace_s)
        self.network.remove(name)
        self.apply()
        return status

    def scale(self, controller: str, replicas: int) -> None:
        """`kubectl scale`: start the pods that are missing, end the others in their grace period."""
        with self._lock:
            self._scaled[controller] = replicas
            (manifest,) = (each for each in self.of_kind(*_CONTROLLERS) if each["metadata"]["name"] == controller)
            before = self._names(manifest)
            ended = [pod for pod in self.pods.values() if pod.controller == controller and pod.name not in before]
        for pod in ended:
            self.delete(pod.name)
        self.apply()

    def of(self, component: str) -> list[Pod]:
        """The running pods of a component."""
        with self._lock:
            return [p for p in self.pods.values() if p.labels["app.kubernetes.io/component"] == component]

    def outputs(self) -> str:
        """The end of every pod's log."""
        return "\n".join(f"{name}:\n{pod.container.output()[-1500:]}" for name, pod in sorted(self.pods.items()))

    def _names(self, controller: Mapping[str, Any]) -> list[str]:
        name = controller["metadata"]["name"]
        return [f"{name}-{n}" for n in range(self._scaled.get(name, controller["spec"].get("replicas", 1)))]

    def _start(self, name: str, controller: Mapping[str, Any]) -> None:
        template = controller["spec"]["template"]
        spec, labels = template["spec"], template["metadata"]["labels"]
        (manifest,) = spec["containers"]
        folder = self._folder / name
        env_of = {"metadata.name": name, "metadata.namespace": NAMESPACE, "status.podIP": ""}
        self._environment(manifest, env_of)  # which may not be there yet
        volumes = dict(self._volumes(folder, name, controller))
        address = self.network.add(name)
        image = self._images[manifest["image"]]
        user, own = spec["securityContext"], manifest["securityContext"]
        env = {**image.env, **self._environment(manifest, {**env_of, "status.podIP": address})}
        env = {"HOME": "/", **env, "HOSTNAME": name}
        command = [*manifest.get("command", image.entrypoint), *manifest.get("args", image.command)]
        sandbox = image.sandbox(
            [re.sub(r"\$\((\w+)\)", lambda match: env[match[1]], word) for word in command],
            env=env,
            network=self.network.namespace(name),
            host_name=name,
            user=user["runAsUser"],
            group=user["runAsGroup"],
            rights=own["allowPrivilegeEscalation"] or own["capabilities"]["drop"] != ["ALL"],
            writable_root=not own["readOnlyRootFilesystem"],
            mounts=[*image.sandbox([]).mounts, *self._mounts(manifest, volumes), *self._names_files(folder)],
        )
        container = Container(sandbox, manifest, address, folder, self._connect)
        ports = {port["name"]: port["containerPort"] for port in manifest.get("ports", ())}
        grace_s = spec.get("terminationGracePeriodSeconds", 30)
        self.pods[name] = Pod(name, labels, address, container, controller["metadata"]["name"], grace_s, ports)
        self._write_names(name)
        container.start()

    def _environment(self, manifest: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, str]:
        environment: dict[str, str] = {}
        for source in manifest.get("envFrom", ()):
            environment |= self._object("Secret", source["secretRef"]["name"])
        for each in manifest.get("env", ()):
            origin = each.get("valueFrom", {})
            if "secretKeyRef" in origin:
                value = self._object("Secret", origin["secretKeyRef"]["name"])[origin["secretKeyRef"]["key"]]
            elif "configMapKeyRef" in origin:
                value = self._object("ConfigMap", origin["configMapKeyRef"]["name"])[origin["configMapKeyRef"]["key"]]
            elif "fieldRef" in origin:
                value = fields[origin["fieldRef"]["fieldPath"]]
            else:
                value = re.sub(r"\$\((\w+)\)", lambda f: environment.get(f[1], f[0]), each.get("value", ""))
            environment[each["name"]] = value
        return environment

    def _object(self, kind: str, name: str) -> Mapping[str, str]:
        try:
            return self._objects[kind, name]
        except KeyError as e:
            raise NotYet(f"{kind} {name}") from e

    def _volumes(self, folder: Path, name: str, controller: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
        """(name, folder here); an emptyDir is empty for every pod, a claim stays."""
        spec = controller["spec"]["template"]["spec"]
        group = spec["securityContext"]["fsGroup"]
        sources = {volume["name"]: volume for volume in spec.get("volumes", ())}
        sources |= {
            claim["metadata"]["name"]: {"claim": {}} for claim in controller["spec"].get("volumeClaimTemplates", ())
        }
        for volume, source in sources.items():
            path = folder / "volumes" / volume
            if "claim" not in source:
                shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True, exist_ok=True)
            os.chown(path, 0, group)
            path.chmod(0o2777 if "emptyDir" in source else 0o2775)
            for kind, key in (("Secret", "secret"), ("ConfigMap", "configMap")):
                if key in source:
                    data = self._object(kind, source[key].get("secretName") or source[key]["name"])
                    for file, text in data.items():
                        (path / file).write_text(text, "utf-8")
                        os.chown(path / file, 0, group)
                        (path / file).chmod(source[key].get("defaultMode", 0o644) | 0o040)
            yield volume, path

    def _mounts(self, manifest: Mapping[str, Any], volumes: Mapping[str, Path]) -> Iterator[Mount]:
        for mount in manifest.get("volumeMounts", ()):
            writable = not mount.get("readOnly", False)
            yield Mount(source=str(volumes[mount["name"]]), target=mount["mountPath"], writable=writable)

    def _names_files(self, folder: Path) -> Iterator[Mount]:
        for file in ("hosts", "resolv.conf"):
            (folder / file).touch()
            yield Mount(source=str(folder / file), target=f"/etc/{file}")

    def _write_names(self, name: str) -> None:
        """The cluster's DNS, for one pod: names of services. There is no server to ask for others."""
        pod = self.pods[name]
        lines = ["127.0.0.1 localhost", f"{pod.address} {name}"]
        for service, address in self._addresses.items():
            lines.append(f"{address} {service} {service}.{NAMESPACE} {service}.{NAMESPACE}.svc")
        folder = self._folder / name
        (folder / "hosts").write_text("\n".join(lines) + "\n")
        (folder / "resolv.conf").write_text("nameserver 127.0.0.1\noptions attempts:1 timeout:1\n")

    def _connect(self) -> None:
        """Bring services and policies to what runs and is ready."""
        with self._lock:
            everyone = {name: (pod.labels, pod.address) for name, pod in self.pods.items()}
            everyone |= {n: (labels, self.network.address(n)) for n, labels in self._labels.items()}
            self.network.apply(self._services(), {name: self._allowed(name, everyone) for name in everyone})

    def _services(self) -> Iterator[ServiceRule]:
        yield from self._external.values()
        for service in self.of_kind("Service"):
            if (address := self._addresses.get(service["metadata"]["name"])) is None:
                continue
            chosen = [p for p in self.pods.values() if service["spec"]["selector"].items() <= p.labels.items()]
            ready = tuple(pod.address for pod in chosen if pod.container.is_ready)
            for port in service["spec"]["ports"]:
                target = chosen[0].ports.get(port["targetPort"], port["targetPort"]) if chosen else 0
                yield ServiceRule(address, port["port"], ready, target)

    def _allowed(self, name: str, everyone: _Everyone) -> list[Allowed] | None:
        """What the policies that choose this pod allow; None where none does."""
        allowed: list[Allowed] | None = None
        for policy in self.of_kind("NetworkPolicy"):
            if not _chosen(policy["spec"]["podSelector"], everyone[name][0]):
                continue
            allowed = allowed or []
            for rule in policy["spec"]["ingress"]:
                sources = None
                if "from" in rule:
                    sources = tuple(self._sources(rule["from"], everyone))
                allowed += [Allowed(port["port"], sources) for port in rule["ports"]]
        return allowed

    def _sources(self, peers: Sequence[Mapping[str, Any]], everyone: _Everyone) -> Iterator[str]:
        for name, (labels, address) in everyone.items():
            if any(_chosen(peer["podSelector"], labels) and self._same(peer, name) for peer in peers):
                yield address

    def _same(self, peer: Mapping[str, Any], other: str) -> bool:
        """Whether a peer's namespaces include that of another pod; those that are not of the chart are elsewhere."""
        return "namespaceSelector" in peer or other in self.pods


def _chosen(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    if unknown := set(selector) - {"matchLabels"}:
        raise ValueError(f"a selector that is not known here: {unknown}")
    return bool(selector.get("matchLabels", {}).items() <= labels.items())
