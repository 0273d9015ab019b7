"""What a pusher asks of the control plane, and the HTTP end of it.

Requests, all safe to repeat, none on the way of the data but those of pushers with session credentials:

    POST /v1/clusters/{c}/tenants/{t}/stores/{s}/incarnations    a new life of a pusher, and where time stood
    GET  /v1/clusters/{c}/tenants/{t}/stores/{s}/incarnations    which life is the newest
    GET  /v1/clusters/{c}/tenants/{t}/frontier                   where new subscriptions may start
    GET  /v1/clusters/{c}/tenants/{t}/push                       where to write, and what the tenant waits for
    GET  /v1/clusters/{c}/tenants/{t}/seeds                      which seeds there are
    POST /v1/clusters/{c}/tenants/{t}/seeds                      a seed is complete in the bucket
    POST /v1/clusters/{c}/tenants/{t}/push-credentials           session credentials for the tenant's prefix
    POST /v1/clusters/{c}/tenants/{t}/push-objects:compare       whether a put arrived
    GET  /v1/clusters/{c}/tenants/{t}/push-schemas[/{ts}]        the schema snapshots that were pushed
    DELETE /v1/clusters/{c}/tenants/{t}/push-probes/{name}       what a check of pushing put into the bucket
    GET  /v1/whoami                                              what the key is

A lost answer to the first one costs a number, nothing else: an incarnation without files is empty. Errors: a problem
document of the service that refuses for good becomes the error that it names. Everything else is ControlUnavailable
(kind RETRY): transport faults, "try again", an error of the service, and whatever a proxy or an ingress in front of it
says in its place, with any status. Problem documents keep the server's words. Nothing here repeats a request by itself:
`retrying` does, for callers that have nothing better to do than wait.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import httpx2
import orjson

from pusher.frontier import FrontierEntry
from tistream.clock import Clock
from tistream.errors import ErrorKind, NotFound, TiStreamError
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.objectstore.session import SessionCredentials
from tistream.runtime.credentials import key_for
from tistream.runtime.service import Backoff

_TIMEOUT_S = 5.0
_RETRY_STATUS = frozenset({408, 425, 429})
_ZSTD = b"\x28\xb5\x2f\xfd"  # what a snapshot begins with
_NUMBER_MAX = (1 << 63) - 1
T = TypeVar("T")


class ControlUnavailable(TiStreamError):
    """The control plane did not answer."""

    kind = ErrorKind.RETRY
    code = "TS-1070"


@dataclass(frozen=True, slots=True, kw_only=True)
class IncarnationGrant:
    """A new life of one store's pusher."""

    incarnation: int
    max_cut_ts: int  #: largest cut_ts known of the store; no file of the new life may have a lower one


@dataclass(frozen=True, slots=True, kw_only=True)
class PushBundle:
    """Where to write."""

    object_store: str  #: URL of the bucket
    state: str  #: of the tenant: AWAITING_SNAPSHOT, ACTIVE, ...
    session: bool = False  #: the service issues session credentials for it
    start_ts: int = 0  #: of the schema snapshot with which the tenant began; 0 = it awaits one
    snapshot_refused: bool = False  #: none that was pushed can be used: another one is awaited


@dataclass(frozen=True, slots=True, kw_only=True)
class PushCredentials:
    """Session credentials for a tenant's prefix of the bucket. Its text shows no secret."""

    session: SessionCredentials
    valid_s: float  #: from the moment in which they were asked for
    kms_key_arn: str  #: what objects must be encrypted with; empty = as the bucket says


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedSchema:
    """A schema snapshot in the bucket."""

    ts: int
    bytes: int


class Control(Protocol):
    """The control plane as one tenant's pushers see it."""

    @property
    def tenant(self) -> Tenant: ...

    def issue_incarnation(self, store_id: int) -> IncarnationGrant:
        """A number above all given out before for this store."""
        ...

    def newest_incarnation(self, store_id: int) -> int:
        """The number given out last for this store; 0 when there is none."""
        ...

    def frontier(self) -> Sequence[FrontierEntry]:
        """The tenant's tasks in key order; empty while it waits for its schema snapshot."""
        ...

    def push_bundle(self) -> PushBundle: ...


class SeedControl(Protocol):
    """The control plane as who writes a seed sees it."""

    @property
    def tenant(self) -> Tenant: ...

    def has_seed(self, ts: int, table_id: int) -> bool:
        """Whether this seed is visible already."""
        ...

    def add_seed(self, ts: int, table_id: int) -> None:
        """Say that the seed is complete in the bucket."""
        ...


class SessionControl(Protocol):
    """The control plane as a pusher with session credentials sees it: it looks into the bucket in its place."""

    @property
    def tenant(self) -> Tenant: ...

    def push_credentials(self) -> PushCredentials: ...

    def compare(self, key: str, size: int, sha256: str) -> str:
        """What lies under a key that the tenant may write: "same", "other" or "nothing"."""
        ...

    def pushed_schemas(self) -> Sequence[PushedSchema]:
        """The schema snapshots that were pushed, by time."""
        ...

    def pushed_schema(self, ts: int) -> bytes:
        """One of them as it lies in the bucket. NotFound when there is none."""
        ...


class CheckControl(SessionControl, Protocol):
    """The control plane as who wants to know whether pushing would work sees it."""

    def push_bundle(self) -> PushBundle: ...

    def whoami(self) -> Mapping[str, Any] | None:
        """What the key is: key_id, name, role, cluster_id, tenant_id, rights. None: this process does not tell."""
        ...

    def drop_probe(self, name: str) -> None:
        """Have removed what was put to see whether it may be put."""
        ...


class CaptureControl(Control, SeedControl, Protocol):
    """The control plane as who pushes a whole recording sees it."""


class HttpControl:
    """The control plane behind a URL. `token` is the API key; None: what `tistream.runtime.credentials` knows for the
    URL."""

    def __init__(self, url: str, tenant: Tenant, *, token: str | None = None, timeout_s: float = _TIMEOUT_S) -> None:
        self._tenant = tenant
        self._service = url.rstrip("/")
        self._root = f"{self._service}/v1/clusters/{tenant.cluster_id}/tenants/{tenant.tenant_id}"
        key = key_for(url) if token is None else token
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx2.Client(timeout=timeout_s, headers=headers)
        self.has_session = False  #: whether the last push bundle said that there are session credentials

    @property
    def tenant(self) -> Tenant:
        return self._tenant

    def issue_incarnation(self, store_id: int) -> IncarnationGrant:
        return self._request(
            "POST",
            f"stores/{store_id}/incarnations",
            lambda a: IncarnationGrant(
                incarnation=_number(a["incarnation"], 1), max_cut_ts=_number(a["max_cut_ts"], 0)
            ),
        )

    def newest_incarnation(self, store_id: int) -> int:
        return self._request("GET", f"stores/{store_id}/incarnations", lambda a: _number(a["incarnation"], 0))

    def frontier(self) -> Sequence[FrontierEntry]:
        return self._request("GET", "frontier", lambda a: [_entry(e) for e in a])

    def push_bundle(self) -> PushBundle:
        bundle = self._request("GET", "push", _bundle)
        self.has_session = bundle.session
        return bundle

    def has_seed(self, ts: int, table_id: int) -> bool:
        found = self._request("GET", "seeds", lambda a: {(int(s["ts"]), int(s["table_id"])) for s in a["items"]})
        return (ts, table_id) in found

    def add_seed(self, ts: int, table_id: int) -> None:
        def check(answer: Any) -> None:
            if (int(answer["ts"]), int(answer["table_id"])) != (ts, table_id):
                raise ValueError("the answer names another seed")

        self._request("POST", "seeds", check, {"ts": str(ts), "table_id": table_id})

    def push_credentials(self) -> PushCredentials:
        return self._request("POST", "push-credentials", _credentials)

    def compare(self, key: str, size: int, sha256: str) -> str:
        body = {"key": key, "bytes": size, "sha256": sha256}
        return self._request("POST", "push-objects:compare", _there, body)

    def pushed_schemas(self) -> Sequence[PushedSchema]:
        def parse(answer: Any) -> list[PushedSchema]:
            return [PushedSchema(ts=int(s["ts"]), bytes=int(s["bytes"])) for s in answer["items"]]

        return self._request("GET", "push-schemas", parse)

    def pushed_schema(self, ts: int) -> bytes:
        path = f"push-schemas/{ts}"
        found = bytes(self._answer("GET", path).content)
        if not found.startswith(_ZSTD):
            raise _nonsense(f"{self._root}/{path}", "no snapshot, but " + repr(found[:40]))
        return found

    def whoami(self) -> Mapping[str, Any] | None:
        url = f"{self._service}/v1/whoami"
        try:
            found = orjson.loads(self._sent("GET", url).content)
        except NotFound:  # of a meta server that is a process of its own
            return None
        except ValueError as e:
            raise _nonsense(url, repr(e)) from e
        return found if isinstance(found, dict) else None

    def drop_probe(self, name: str) -> None:
        self._answer("DELETE", f"push-probes/{name}")

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _request(
        self, method: str, path: str, parse: Callable[[Any], T], body: Mapping[str, object] | None = None
    ) -> T:
        response = self._answer(method, path, body)
        try:
            return parse(orjson.loads(response.content))
        except (ValueError, LookupError, TypeError, AttributeError) as e:  # of JSON, too
            raise _nonsense(f"{self._root}/{path}", repr(e)) from e

    def _answer(self, method: str, path: str, body: Mapping[str, object] | None = None) -> httpx2.Response:
        return self._sent(method, f"{self._root}/{path}", body)

    def _sent(self, method: str, url: str, body: Mapping[str, object] | None = None) -> httpx2.Response:
        try:
            response = self._http.request(method, url, json=body)
        except httpx2.RequestError as e:
            raise ControlUnavailable(url=url, cause=str(e) or type(e).__name__) from e
        if not response.is_success:
            raise _problem(url, response)
        return response


def _bundle(a: dict[str, Any]) -> PushBundle:
    where, state = a["object_store"], a["state"]
    if not (isinstance(where, str) and where and isinstance(state, str)):
        raise ValueError("a push bundle without a bucket or a state")
    return PushBundle(
        object_store=where,
        state=state,
        session=a.get("credentials", {}).get("by") == "service",
        start_ts=int(a.get("start_ts") or 0),
        snapshot_refused=bool(a.get("snapshot_refused")),
    )


def _there(a: dict[str, Any]) -> str:
    said = a["there"]
    if said not in ("same", "other", "nothing"):
        raise ValueError(f"{said!r} says nothing of an object")
    return str(said)


def _credentials(a: dict[str, Any]) -> PushCredentials:
    texts = [a[name] for name in ("access_key_id", "secret_access_key", "session_token", "kms_key_arn")]
    if not all(isinstance(text, str) for text in texts) or not all(texts[:3]) or not float(a["valid_s"]) > 0:
        raise ValueError("credentials that are none")  # their text stays out of messages
    return PushCredentials(
        session=SessionCredentials(
            access_key_id=str(a["access_key_id"]),
            secret_access_key=str(a["secret_access_key"]),
            session_token=str(a["session_token"]),
        ),
        valid_s=float(a["valid_s"]),
        kms_key_arn=str(a["kms_key_arn"]),
    )


def _entry(e: dict[str, Any]) -> FrontierEntry:
    return FrontierEntry(
        range=KeyRange(bytes.fromhex(e["start_key"]), bytes.fromhex(e["end_key"])),
        durable_ts=_number(e["durable_ts"], 0),
        resubscribe_id=_number(e["resubscribe_id"], 0),
    )


def _number(said: Any, least: int) -> int:
    """A whole number of at most 63 bits, as a number or in digits."""
    number = int(said)
    if isinstance(said, bool | float) or not least <= number <= _NUMBER_MAX:
        raise ValueError(f"{said!r} is no number from {least} on")
    return number


def _nonsense(url: str, cause: str) -> ControlUnavailable:
    return ControlUnavailable("the control plane gave an answer that makes no sense", url=url, cause=cause)


def _refusals(kind: type[TiStreamError] = TiStreamError) -> dict[str, type[TiStreamError]]:
    """Errors that do not pass, by their codes: they end a push."""
    final = kind.kind in (ErrorKind.INVALID, ErrorKind.NOT_FOUND, ErrorKind.FENCED)
    found = {kind.code: kind} if final else {}
    for each in kind.__subclasses__():
        if each.__module__ == TiStreamError.__module__:
            found = {**_refusals(each), **found}
    return found


_REFUSALS = _refusals()


def _problem(url: str, response: httpx2.Response) -> TiStreamError:
    """The error that an answer is: RFC 9457 problem documents keep their words.

    It is final only if the service itself says so, by a code. A page with a status may come from anything in front of
    it: a load balancer without a backend answers 404, some answer 401 or 403."""
    status = response.status_code
    try:
        body = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        body = {}
    said = body if isinstance(body, dict) else {}
    detail = str(said.get("detail") or f"the control plane answered {status}")
    refused = 400 <= status < 500 and status not in _RETRY_STATUS
    kind = (_REFUSALS.get(str(said.get("code"))) if refused else None) or ControlUnavailable
    error = kind(detail, url=url, status=status)
    error.hint = str(said.get("hint") or error.hint)
    return error


def retrying(
    action: Callable[[], T],
    *,
    stop: threading.Event,
    clock: Clock,
    rand: random.Random,
    notice: Callable[[TiStreamError], None] = lambda _: None,
) -> T | None:
    """What `action` gives, tried again for as long as it fails with kind RETRY; None when `stop` was set meanwhile."""
    backoff = Backoff(first_s=0.05, max_s=2.0, rand=rand)
    while not stop.is_set():
        try:
            return action()
        except TiStreamError as e:
            if e.kind is not ErrorKind.RETRY:
                raise
            notice(e)
        clock.wait(stop, backoff.next_s())
    return None
