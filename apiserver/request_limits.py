"""Limit middleware: rates of requests and bytes per caller and per tenant, and the size of a request body.

    server.caller_requests_per_s   server.caller_mib_per_s   server.tenant_requests_per_s   server.tenant_mib_per_s

A caller is a principal or an address; the tenant is that of the path. Each has a bucket of requests and one of bytes in
this process; 0 is unlimited. A refusal names the bucket and the time to wait; other answers carry what is left. Probes
and static files are never refused. The console's `/live` stream is exempt, but its parts count as requests.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apiserver.callers import caller_of
from apiserver.core.token_buckets import BucketPolicy, Buckets
from tistream.clock import Clock
from tistream.errors import RateLimited, TooLarge
from tistream.http import problem
from tistream.http.auth.access import ACCESS, Access
from tistream.ids import Tenant
from tistream.limits import REQUEST_BODY_BYTES_MAX

_TENANT = re.compile(r"/v1/clusters/(\d{1,19})/tenants/(\d{1,19})(?:/|$)")
_FREE = re.compile(r"/(?:livez|readyz|healthz|version|metrics|live|static/.*|problems(?:/.*)?)")
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """Tokens per second, and the bucket size in seconds; 0 is unlimited."""

    caller_requests_per_s: float = 0
    caller_mib_per_s: float = 0
    tenant_requests_per_s: float = 0
    tenant_mib_per_s: float = 0
    burst_s: float = 10

    def policies(self) -> dict[str, list[BucketPolicy]]:
        """The policies of callers and of tenants."""
        policies: dict[str, list[BucketPolicy]] = {}
        for of in ("caller", "tenant"):
            requests, mib = getattr(self, f"{of}_requests_per_s"), getattr(self, f"{of}_mib_per_s")
            policies[of] = [
                BucketPolicy(
                    name=f"{of}-{what}", rate=rate, burst=max(1.0, rate * self.burst_s), of_bytes=what == "bytes"
                )
                for what, rate in (("requests", requests), ("bytes", mib * _MIB))
                if rate
            ]
        return policies


class RequestLimits:
    """The middleware."""

    def __init__(self, app: ASGIApp, *, limits: RateLimits, clock: Clock) -> None:
        self._app, self._clock = app, clock
        self._buckets = {of: [Buckets(policy) for policy in policies] for of, policies in limits.policies().items()}
        policies = [b.policy for buckets in self._buckets.values() for b in buckets]
        self._policy = ", ".join(_shown(policy) for policy in policies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        mine = [] if _FREE.fullmatch(scope["path"]) else self._of(scope)
        refused = _too_large(scope) or self._refused(mine)
        if refused is not None:
            answer = problem.problem_response(refused)
            answer.headers.update(self._headers(mine))
            return await answer(scope, receive, send)
        now_s = self._clock.monotonic()
        for buckets, who in mine:
            if not buckets.policy.of_bytes:
                buckets.take(who, 1, now_s)
        counted = [(buckets, who) for buckets, who in mine if buckets.policy.of_bytes]

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start" and mine:
                MutableHeaders(scope=message).update(self._headers(mine))
            if message["type"] == "http.response.body":
                for buckets, who in counted:
                    buckets.take(who, len(message.get("body", b"")), self._clock.monotonic())
            await send(message)

        await self._app(scope, _bounded(receive), sent if mine else send)

    def _of(self, scope: Scope) -> list[tuple[Buckets, str]]:
        """The buckets of a request with their keys."""
        caller = caller_of(HTTPConnection(scope))
        keyed = [(buckets, caller) for buckets in self._buckets["caller"]]
        if self._buckets["tenant"] and (m := _TENANT.match(scope["path"])):
            tenant = Tenant(int(m[1]), int(m[2]))
            if _sees(scope, tenant):
                keyed += [(buckets, str(tenant)) for buckets in self._buckets["tenant"]]
        return keyed

    def _refused(self, keyed: list[tuple[Buckets, str]]) -> RateLimited | None:
        now_s = self._clock.monotonic()
        waits = [(buckets.wait_s(who, now_s), buckets.policy.name) for buckets, who in keyed]
        wait_s, name = max(waits, default=(0.0, ""))
        if wait_s <= 0:
            return None
        seconds = max(1, math.ceil(wait_s))
        return RateLimited(f"The bucket {name} is empty for {seconds} s.", bucket=name, retry_after_s=seconds)

    def _headers(self, keyed: list[tuple[Buckets, str]]) -> Mapping[str, str]:
        if not keyed:
            return {}
        now_s = self._clock.monotonic()
        left = [
            f'"{b.policy.name}";r={b.left(who, now_s)};t={max(0, math.ceil(b.wait_s(who, now_s)))}' for b, who in keyed
        ]
        return {"RateLimit-Policy": self._policy, "RateLimit": ", ".join(left)}


def _sees(scope: Scope, tenant: Tenant) -> bool:
    """Whether the caller sees this tenant. Other callers get a 404 and neither use nor learn the tenant's budget."""
    access: Access | None = scope.get(ACCESS)
    return access is None or (access.principal is not None and access.principal.sees(tenant))


def _shown(policy: BucketPolicy) -> str:
    unit = ';qu="content-bytes"' if policy.of_bytes else ""
    return f'"{policy.name}";q={math.floor(policy.burst)};w={policy.window_s}{unit}'


def _too_large(scope: Scope) -> TooLarge | None:
    length = dict(scope["headers"]).get(b"content-length", b"0")
    if length.isdigit() and int(length) > REQUEST_BODY_BYTES_MAX:
        return TooLarge(f"A request body has at most {REQUEST_BODY_BYTES_MAX} bytes.", bytes=length.decode()[:40])
    return None


def _bounded(receive: Receive) -> Receive:
    got = 0

    async def bounded() -> Message:
        nonlocal got
        message = await receive()
        got += len(message.get("body", b""))
        if got > REQUEST_BODY_BYTES_MAX:
            raise TooLarge(f"A request body has at most {REQUEST_BODY_BYTES_MAX} bytes.")
        return message

    return bounded
