"""Names are resolved, checked and connected to as one step: what was checked is what is used.

CheckedNames(policy, "tikv", clock).at("pd-0.example.com:2379") -> ("192.0.2.7:2379",)
"""

from __future__ import annotations

import threading

from tistream.clock import Clock
from tistream.errors import InvalidInput, StoreUnavailable
from tistream.outbound.policy import Policy
from tistream.outbound.rules import Target, TargetRefused

_FRESH_S = 5.0
_NAMES_MAX = 10_000


class CheckedNames:
    """Addresses of the servers of one policy. Thread-safe."""

    def __init__(self, policy: Policy, scheme: str, clock: Clock) -> None:
        self._policy, self._scheme, self._clock = policy, scheme, clock
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, tuple[str, ...]]] = {}

    def at(self, address: str) -> tuple[str, ...]:
        """ADDRESS:PORT of a server, all of one family. Asked again after some seconds; while the name cannot be
        resolved the addresses before are used. TargetRefused; StoreUnavailable when there are none."""
        now_s = self._clock.monotonic()
        with self._lock:
            known = self._known.get(address)
        if known is not None and now_s - known[0] < _FRESH_S:
            return known[1]
        try:
            target = Target.server(self._scheme, address)
        except InvalidInput as error:  # such as a socket file
            raise TargetRefused(target=f"{self._scheme}://{address}") from error
        try:
            addresses = self._policy.addresses(target)
        except OSError as error:
            if known is None:
                raise StoreUnavailable("the name of a server cannot be resolved", server=address) from error
            return known[1]
        shown = tuple(
            f"{each}:{target.port}" if each.version == 4 else f"[{each}]:{target.port}"
            for each in addresses
            if each.version == addresses[0].version
        )
        with self._lock:
            if len(self._known) >= _NAMES_MAX:
                self._known.clear()
            self._known[address] = now_s, shown
        return shown
