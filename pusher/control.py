"""The control plane as pushers use it: protocols, and an HTTP client.

    POST /v1/clusters/{c}/tenants/{t}/stores/{s}/incarnations    a new incarnation, and the store's largest cut_ts
    GET  /v1/clusters/{c}/tenants/{t}/stores/{s}/incarnations    the newest incarnation
    POST /v1/clusters/{c}/tenants/{t}/stores/{s}/incarnations/{i}:end    the stream of a recorded store ends
    GET  /v1/clusters/{c}/tenants/{t}/frontier                   where new subscriptions may start
    GET  /v1/clusters/{c}/tenants/{t}/push                       where to write, and the tenant's state
    GET  /v1/clusters/{c}/tenants/{t}/seeds                      the seeds that exist
    POST /v1/clusters/{c}/tenants/{t}/seeds                      a seed is complete in the bucket
    GET  /v1/clusters/{c}/tenants/{t}/seeds/wanted               tables that a column change rewrote
    POST /v1/clusters/{c}/tenants/{t}/push-credentials           session credentials for the tenant's prefix
    POST /v1/clusters/{c}/tenants/{t}/push-objects:compare       whether a put arrived
    GET  /v1/clusters/{c}/tenants/{t}/push-schemas[/{ts}]        the schema snapshots that were pushed
    DELETE /v1/clusters/{c}/tenants/{t}/push-probes/{name}       remove the object that `push --check` wrote
    GET  /v1/whoami                                              the identity and rights of the key

Every request is safe to repeat. A lost answer to the first one only skips a number: an incarnation without files is
empty. Nothing here retries; callers that can wait use `retrying`.

Errors: a problem document with the code of a final error becomes that error, with the server's text. Certificates that
do not fit at the first request are CertificateRefused. Everything else is ControlUnavailable (kind RETRY): transport
faults, retryable statuses, server errors, and any page that a proxy or ingress sends instead.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import httpx2
import orjson

from pusher.frontier import FrontierEntry
from tistream.clock import Clock
from tistream.errors import ErrorKind, TiStreamError
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.objectstore.session import SessionCredentials
from tistream.runtime.credentials import key_for
from tistream.runtime.proxies import reach
from tistream.runtime.service import Backoff
from tistream.runtime.tls import ClientFiles
from tistream.runtime.tls_faults import CertificateRefused, refusal, words_of

_RETRY_STATUS = frozenset({408, 425, 429})
_ZSTD = b"\x28\xb5\x2f\xfd"  # magic number of a snapshot
_NUMBER_MAX = (1 << 63) - 1
T = TypeVar("T")


class ControlUnavailable(TiStreamError):
    """The control plane did not answer."""

    kind = ErrorKind.RETRY
    code = "TS-1070"


@dataclass(frozen=True, slots=True, kw_only=True)
class IncarnationGrant:
    incarnation: int
    max_cut_ts: int  #: largest cut_ts known of the store: the lower bound for files of this incarnation


_EVERYTHING = KeyRange()


@dataclass(frozen=True, slots=True, kw_only=True)
class PushBundle:
    object_store: str  #: URL of the bucket
    state: str  #: the tenant's: AWAITING_SNAPSHOT, ACTIVE, ...
    session: bool = False  #: the service issues session credentials for the bucket
    start_ts: int = 0  #: of the tenant's first schema snapshot; 0 = it awaits one
    snapshot_refused: bool = False  #: the service refused all pushed snapshots and awaits another
    kind: str = "tidb"  #: or raw, txn: a keyspace without a schema
    keyspace_id: int | None = None  #: of a raw or txn tenant; None = not known yet
    keyspace_name: str | None = None
    range: KeyRange = _EVERYTHING  #: the tenant's keys, once the keyspace is known


@dataclass(frozen=True, slots=True, kw_only=True)
class PushCredentials:
    """Session credentials for a tenant's prefix of the bucket. `repr` shows no secret."""

    session: SessionCredentials
    valid_s: float  #: counted from the request
    kms_key_arn: str  #: key that objects must be encrypted with; empty = the bucket's default


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedSchema:
    ts: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRead:
    """A snapshot read that gives all rows of a table."""

    ts: int
    physical_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedSeed:
    """A table whose rows a column change has rewritten, without a seed since."""

    table_id: int
    name: str  #: database.table
    reads: tuple[TableRead, ...]  #: any of them will do; the first is the best


class Control(Protocol):
    """The control plane for one tenant's pushers."""

    @property
    def tenant(self) -> Tenant: ...

    def issue_incarnation(self, store_id: int) -> IncarnationGrant:
        """Issue a number above all earlier ones of this store."""
        ...

    def newest_incarnation(self, store_id: int) -> int:
        """The number issued last for this store; 0 = none."""
        ...

    def frontier(self) -> Sequence[FrontierEntry]:
        """The tenant's tasks in key order; empty while it waits for its schema snapshot."""
        ...

    def push_bundle(self) -> PushBundle: ...


class SeedControl(Protocol):
    @property
    def tenant(self) -> Tenant: ...

    def has_seed(self, ts: int, table_id: int) -> bool:
        """Whether this seed is visible."""
        ...

    def add_seed(self, ts: int, table_id: int) -> None:
        """Register a seed that is complete in the bucket."""
        ...


class ReseedControl(SeedControl, Protocol):
    def wanted_seeds(self) -> Sequence[WantedSeed]:
        """The tables that need a seed of their own."""
        ...


class SessionControl(Protocol):
    """The control plane for a pusher with session credentials, which cannot read the bucket itself."""

    @property
    def tenant(self) -> Tenant: ...

    def push_credentials(self) -> PushCredentials: ...

    def compare(self, key: str, size: int, sha256: str) -> str:
        """Compare an object with what the pusher wrote: "same", "other" or "nothing" (absent)."""
        ...

    def pushed_schemas(self) -> Sequence[PushedSchema]:
        """The pushed schema snapshots, by ts."""
        ...

    def pushed_schema(self, ts: int) -> bytes:
        """One pushed snapshot, as stored. NotFound when there is none."""
        ...


class CheckControl(SessionControl, Protocol):
    def push_bundle(self) -> PushBundle: ...

    def whoami(self) -> Mapping[str, Any]:
        """key_id, name, role, cluster_id, tenant_id and rights of the key; None when this process does not serve the
        route."""
        ...

    def drop_probe(self, name: str) -> None: ...


class RecordingControl(Control, Protocol):
    """The control plane for the push of a recording, which has an end."""

    def end_stream(self, store_id: int, incarnation: int, end_ts: int) -> None:
        """The store has no change above `end_ts`. Fenced when it has a newer incarnation."""
        ...


class KeyspaceControl(Protocol):
    """The control plane for a pusher that knows which cluster and keyspace its tenant is."""

    def begin(self, keyspace_id: int | None, start_ts: int = 0, upstream_id: int | None = None) -> PushBundle:
        """Say which cluster the tenant is (`upstream_id`: PD's id), and bind it to the keyspace; None for a tenant of
        TiDB. `start_ts`: where a recording begins; used only if nothing was pushed."""
        ...


class PlaybackControl(RecordingControl, KeyspaceControl, Protocol):
    """The control plane for the push of a recording of any kind of tenant."""


class ClusterControl(PlaybackControl, ReseedControl, Protocol):
    """The control plane for a push that follows a cluster."""


class CaptureControl(RecordingControl, ReseedControl, Protocol):
    """The control plane for a push that also writes the tenant's seeds."""


class HttpControl:
    """The control plane behind a URL. `token` is the API key and `files` those of TLS; None = what
    `tistream.runtime.credentials` has for the URL."""

    timeout_s: ClassVar[float] = 5.0  #: for each request

    def __init__(self, url: str, tenant: Tenant, *, token: str | None = None, files: ClientFiles | None = None) -> None:
        self._tenant = tenant
        self._service = url.rstrip("/")
        self._root = f"{self._service}/v1/clusters/{tenant.cluster_id}/tenants/{tenant.tenant_id}"
        key = key_for(url) if token is None else token
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx2.Client(timeout=self.timeout_s, headers=headers, **reach(url, files=files))
        self._has_answered = False  # from then on wrong certificates are waited out: they were right
        self.has_session = False  #: as of the last push bundle

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

    def end_stream(self, store_id: int, incarnation: int, end_ts: int) -> None:
        self._response("POST", f"stores/{store_id}/incarnations/{incarnation}:end", {"end_ts": str(end_ts)})

    def frontier(self) -> Sequence[FrontierEntry]:
        return self._request("GET", "frontier", lambda a: [_entry(e) for e in a])

    def push_bundle(self) -> PushBundle:
        bundle = self._request("GET", "push", _bundle)
        self.has_session = bundle.session
        return bundle

    def begin(self, keyspace_id: int | None, start_ts: int = 0, upstream_id: int | None = None) -> PushBundle:
        body: dict[str, object] = {"keyspace_id": keyspace_id, "start_ts": str(start_ts)}
        body |= {} if upstream_id is None else {"upstream_id": str(upstream_id)}
        return self._request("POST", "push:begin", _bundle, body)

    def has_seed(self, ts: int, table_id: int) -> bool:
        seeds = self._request("GET", "seeds", lambda a: {(int(s["ts"]), int(s["table_id"])) for s in a["items"]})
        return (ts, table_id) in seeds

    def add_seed(self, ts: int, table_id: int) -> None:
        def check(answer: Any) -> None:
            if (int(answer["ts"]), int(answer["table_id"])) != (ts, table_id):
                raise ValueError("the answer is for another seed")

        self._request("POST", "seeds", check, {"ts": str(ts), "table_id": table_id})

    def wanted_seeds(self) -> Sequence[WantedSeed]:
        return self._request("GET", "seeds/wanted", lambda a: [_wanted_seed(w) for w in a["items"]])

    def push_credentials(self) -> PushCredentials:
        return self._request("POST", "push-credentials", _credentials)

    def compare(self, key: str, size: int, sha256: str) -> str:
        body = {"key": key, "bytes": size, "sha256": sha256}
        return self._request("POST", "push-objects:compare", _comparison, body)

    def pushed_schemas(self) -> Sequence[PushedSchema]:
        def parse(answer: Any) -> list[PushedSchema]:
            return [PushedSchema(ts=int(s["ts"]), bytes=int(s["bytes"])) for s in answer["items"]]

        return self._request("GET", "push-schemas", parse)

    def pushed_schema(self, ts: int) -> bytes:
        path = f"push-schemas/{ts}"
        data = bytes(self._response("GET", path).content)
        if not data.startswith(_ZSTD):
            raise _invalid_answer(f"{self._root}/{path}", "not a snapshot: " + repr(data[:40]))
        return data

    def whoami(self) -> Mapping[str, Any]:
        url = f"{self._service}/v1/whoami"
        try:
            answer = orjson.loads(self._send("GET", url).content)
        except ValueError as e:
            raise _invalid_answer(url, repr(e)) from e
        if not isinstance(answer, dict):
            raise _invalid_answer(url, repr(answer))
        return answer

    def drop_probe(self, name: str) -> None:
        self._response("DELETE", f"push-probes/{name}")

    def close(self) -> None:
        self._http.close()

    def _request(
        self, method: str, path: str, parse: Callable[[Any], T], body: Mapping[str, object] | None = None
    ) -> T:
        response = self._response(method, path, body)
        try:
            return parse(orjson.loads(response.content))
        except (ValueError, LookupError, TypeError, AttributeError) as e:  # ValueError: also JSON errors
            raise _invalid_answer(f"{self._root}/{path}", repr(e)) from e

    def _response(self, method: str, path: str, body: Mapping[str, object] | None = None) -> httpx2.Response:
        return self._send(method, f"{self._root}/{path}", body)

    def _send(self, method: str, url: str, body: Mapping[str, object] | None = None) -> httpx2.Response:
        try:
            response = self._http.request(method, url, json=body)
        except httpx2.RequestError as e:
            fault = refusal(e)
            if fault is not None and not self._has_answered:
                raise CertificateRefused(f"Cannot connect to {self._service}: {words_of(fault)}.") from e
            raise ControlUnavailable(url=url, cause=str(e) or type(e).__name__) from e
        self._has_answered = True
        if not response.is_success:
            raise _problem(url, response)
        return response


def _wanted_seed(answer: Any) -> WantedSeed:
    return WantedSeed(
        table_id=_number(answer["table_id"], 1),
        name=f"{answer['database']}.{answer['table']}",
        reads=tuple(
            TableRead(ts=_number(read["ts"], 1), physical_ids=tuple(_number(i, 1) for i in read["physical_ids"]))
            for read in answer["reads"]
        ),
    )


def _bundle(a: dict[str, Any]) -> PushBundle:
    url, state = a["object_store"], a["state"]
    if not (isinstance(url, str) and url and isinstance(state, str)):
        raise ValueError("a push bundle without a bucket or a state")
    return PushBundle(
        object_store=url,
        state=state,
        session=a.get("credentials", {}).get("by") == "service",
        start_ts=int(a.get("start_ts") or 0),
        snapshot_refused=bool(a.get("snapshot_refused")),
        kind=str(a["kind"]),
        keyspace_id=None if a["keyspace_id"] is None else _number(a["keyspace_id"], 0),
        keyspace_name=a["keyspace_name"],
        range=KeyRange(bytes.fromhex(a["start_key"]), bytes.fromhex(a["end_key"])),
    )


def _comparison(a: dict[str, Any]) -> str:
    result = a["there"]
    if result not in ("same", "other", "nothing"):
        raise ValueError(f"unknown comparison result {result!r}")
    return str(result)


def _credentials(a: dict[str, Any]) -> PushCredentials:
    texts = [a[name] for name in ("access_key_id", "secret_access_key", "session_token", "kms_key_arn")]
    if not all(isinstance(text, str) for text in texts) or not all(texts[:3]) or not float(a["valid_s"]) > 0:
        raise ValueError("incomplete credentials")  # no value in the message: it would be logged
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


def _number(value: Any, least: int) -> int:
    """A whole number from `least` to 2^63 - 1, given as a number or as digits."""
    number = int(value)
    if isinstance(value, bool | float) or not least <= number <= _NUMBER_MAX:
        raise ValueError(f"{value!r} is not a whole number of at least {least}")
    return number


def _invalid_answer(url: str, cause: str) -> ControlUnavailable:
    return ControlUnavailable("the control plane sent an invalid answer", url=url, cause=cause)


def _refusals(kind: type[TiStreamError] = TiStreamError) -> dict[str, type[TiStreamError]]:
    """The final errors (a retry does not help), by code."""
    final = kind.kind in (ErrorKind.INVALID, ErrorKind.NOT_FOUND, ErrorKind.FENCED)
    errors = {kind.code: kind} if final else {}
    for each in kind.__subclasses__():
        if each.__module__ == TiStreamError.__module__:
            errors = {**_refusals(each), **errors}
    return errors


_REFUSALS = _refusals()


def _problem(url: str, response: httpx2.Response) -> TiStreamError:
    """The error for a response; RFC 9457 problem documents keep their text.

    An error is final only if the document has the service's code. A bare status may come from a proxy: a load balancer
    without a backend answers 404, others 401 or 403."""
    status = response.status_code
    try:
        body = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        body = {}
    facts = body if isinstance(body, dict) else {}
    detail = str(facts.get("detail") or f"the control plane answered {status}")
    refused = 400 <= status < 500 and status not in _RETRY_STATUS
    kind = (_REFUSALS.get(str(facts.get("code"))) if refused else None) or ControlUnavailable
    error = kind(detail, url=url, status=status)
    error.hint = str(facts.get("hint") or error.hint)
    return error


def retrying(
    action: Callable[[], T],
    *,
    stop: threading.Event,
    clock: Clock,
    rand: random.Random | None = None,
    notice: Callable[[TiStreamError], None] = lambda _: None,
) -> T | None:
    """The result of `action`, retried while it fails with kind RETRY; None when `stop` is set first. `notice` gets each
    error."""
    backoff = Backoff(first_s=0.05, max_s=2.0, rand=rand or random.Random())
    while not stop.is_set():
        try:
            return action()
        except TiStreamError as e:
            if e.kind is not ErrorKind.RETRY:
                raise
            notice(e)
        clock.wait(stop, backoff.next_s())
    return None
