"""PD channel: calls to PD's leader, following leader changes.

    call(method, request) -> answer

- When the leader does not answer or returns an error, the members are asked again at all known endpoints, and the call
  is repeated with growing pauses until `patience_s` has passed;
- the kind of error does not matter: a server that loses its lead, starts, or waits for etcd has many, and versions
  differ. Two are final: another cluster's id, and a method that the server lacks;
- all calls are safe to repeat;
- the cluster id comes from the first answer and never changes. An endpoint of another cluster is skipped; if no other
  one answers, that is a configuration error.

Errors: StoreUnavailable when no PD answered within `patience_s`; InvalidInput for another cluster; TargetRefused when a
policy refuses all members that it knows, or the leader.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

import grpc
import structlog

from tistream.clock import Clock
from tistream.errors import CorruptObject, InvalidInput, StoreUnavailable
from tistream.outbound.checked_names import CheckedNames
from tistream.outbound.rules import TargetRefused
from tistream.runtime.service import Backoff
from tistream.tikv.channels import Channels, Tls
from tistream.tikv.core.pd_messages import PdRefused, read_members

T = TypeVar("T")
log = structlog.get_logger(__name__)

_CALL_S = 3.0


def address_of(url: str) -> str:
    """host:port of an advertised URL, or of an address without a scheme."""
    return urlsplit(url).netloc if "://" in url else url


class PdChannel:
    """Calls to the leader of PD. Thread-safe; `close` it."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        clock: Clock,
        tls: Tls | None = None,
        patience_s: float = 15.0,
        rand: random.Random | None = None,
        connection: int | None = None,
        names: CheckedNames | None = None,
    ) -> None:
        """`connection`, `names`: see `Channels`."""
        if not endpoints:
            raise InvalidInput("no PD endpoint was given")
        self._endpoints = [address_of(e) for e in endpoints]
        self._clock, self._patience_s, self._rand = clock, patience_s, rand or random.Random()
        self._lock = threading.Lock()
        self._channels = Channels(tls, connection, names)
        self._leader = ""
        self._cluster_id = 0
        self._closed = threading.Event()
        self._names = names

    @property
    def cluster_id(self) -> int:
        """The id of the cluster behind the endpoints; asks PD the first time."""
        if not self._cluster_id:
            self.at_leader("GetMembers", lambda _: None)
        return self._cluster_id

    def call(self, method: str, request: Callable[[int], bytes]) -> bytes:
        """The answer to `request(cluster_id)`. Errors as above, and grpc.RpcError UNIMPLEMENTED."""

        def action(channel: grpc.Channel) -> bytes:
            answer: bytes = channel.unary_unary(method)(request(self._cluster_id), timeout=_CALL_S)
            return answer

        return self.at_leader(method, action)

    def at_leader(self, method: str, action: Callable[[grpc.Channel], T]) -> T:
        """The result of `action` with the leader's channel, retried while the leader is away or changes."""
        backoff = Backoff(first_s=0.05, max_s=1.0, rand=self._rand)
        until = self._clock.monotonic() + self._patience_s
        cause = ""
        while not self._closed.is_set():
            leader = ""
            try:
                leader = self._find_leader()
                return action(self._channel(leader))
            except grpc.RpcError as e:
                cause = self._judge(method, e)
            except (PdRefused, CorruptObject) as e:
                cause = str(e)
            self._forget(leader)
            if self._clock.monotonic() >= until:
                break
            self._clock.wait(self._closed, backoff.next_s())
        raise StoreUnavailable("PD does not answer", endpoints=",".join(self._endpoints), method=method, cause=cause)

    def forget_leader(self) -> None:
        """Look the leader up again before the next call, because its answer was invalid."""
        with self._lock:
            self._leader = ""

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            self._channels.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _find_leader(self) -> str:
        """The leader's address, looked up at each endpoint in turn if unknown. PdRefused when none knows it,
        InvalidInput when all that answer are of another cluster."""
        with self._lock:
            if self._leader:
                return self._leader
            endpoints = list(self._endpoints)
        fault = "no endpoint knows a leader"
        foreign: InvalidInput | None = None
        refused: TargetRefused | None = None
        ours = False  # a server of this cluster has answered
        for endpoint in endpoints:
            try:
                answer = self._channel(endpoint).unary_unary("/pdpb.PD/GetMembers")(b"", timeout=_CALL_S)
                members = read_members(answer)
            except TargetRefused as e:
                refused = e
                continue
            except StoreUnavailable as e:
                fault = str(e)
                continue
            except grpc.RpcError as e:
                fault = f"{e.code().name}: {e.details() or ''}"
                continue
            except (PdRefused, CorruptObject) as e:
                log.info("PD server without members", endpoint=endpoint, cause=str(e))
                fault = str(e)
                continue
            with self._lock:
                try:
                    self._learn(members.cluster_id, endpoint)
                except InvalidInput as e:
                    foreign = e
                    continue
                ours = ours or members.cluster_id > 0
                self._endpoints += [a for a in map(address_of, members.urls) if a not in self._endpoints]
                if members.leader_urls and members.cluster_id:
                    self._leader = address_of(members.leader_urls[0])
                    return self._leader
        if foreign is not None and not ours:
            raise foreign
        if refused is not None:
            raise refused
        raise PdRefused(fault)

    def _learn(self, cluster_id: int, endpoint: str) -> None:
        """Note the cluster id (0 = not in the answer). InvalidInput when it differs."""
        if not cluster_id:
            return
        if self._cluster_id and cluster_id != self._cluster_id:
            raise InvalidInput(
                "a PD endpoint belongs to another cluster",
                endpoint=endpoint,
                cluster_id=cluster_id,
                expected=self._cluster_id,
            )
        self._cluster_id = cluster_id

    def _forget(self, leader: str) -> None:
        with self._lock:
            if self._leader == leader:
                self._leader = ""

    def _channel(self, address: str) -> grpc.Channel:
        if self._names is not None:
            self._names.at(address)  # it may wait for DNS: not under the lock
        with self._lock:
            if self._closed.is_set():
                raise StoreUnavailable("the PD client was closed")
            return self._channels.at(address)

    def _judge(self, method: str, error: grpc.RpcError) -> str:
        """The reason to retry; raises final errors."""
        code, details = error.code(), error.details() or ""
        if "mismatch cluster id" in details:
            raise InvalidInput("PD belongs to another cluster", method=method, cause=details) from error
        if code is grpc.StatusCode.UNIMPLEMENTED:
            raise error
        return f"{code.name}: {details}"
