"""Checks a running service over HTTP, as far as the key allows: version, clock, parts, leader, workers, whether these
carry the load, maintenance jobs, tenants.

When parts of a service fail, the other checks still run. What the key may not read is a warning. Nothing is changed,
and no request is retried.
"""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx2
import orjson

from tistream import __version__
from tistream.admin.core.capacity import check_capacity, check_jobs
from tistream.admin.core.units import seconds_text
from tistream.client.core.requests import error_of, unreachable
from tistream.clock import Clock
from tistream.diagnostics.findings import Checklist, Finding, clock_skew, fail, least_offset_ms, ok, warn
from tistream.errors import NotAllowed, TiStreamError
from tistream.runtime.proxies import is_loopback, reach

_TIMEOUT_S = 20.0
# A Date header has whole seconds, and servers renew it about once a second, later when they are busy.
_STALE_MS = 2_500
_NEEDED = ("dispatcher", "sorter")  # worker kinds without which no change is sorted
_STOPPED = "stopped"
_JOBS_MAX = 1000  # looked at
_RENEWED_DAYS = 7  # as the alert TiStreamCertificateEnds
_LAG_WARN_S = 30  # as the alert TiStreamLagHigh


def check_service(url: str, key: str | None, clock: Clock) -> list[Finding]:
    """All checks; they end early when the service does not answer or does not know the key."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx2.Client(base_url=url.rstrip("/"), timeout=_TIMEOUT_S, headers=headers, **reach(url)) as http:
        service, checklist = _Service(url, http, clock), Checklist()
        if not checklist.check("service", service.version):
            return checklist.findings
        checklist.check("certificate", service.certificate)
        checklist.check("service clock", service.clock)
        service.readiness(checklist)
        if not checklist.check("key", service.key):
            return checklist.findings
        checklist.check("problems", partial(service.asked, "/healthz", check_problems))
        checklist.check("owner", partial(service.asked, "/v1/owner", check_owner))
        checklist.check("workers", partial(service.asked, "/v1/workers", check_workers))
        service.capacity(checklist)
        service.tenants(checklist)
        return checklist.findings


class _Service:
    """The requests."""

    def __init__(self, url: str, http: httpx2.Client, clock: Clock) -> None:
        self._url, self._http, self._clock = url, http, clock
        self._offset_ms: int | None = None
        self._not_after: float | None = None

    def version(self) -> Finding:
        before = self._clock.unix_ms()
        answer, body = self._get("/version")
        secured = answer.extensions["network_stream"].get_extra_info("ssl_object")
        self._not_after = None if secured is None else ssl.cert_time_to_seconds(secured.getpeercert()["notAfter"])
        self._offset_ms = offset_of(answer.headers, before, self._clock.unix_ms())
        facts = {"url": self._url, "version": str(body["version"]), "ours": __version__}
        words = f"{self._url} runs TiStream {body['version']}"
        if body["version"] != __version__:
            return warn(f"{words}, and this command is {__version__}", **facts)
        return ok(words, **facts)

    def certificate(self) -> Finding:
        return check_certificate(self._url, self._not_after, self._clock.unix_ms() / 1000)

    def clock(self) -> Finding:
        if self._offset_ms is None:
            return warn("its answers carry no time")
        return clock_skew("the service's", self._offset_ms)

    def readiness(self, checklist: Checklist) -> None:
        """One finding for each part that the service depends on."""
        try:
            _, ready = self._get("/readyz", 503)
        except TiStreamError as e:
            checklist.check("ready", partial(fail, str(e), code=e.code))
            return
        check_parts(checklist, ready["checks"])

    def key(self) -> Finding:
        return check_key(self._get("/v1/whoami")[1])

    def asked(self, path: str, judge: Callable[[Any], Finding]) -> Finding:
        """Judge an answer. Without permission to ask: a warning."""
        try:
            return judge(self._get(path)[1])
        except TiStreamError as e:
            return _unanswered(e)

    def capacity(self, checklist: Checklist) -> None:
        """One finding for each role, and one for maintenance jobs. None without permission to list workers, which is
        a finding already."""
        try:
            workers = self._get("/v1/workers")[1]["items"]
            tenants = self._get("/v1/tenants")[1]["items"]
            queued = self._get(f"/v1/jobs?state=queued&limit={_JOBS_MAX}")[1]["items"]
        except TiStreamError as e:
            if not isinstance(e, NotAllowed):
                checklist.check("capacity", partial(_unanswered, e))
            return
        for name, finding in check_capacity(workers, sum(tenant["state"] == "ACTIVE" for tenant in tenants)):
            checklist.check(name, partial(_itself, finding))
        checklist.check("maintenance jobs", partial(check_jobs, queued, workers))

    def tenants(self, checklist: Checklist) -> None:
        """One finding for each tenant that the key may see."""
        try:
            listed = self._get("/v1/tenants")[1]["items"]
        except TiStreamError as e:
            checklist.check("tenants", partial(_unanswered, e))
            return
        if not listed:
            checklist.check("tenants", partial(warn, "no tenant is registered: tistream tenant register"))
            return
        try:
            check_tenants(checklist, listed, self._get("/v1/gaps")[1]["items"])
        except TiStreamError as e:
            check_tenants(checklist, listed, [])
            checklist.check("watermark_gaps", partial(_unanswered, e))

    def _get(self, path: str, *accepted: int) -> tuple[httpx2.Response, Any]:
        """The response and its JSON; error statuses raise unless they are in `accepted`."""
        try:
            answer = self._http.get(path)
        except httpx2.TransportError as e:
            raise unreachable(self._url, e) from e
        if not answer.is_success and answer.status_code not in accepted:
            raise error_of(answer.status_code, answer.content)
        try:
            return answer, orjson.loads(answer.content)
        except orjson.JSONDecodeError as e:
            raise TiStreamError(f"{self._url}{path} does not answer as TiStream does", status=answer.status_code) from e


def _itself(finding: Finding) -> Finding:
    return finding


def _unanswered(error: TiStreamError) -> Finding:
    """A request that is not permitted is a warning; any other error is a failure."""
    if isinstance(error, NotAllowed):
        return warn(f"this key may not ask: {error.message}", code=error.code)
    return fail(str(error), code=error.code)


def offset_of(headers: Mapping[str, str], before_ms: int, after_ms: int) -> int | None:
    """Milliseconds that a server's clock is ahead of this machine's, by its Date header. None without a valid one.
    `before_ms`, `after_ms`: when the request was sent and answered."""
    try:
        date_ms = int(parsedate_to_datetime(headers["date"]).timestamp() * 1000)
    except (KeyError, ValueError):
        return None
    return least_offset_ms(date_ms, date_ms + _STALE_MS, before_ms, after_ms)


def check_certificate(url: str, not_after: float | None, now: float) -> Finding:
    """Judge the certificate of the service. `not_after`: when it ends, in seconds since 1970; None: there is no TLS."""
    if not_after is None:
        if is_loopback(urlsplit(url).hostname or ""):
            return ok("none: it is reached over loopback")
        return warn("none: keys and rows travel as plain text (tls.cert and tls.key give the service one)")
    return check_end(not_after, now)


def check_end(not_after: float, now: float) -> Finding:
    """Judge the end of a certificate. Both in seconds since 1970."""
    days = (not_after - now) / 86400
    if days < 0:
        return fail(f"it ended {-days:,.1f} days ago", not_after=round(not_after))
    until = f"valid until {datetime.fromtimestamp(not_after, UTC):%Y-%m-%d %H:%M} UTC"
    return (ok if days >= _RENEWED_DAYS else warn)(f"{until}, for {days:,.1f} more days", not_after=round(not_after))


def check_parts(checklist: Checklist, checks: Mapping[str, str]) -> None:
    """Judge the checks of /readyz."""
    for name, state in checks.items():
        checklist.check(f"part: {name}", partial(ok if state == "ok" else fail, state))


def check_key(who: Mapping[str, Any]) -> Finding:
    """Judge /v1/whoami."""
    facts = {"role": who["role"], "rights": who["rights"]}
    if not who["key_id"]:
        return ok("the service requires no key", **facts)
    bound = f" of tenant {who['cluster_id']}/{who['tenant_id']}" if who.get("tenant_id") is not None else ""
    words = f"{who['role']}{bound} ({who['name']})"
    if bound or "look" not in who["rights"]:
        return warn(f"{words}: it does not see the whole deployment", **facts)
    return ok(words, **facts)


def check_problems(health: Mapping[str, Any]) -> Finding:
    """Judge /healthz."""
    problems = health["problems"]
    if not problems:
        return ok("no part of the service reports one")
    words = "; ".join(f"{p['source']}: {p['message']} [{p['code']}]" for p in problems)
    return (fail if any(p.get("fatal") for p in problems) else warn)(words, problems=problems)


def check_owner(leader: Mapping[str, Any]) -> Finding:
    """Judge /v1/owner: the leading meta server."""
    if not leader["owner"]:
        return fail("no meta server was ever elected: start one")
    age_s = leader["heartbeat_age_s"] or 0
    facts = {"owner": leader["owner"], "epoch": leader["epoch"], "heartbeat_age_s": age_s}
    if not leader["alive"]:
        return fail(f"{leader['owner']} was the last one, last seen {age_s:,.0f} s ago: start a meta server", **facts)
    return ok(f"{leader['owner']}, epoch {leader['epoch']}", **facts)


def check_workers(listed: Mapping[str, Any]) -> Finding:
    """Judge /v1/workers."""
    items = [worker for worker in listed["items"] if worker["state"] != "gone"]
    alive = Counter(worker["kind"] for worker in items if worker["alive"])
    silent = [worker["worker_id"] for worker in items if not worker["alive"]]
    facts = {"alive": dict(alive), "silent": silent}
    up = ", ".join(f"{count} {kind}" for kind, count in sorted(alive.items())) or "none"
    if missing := [kind for kind in _NEEDED if not alive[kind]]:
        return fail(f"no {' and no '.join(missing)} is up (up: {up})", **facts)
    if silent:
        return warn(f"up: {up}; no longer seen: {', '.join(silent)}", **facts)
    return ok(f"up: {up}", **facts)


def check_tenants(checklist: Checklist, tenants: list[Mapping[str, Any]], gaps: list[Mapping[str, Any]]) -> None:
    """Judge /v1/tenants and /v1/gaps: one finding for each tenant."""
    for tenant in tenants:
        ids = (tenant["cluster_id"], tenant["tenant_id"])
        of_tenant = [gap for gap in gaps if (gap["cluster_id"], gap["tenant_id"]) == ids]
        checklist.check(f"tenant {ids[0]}/{ids[1]}", partial(_tenant, tenant, of_tenant))


def _tenant(tenant: Mapping[str, Any], gaps: list[Mapping[str, Any]]) -> Finding:
    facts = {"state": tenant["state"], "lag_s": tenant["lag_s"], "watermark_gaps": len(gaps)}
    words = str(tenant["state"])
    lag_s = tenant["lag_s"]
    if tenant["ended"]:
        words += f", ended, complete up to {tenant['resolved_time']}"
    elif lag_s is not None:
        words += f", {seconds_text(lag_s)} behind"
    if not gaps and (lag_s or 0) < _LAG_WARN_S:
        return ok(words, **facts)
    if not gaps:
        ids = f"-c {tenant['cluster_id']} -t {tenant['tenant_id']}"
        return warn(f"{words}: tistream explain lag {ids} says why", **facts)
    stopped = [gap for gap in gaps if gap["cause"] == _STOPPED]
    first = (stopped or gaps)[0]
    more = f" (and {len(gaps) - 1} more: tistream gaps)" if len(gaps) > 1 else ""
    return (fail if stopped else warn)(f"{words}; {first['sentence']}: {first['next_step']}{more}", **facts)
