"""The pods' network: a namespace for each on one bridge, services and policies as nftables rules.

    with Network() as network:
        network.add("tistream-api-0")            its address
        network.apply(services, policies)        whenever pods come, go, or become ready

The node, which is this machine, is the first address of the bridge. As with most plugins of Kubernetes it reaches every
pod: the kubelet's probes come from there. Packets are not forwarded: pods see the node and each other.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class ServiceRule:
    """Connections to (address, port) lead to one of these pods' addresses, at another port."""

    address: str
    port: int
    pods: tuple[str, ...]
    pod_port: int


@dataclass(frozen=True, slots=True)
class Allowed:
    """Who may connect to a port of a pod; no sources = anyone."""

    port: int
    sources: tuple[str, ...] | None


class Network:
    """Made as a context; needs root."""

    def __init__(self) -> None:
        self._id = f"{os.getpid() % 100_000:05d}"
        self._bridge = f"tsb{self._id}"
        addresses = subprocess.run(["ip", "-4", "-brief", "address"], capture_output=True, text=True, check=True).stdout
        free = next(n for n in range(256) if f" 10.231.{n}." not in addresses)
        self._pods, self._services = f"10.231.{free}", f"10.232.{free}"
        self.node = f"{self._pods}.1"
        self._namespaces: dict[str, tuple[str, str]] = {}  # pod -> namespace, address
        self._given = self._given_services = 0

    def __enter__(self) -> Self:
        bridge = self._bridge
        _ip(f"link add {bridge} type bridge", f"address add {self.node}/24 dev {bridge}", f"link set {bridge} up")
        return self

    def __exit__(self, *exc: object) -> None:
        for pod in list(self._namespaces):
            self.remove(pod)
        _ip(f"link delete {self._bridge}")

    def add(self, pod: str) -> str:
        """A namespace for a pod; its address, which no other pod had."""
        self._given += 1
        namespace, address = f"ts{self._id}-{self._given}", f"{self._pods}.{self._given + 9}"
        outside = f"ts{self._id}v{self._given}"
        _ip(
            f"netns add {namespace}",
            f"link add {outside} type veth peer name eth0 netns {namespace}",
            f"link set {outside} master {self._bridge} up",
        )
        inside = (
            "link set lo up",
            f"address add {address}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {self.node}",
        )
        _ip(*inside, namespace=namespace)
        self._namespaces[pod] = (namespace, address)
        return address

    def remove(self, pod: str) -> None:
        """A pod is gone, and its address with it."""
        _ip(f"netns delete {self._namespaces.pop(pod)[0]}")

    def namespace(self, pod: str) -> str:
        """What `ip netns` calls it."""
        return self._namespaces[pod][0]

    def address(self, pod: str) -> str:
        """A pod's."""
        return self._namespaces[pod][1]

    def service_address(self) -> str:
        """An address of a service."""
        self._given_services += 1
        return f"{self._services}.{self._given_services}"

    def apply(self, services: Iterable[ServiceRule], policies: Mapping[str, Sequence[Allowed] | None]) -> None:
        """`policies`: pod -> who may connect to it; None: no policy isolates it."""
        services = list(services)
        for pod, (namespace, _) in self._namespaces.items():
            rules = "\n".join([_OUTGOING, *map(_service, services), "}\n}", *self._incoming(policies.get(pod))])
            command = ["ip", "netns", "exec", namespace, "nft", "-f", "-"]
            subprocess.run(command, input=f"flush ruleset\n{rules}", text=True, check=True)

    def _incoming(self, allowed: Sequence[Allowed] | None) -> list[str]:
        if allowed is None:
            return []
        rules = ["table ip pod {\nchain incoming {", "type filter hook input priority filter; policy drop;"]
        rules += ["iif lo accept", "ct state established,related accept", f"ip saddr {self.node} accept"]
        for each in allowed:
            if each.sources is None:
                rules.append(f"tcp dport {each.port} accept")
            elif each.sources:
                rules.append(f"ip saddr {{ {', '.join(each.sources)} }} tcp dport {each.port} accept")
        return [*rules, "}\n}"]


_OUTGOING = """
table ip services {
chain outgoing {
type nat hook output priority -100;
"""


def _service(rule: ServiceRule) -> str:
    if not rule.pods:
        return ""  # nothing answers there, and no route leads to it
    chosen = ", ".join(f"{n} : {address}" for n, address in enumerate(rule.pods))
    pick = f"numgen random mod {len(rule.pods)} map {{ {chosen} }}"
    return f"ip daddr {rule.address} tcp dport {rule.port} dnat to {pick} : {rule.pod_port}"


def _ip(*lines: str, namespace: str = "") -> None:
    where = ["-netns", namespace] if namespace else []
    for line in lines:
        subprocess.run(["ip", *where, *line.split()], check=True, capture_output=True)
