"""Looks at a running service from outside, as far as the key lets it: version, clock, parts, owner, workers, tenants.

A service that answers and whose parts do not is looked at to the end: what it says of itself is what is wanted then.
What a key may not ask is a warning. Nothing is changed, and nothing is asked twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2
import orjson

from tistream import __version__
from tistream.client.core.exchange import error_of, unreachable
from tistream.clock import Clock
from tistream.diagnostics.findings import Finding, Look, Verdict, check, skew
from tistream.errors import NotAllowed, TiStreamError

_TIMEOUT_S = 20.0
_RESOLUTION_MS = 1_000  # of a Date header
_NEEDED = ("dispatcher", "sorter")  # without which nothing goes on, beside an owner
_STOPPED = "stopped"


def examine_service(url: str, key: str | None, clock: Clock) -> list[Finding]:
    """All checks. When the service does not answer, or does not know the key, there are no more."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx2.Client(base_url=url.rstrip("/"), timeout=_TIMEOUT_S, headers=headers) as http:
        service = _Service(url, http, clock)
        found = [check("service", service.version)]
        if found[0].verdict is Verdict.FAIL:
            return found
        found += [check("service clock", service.clock), *service.parts(), check("key", service.key)]
        if found[-1].verdict is Verdict.FAIL:
            return found
        found += service.asked("problems", "/healthz", problems_of)
        found += service.asked("owner", "/v1/owner", owner_of)
        found += service.asked("workers", "/v1/workers", workers_of)
        return found + service.tenants()


class _Service:
    """The questions."""

    def __init__(self, url: str, http: httpx2.Client, clock: Clock) -> None:
        self._url, self._http, self._clock = url, http, clock
        self._offset_ms: int | None = None

    def version(self) -> Look:
        before = self._clock.unix_ms()
        answer, found = self._get("/version")
        self._offset_ms = offset_of(answer.headers, before, self._clock.unix_ms())
        version = str(found["version"])
        facts: dict[str, object] = {"url": self._url, "version": version, "ours": __version__}
        if version != __version__:
            return Verdict.WARN, f"{self._url} runs TiStream {version}, and this command is {__version__}", facts
        return Verdict.OK, f"{self._url} runs TiStream {version}", facts

    def clock(self) -> Look:
        if self._offset_ms is None:
            return Verdict.WARN, "its answers carry no time", {}
        verdict, words = skew("the service's", self._offset_ms)
        return verdict, words, {"offset_ms": self._offset_ms}

    def parts(self) -> list[Finding]:
        """What it needs for its work, part by part."""
        try:
            _, found = self._get("/readyz", 503)
        except TiStreamError as e:
            return [Finding(name="ready", verdict=Verdict.FAIL, words=str(e), facts={"code": e.code})]
        return parts_of(found["checks"])

    def key(self) -> Look:
        try:
            _, who = self._get("/v1/whoami")
        except TiStreamError as e:
            if not _is_elsewhere(e):
                raise
            return Verdict.OK, "this process of the service does not tell what a key may do", {}
        return key_of(who)

    def asked(self, name: str, path: str, judge: Callable[[Any], Finding]) -> list[Finding]:
        """One finding about an answer."""
        try:
            return [judge(self._get(path)[1])]
        except TiStreamError as e:
            return [_unanswered(name, e)]

    def tenants(self) -> list[Finding]:
        """One finding about each tenant that the key may see."""
        try:
            known = self._get("/v1/tenants")[1]["items"]
            if not known:
                words = "no tenant is registered: tistream tenant register"
                return [Finding(name="tenants", verdict=Verdict.WARN, words=words)]
        except TiStreamError as e:
            return [_unanswered("tenants", e)]
        try:
            return tenants_of(known, self._get("/v1/gaps")[1]["items"])
        except TiStreamError as e:
            return [*tenants_of(known, []), _unanswered("watermark_gaps", e)]

    def _get(self, path: str, *also: int) -> tuple[httpx2.Response, Any]:
        """The answer and what it says; statuses of `also` are answers like any other."""
        try:
            answer = self._http.get(path)
        except httpx2.TransportError as e:
            raise unreachable(self._url, e) from e
        if not answer.is_success and answer.status_code not in also:
            raise error_of(answer.status_code, answer.content)
        try:
            return answer, orjson.loads(answer.content)
        except orjson.JSONDecodeError as e:
            raise TiStreamError(f"{self._url}{path} does not answer as TiStream does", status=answer.status_code) from e


def _is_elsewhere(error: TiStreamError) -> bool:
    """Another process of the service answers this: a meta server knows no tenants' pages."""
    return getattr(error, "status", None) in (404, 405)


def _unanswered(name: str, error: TiStreamError) -> Finding:
    """A question that could not be asked is a warning; one without an answer is a failure."""
    verdict, words = Verdict.FAIL, str(error)
    if isinstance(error, NotAllowed):
        verdict, words = Verdict.WARN, f"this key may not ask: {error.message}"
    elif _is_elsewhere(error):
        verdict, words = Verdict.WARN, "this process of the service does not tell; ask an API server"
    return Finding(name=name, verdict=verdict, words=words, facts={"code": error.code})


def offset_of(headers: Mapping[str, str], before_ms: int, after_ms: int) -> int | None:
    """How far a server that answered between these times is ahead of this machine, as far as its Date tells; None: it
    tells nothing."""
    try:
        said_ms = int(parsedate_to_datetime(headers["date"]).timestamp() * 1000)
    except (KeyError, ValueError):
        return None
    return min(0, said_ms + _RESOLUTION_MS - before_ms) or max(0, said_ms - after_ms)


def parts_of(checks: Mapping[str, str]) -> list[Finding]:
    """Of /readyz."""
    return [
        Finding(name=f"part: {name}", verdict=Verdict.OK if state == "ok" else Verdict.FAIL, words=state)
        for name, state in checks.items()
    ]


def key_of(who: Mapping[str, Any]) -> Look:
    """Of /v1/whoami."""
    facts: dict[str, object] = {"role": who["role"], "rights": who["rights"]}
    if not who["key_id"]:
        return Verdict.OK, "no keys are asked for", facts
    bound = f" of tenant {who['cluster_id']}/{who['tenant_id']}" if who.get("tenant_id") is not None else ""
    words = f"{who['role']}{bound} ({who['name']})"
    if bound or "look" not in who["rights"]:
        return Verdict.WARN, f"{words}: it does not see the whole deployment", facts
    return Verdict.OK, words, facts


def problems_of(found: Mapping[str, Any]) -> Finding:
    """Of /healthz."""
    problems = found["problems"]
    if not problems:
        return Finding(name="problems", verdict=Verdict.OK, words="no part of the service reports one")
    verdict = Verdict.FAIL if any(p.get("fatal") for p in problems) else Verdict.WARN
    words = "; ".join(f"{p['source']}: {p['message']} [{p['code']}]" for p in problems)
    return Finding(name="problems", verdict=verdict, words=words, facts={"problems": problems})


def owner_of(found: Mapping[str, Any]) -> Finding:
    """Of /v1/owner."""
    if not found["owner"]:
        return Finding(name="owner", verdict=Verdict.FAIL, words="no meta server was ever elected: start one", facts={})
    age_s = (found["heartbeat_age_ms"] or 0) / 1000
    facts: dict[str, object] = {"owner": found["owner"], "epoch": found["epoch"], "heartbeat_age_s": age_s}
    if not found["alive"]:
        words = f"{found['owner']} was the last one and has not been heard of for {age_s:,.0f} s: start a meta server"
        return Finding(name="owner", verdict=Verdict.FAIL, words=words, facts=facts)
    return Finding(name="owner", verdict=Verdict.OK, words=f"{found['owner']}, epoch {found['epoch']}", facts=facts)


def workers_of(found: Mapping[str, Any]) -> Finding:
    """Of /v1/workers."""
    items = [worker for worker in found["items"] if worker["state"] != "gone"]
    alive = Counter(worker["kind"] for worker in items if worker["alive"])
    silent = [worker["worker_id"] for worker in items if not worker["alive"]]
    facts: dict[str, object] = {"alive": dict(alive), "silent": silent}
    missing = [kind for kind in _NEEDED if not alive[kind]]
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(alive.items())) or "nobody"
    if missing:
        words = f"no {' and no '.join(missing)} is up (up: {told})"
        return Finding(name="workers", verdict=Verdict.FAIL, words=words, facts=facts)
    if silent:
        words = f"up: {told}; not heard of any more: {', '.join(silent)}"
        return Finding(name="workers", verdict=Verdict.WARN, words=words, facts=facts)
    return Finding(name="workers", verdict=Verdict.OK, words=f"up: {told}", facts=facts)


def tenants_of(tenants: list[Mapping[str, Any]], watermark_gaps: list[Mapping[str, Any]]) -> list[Finding]:
    """Of /v1/tenants and /v1/gaps: a finding about each tenant."""
    found = []
    for tenant in tenants:
        ids = (tenant["cluster_id"], tenant["tenant_id"])
        mine = [
            watermark_gap
            for watermark_gap in watermark_gaps
            if (watermark_gap["cluster_id"], watermark_gap["tenant_id"]) == ids
        ]
        facts: dict[str, object] = {"state": tenant["state"], "lag_ms": tenant["lag_ms"], "watermark_gaps": len(mine)}
        verdict, words = Verdict.OK, str(tenant["state"])
        if tenant["lag_ms"] is not None:
            words += f", {tenant['lag_ms'] / 1000:,.1f} s behind"
        if mine:
            stopped = [watermark_gap for watermark_gap in mine if watermark_gap["cause"] == _STOPPED]
            first = (stopped or mine)[0]
            verdict = Verdict.FAIL if stopped else Verdict.WARN
            more = f" (and {len(mine) - 1} more: tistream gaps)" if len(mine) > 1 else ""
            words += f"; {first['sentence']}: {first['next_step']}{more}"
        found.append(Finding(name=f"tenant {ids[0]}/{ids[1]}", verdict=verdict, words=words, facts=facts))
    return found
