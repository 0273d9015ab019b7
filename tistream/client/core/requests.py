"""Requests and answers of both clients: paths, parameters, problems, retries (pure).

`Client` and `AsyncClient` differ only in how they wait; decisions are made here, in `walk` and in `streams`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict
from urllib.parse import urlsplit, urlunsplit

import orjson

from tistream import errors
from tistream.errors import InvalidInput, NotFound, RateLimited, StillInFlight, StoreUnavailable, TiStreamError
from tistream.ids import name_in_path
from tistream.runtime.tls_faults import CertificateRefused, refusal, words_of

if TYPE_CHECKING:
    import pyarrow as pa

TIMEOUT_S = 120  #: for an answer; the first page after a start may wait for compilation
FIRST_ANSWER_S = 10.0  #: for the first sign of a service, also of one on a busy machine
ALIVE = "/livez"  #: what is asked for that sign: any answer will do
WAIT_S = 10  #: of a long poll
_RETRY_FIRST_S = 0.1
_RETRY_MAX_S = 2.0

#: errors with a class of their own, by code
_BY_CODE: dict[str, type[TiStreamError]] = {
    error.code: error
    for error in (
        InvalidInput, errors.CursorInvalid, errors.FilterInvalid, errors.TenantDeleted,
        errors.TsOutOfRange, errors.TsExpired, NotFound, errors.AheadOfWatermark,
        RateLimited, errors.TooManyOpen, errors.StateForbids, errors.ChangedMeanwhile,
        errors.SeedNeeded, errors.NotConvertible, errors.Unauthenticated, errors.NotAllowed, errors.AnotherRequest,
        StillInFlight, errors.BeyondQuarantine, errors.TableRenamed, errors.Fenced,
        errors.SnapshotLost, errors.StateNotKnown, errors.CertificateNeeded,
    )
}  # fmt: skip


Moment = str | int  #: a TSO, a time, `earliest`, `latest`, or a span such as `-15m`


class ChangeOptions(TypedDict, total=False):
    """What a pull delivers. It starts at `cursor`, else with a `snapshot`, else at `start`, else at `earliest`."""

    start: Moment | None
    end: Moment | None
    cursor: str | None
    snapshot: bool  #: first the rows as of `as_of` (else the watermark), then the changes above it
    as_of: Moment | None
    schema_ts: Moment | None  #: Arrow of one table: the columns that it has at this timestamp, on every page
    limit: int | None  #: rows of a page
    tables: str | Sequence[str] | None  #: this and the following: filters, see docs/filters.md
    columns: str | Sequence[str] | None
    ops: str | Sequence[str] | None
    where: str | None
    changed: str | Sequence[str] | None
    event_filters: str | Sequence[Mapping[str, object]] | None


@dataclass(frozen=True, slots=True)
class Target:
    """A tenant, one of its databases, or one of its tables; or the keys and values of a raw or txn tenant."""

    cluster_id: int
    tenant_id: int
    database: str | None = None
    table: str | None = None
    kv: bool = False

    @property
    def path(self) -> str:
        """Of the resource."""
        path = f"/v1/clusters/{self.cluster_id}/tenants/{self.tenant_id}"
        if self.database is not None:
            path += f"/databases/{name_in_path(self.database)}"
        if self.table is not None:
            path += f"/tables/{name_in_path(self.table)}"
        return f"{path}/kv" if self.kv else path

    def __str__(self) -> str:
        name = ".".join(name for name in (self.database, self.table) if name is not None)
        return f"{self.cluster_id}/{self.tenant_id} {name}".rstrip()


def table_names(name: str) -> tuple[str, str]:
    """(database, table) of "database.table"."""
    database, dot, table = name.partition(".")
    if not (database and dot and table):
        raise InvalidInput(f"{name!r} is not a table: write database.table.", table=name)
    return database, table


#: the arguments of a pull that are filters, named as in the query
FILTERS = ("tables", "columns", "ops", "where", "changed", "event_filters")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One answer of a pull."""

    content: bytes = field(repr=False)
    next_cursor: str
    resolved_ts: int
    has_more: bool
    quarantined: int = 0  #: rows of this page that the server could not decode
    end_ts: int | None = None  #: the request's `end_ts` as a TSO
    snapshot_ts: int | None = None  #: the page holds rows as of this timestamp
    in_snapshot: bool = False  #: more rows of the snapshot follow
    open_transaction_ts: int | None = None  #: the page has only a part of the changes of this commit_ts

    def lines(self) -> list[bytes]:
        """The messages of a line format. (A CSV record may contain line ends.)"""
        return self.content.splitlines()

    def changes(self) -> list[dict[str, Any]]:
        """The changes of an ndjson answer, see docs/formats/messages.md. Those of keys have an `op` and no `type`."""
        lines = [orjson.loads(line) for line in self.lines()]
        return [line for line in lines if line.get("type") != "resolved"]

    def check_complete(self) -> None:
        """TiStreamError when the server could not decode some rows."""
        if self.quarantined:
            raise TiStreamError(f"{self.quarantined} rows cannot be decoded.", upto=self.next_cursor)

    def arrow(self) -> pa.Table:
        """The rows of an Arrow answer."""
        import pyarrow as pa

        return pa.ipc.open_stream(self.content).read_all()

    def is_last(self, *, follow: bool) -> bool:
        """Whether a pull ends with this page: at `end_ts`, or at the watermark if not following."""
        return not self.has_more and (not follow or (self.end_ts is not None and self.resolved_ts >= self.end_ts))


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantState:
    """What `GET /v1/tenants` says of a tenant."""

    cluster_id: int
    tenant_id: int
    state: str
    resolved_ts: int | None  #: None before the first watermark
    facts: Mapping[str, Any] = field(repr=False)  #: the whole item


def page_of(content: bytes, headers: Mapping[str, str]) -> Page:
    """The page of an answer."""
    return Page(
        content=content,
        next_cursor=headers["TiStream-Next-Cursor"],
        resolved_ts=int(headers["TiStream-Resolved-Ts"]),
        has_more=headers["TiStream-Has-More"] == "true",
        quarantined=int(headers.get("TiStream-Quarantined", "0")),
        end_ts=int(end) if (end := headers.get("TiStream-End-Ts")) else None,
        snapshot_ts=int(ts) if (ts := headers.get("TiStream-Snapshot-Ts")) else None,
        in_snapshot=headers.get("TiStream-Snapshot-Complete") == "false",
        open_transaction_ts=int(ts) if (ts := headers.get("TiStream-Open-Transaction-Ts")) else None,
    )


def tenant_of(item: Mapping[str, Any]) -> TenantState:
    """An item of `GET /v1/tenants`."""
    resolved = item.get("resolved_ts")
    return TenantState(
        cluster_id=int(item["cluster_id"]),
        tenant_id=int(item["tenant_id"]),
        state=str(item["state"]),
        resolved_ts=int(resolved) if resolved else None,
        facts=item,
    )


def check_arguments(options: ChangeOptions) -> None:
    """TypeError for an unknown argument of a pull."""
    if unknown := options.keys() - ChangeOptions.__annotations__.keys():
        raise TypeError(f"unexpected arguments of a pull: {', '.join(sorted(unknown))}")


def pull_params(asked: ChangeOptions, format: str, options: Mapping[str, str] | None) -> dict[str, str]:
    """The query of a pull."""
    params = {**(options or {}), "format": format}
    cursor, start = asked.get("cursor"), asked.get("start")
    begins: dict[str, Moment | None] = {"start_ts": "earliest" if start is None else start}
    if asked.get("snapshot"):
        begins = {"snapshot": "true", "as_of": asked.get("as_of"), "start_ts": start}
    if cursor is not None:
        begins = {"cursor": cursor}
    filters = {name: filter_text(value) for name in FILTERS if (value := asked.get(name)) is not None}
    more = {"end_ts": asked.get("end"), "schema_ts": asked.get("schema_ts"), "limit": asked.get("limit")}
    return params | filters | given({**begins, **more})


def rows_params(
    as_of: Moment, columns: str | None, where: str | None, wait_s: float, *, continued: bool
) -> dict[str, str]:
    """The query of rows as of a moment, but for their format."""
    params = given({"as_of": as_of, "columns": columns, "where": where})
    return params | continued_params(continued) | wait_params(wait_s)


def continued_params(continued: bool) -> dict[str, str]:
    """The query of an answer as of a moment from which changes continue."""
    return {"continued": "true"} if continued else {}


def truncated(target: Target, cause: Exception) -> StoreUnavailable:
    """The error of rows that break off."""
    return StoreUnavailable(f"Rows of {target} were truncated: {cause or type(cause).__name__}.")


def wait_params(wait_s: float) -> dict[str, str]:
    """The query of an answer that may wait."""
    return {"wait": str(wait_s)} if wait_s else {}


def filter_text(value: object) -> str:
    """A filter as the query has it: a list of rules between commas, event filters as JSON."""
    if isinstance(value, str):
        return value
    items = list(value) if isinstance(value, Iterable) else []
    if all(isinstance(item, str) for item in items):
        return ",".join(items)
    return orjson.dumps([dict(item) for item in items]).decode()


def given(params: Mapping[str, str | int | None]) -> dict[str, str]:
    """The parameters that are not None, as text."""
    return {name: str(value) for name, value in params.items() if value is not None}


_BY_STATUS: dict[int, type[TiStreamError]] = {404: NotFound, 429: RateLimited}


def error_of(status: int, content: bytes) -> TiStreamError:
    """The error of an answer: the server's own for a problem document."""
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        body = None
    if not isinstance(body, dict):
        body = {"detail": content.decode(errors="replace")[:200]}
    return problem_error({**body, "status": status})


def shown_url(url: str) -> str:
    """An address without the name and password that it may hold."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


class ServiceUnavailable(StoreUnavailable):
    """The service did not answer."""

    code = "TS-1042"
    hint = "Check that it runs, and its address: --url, TISTREAM_URL, or that of the last tistream login."


def unreachable(url: str, cause: Exception | str) -> ServiceUnavailable | CertificateRefused:
    """The error of a service that does not answer, or of certificates that do not fit: that one is not retried."""
    fault = None if isinstance(cause, str) else refusal(cause)
    if fault is not None:
        return CertificateRefused(f"Cannot connect to {shown_url(url)}: {words_of(fault)}.")
    said = str(cause) or type(cause).__name__
    if "disconnected without" in said:  # a server tells nothing more of a handshake that it ends
        said += " It may speak TLS" if url.startswith("http://") else " It may not accept the client's certificate"
    return ServiceUnavailable(f"{shown_url(url)} does not answer: {said.rstrip('.')}.")


def problem_error(body: Mapping[str, Any]) -> TiStreamError:
    """The error of a problem document."""
    status = int(body["status"])
    text = str(body.get("detail") or body.get("title") or f"HTTP {status}")
    if status in (502, 503, 504):  # of the service, which says what is away, or of a proxy before it
        away = ServiceUnavailable(text)
        away.code, away.hint = str(body.get("code") or away.code), str(body.get("hint") or "")
        return away
    by_status = _BY_STATUS.get(status, InvalidInput if status < 500 else TiStreamError)
    error = _BY_CODE.get(str(body.get("code")), by_status)(text, **_facts(body), status=status)
    error.hint = str(body.get("hint") or "")
    return error


def _facts(body: Mapping[str, Any]) -> dict[str, object]:
    """The facts of a problem that do not collide with attributes of errors."""
    facts = body.get("facts")
    taken = {"self", "message", "facts", "status"}
    return {
        name: value
        for name, value in (facts.items() if isinstance(facts, dict) else ())
        if name not in taken and not hasattr(TiStreamError, name)
    }


class Retries:
    """Retries of a request with growing pauses until `deadline`."""

    def __init__(self, deadline: float) -> None:
        """`deadline`: on the clock of the `now` of `pause`."""
        self._deadline = deadline
        self._pause = _RETRY_FIRST_S

    def pause(self, error: TiStreamError, headers: Mapping[str, str] | None, now: float) -> float:
        """Seconds to wait before a retry. Raises `error` when there is none."""
        if isinstance(error, RateLimited) and headers is not None:
            self._pause = max(self._pause, float(headers.get("Retry-After", self._pause)))
        again = isinstance(error, StoreUnavailable | StillInFlight | RateLimited)
        if not again or now + self._pause > self._deadline:
            raise error
        pause, self._pause = self._pause, min(self._pause * 2, _RETRY_MAX_S)
        return pause


def new_tenant(
    cluster_id: int, tenant_id: int, kind: str, keyspace: int | str | None, start_key: bytes, end_key: bytes
) -> dict[str, Any]:
    """The body of a registration."""
    given = {"keyspace": None if keyspace is None else str(keyspace), "start_key": start_key.hex()}
    given["end_key"] = end_key.hex()
    return {"cluster_id": cluster_id, "tenant_id": tenant_id, "kind": kind, **{k: v for k, v in given.items() if v}}
