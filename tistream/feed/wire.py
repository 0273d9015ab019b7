"""Messages of the feed between processes, on one Arrow Flight exchange.

    DoExchange(descriptor = FEED_COMMAND)    one per pair of processes, shared by all subscriptions between them
                                             header `authorization: Bearer SERVICE_TOKEN`

    DoAction(LOOK, body = encode_files)      a notification names these files: look for them now; no answer
                                             header as above

    sorter -> dispatcher      app_metadata alone: JSON
        {"do": "subscribe", "sub", "request", "batches", "bytes"}   `sub`: a number, never reused on this exchange
        {"do": "taken", "sub", "batches"}                           batches taken: opens the flow-control window
        {"do": "unsubscribe", "sub"}
        {"do": "live"}                                              the answer to each `idle`

    dispatcher -> sorter      app_metadata: u32 little-endian length, JSON head, then the body
        {"sub", "store", "incarnation", "seq", "cut_ts", "closes"}  a FeedBatch: rows as the record batch, regions as
                                                                    one Arrow IPC message in the body
        {"sub", "error": {"kind", "code", "class", "message", "facts"}, "over"}    the current error of a subscription;
                                                                    `over`: the subscription has ended
        {"sub", "fine"}                                             no error (sent first, and after an error)
        {"idle"}                                                    at least every IDLE_S: keepalive
        {"bye"}                                                     the exchange has ended

The flow-control window is counted per subscription: at most `batches` may be sent and not yet taken, and at most
`bytes`, which the last batch may exceed. So a slow task has a bounded backlog and does not delay others on the same
exchange. An invalid message raises InvalidInput and ends the exchange. The request names the task, its epoch and its
owner: another one gets Fenced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.flight as fl

from tistream import errors
from tistream.errors import ErrorKind, InvalidInput, ServiceRefused, TiStreamError
from tistream.feed.protocol import FeedBatch, FeedRequest
from tistream.ids import Position, Tenant
from tistream.keyrange import KeyRange
from tistream.model.change import REGIONS
from tistream.objectstore.layout import BatchKey

FEED_COMMAND = b"tistream-feed-2"
LOOK = "tistream-look"  #: an action: look for these files now; its body is that of `encode_files`
IDLE_S = 2.0  #: a server sends at least this often, and is answered
SILENT_S = 10.0  #: a peer that sends nothing for this long is considered dead
COMMAND_BYTES_MAX = 16 << 20
FILES_MAX = 10_000  #: of one `tistream-look`


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """Open a subscription from the positions of the request on."""

    sub: int
    request: FeedRequest
    batches: int  #: window: sent and not taken, at most
    nbytes: int  #: the same in bytes; the last batch may exceed it


@dataclass(frozen=True, slots=True)
class Taken:
    """So many more batches were taken."""

    sub: int
    batches: int


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    sub: int


class Live:
    """The answer to `idle`."""


Command = Subscribe | Taken | Unsubscribe | Live


class Fine:
    """A subscription has no error."""


@dataclass(frozen=True, slots=True)
class Over:
    """A subscription has ended."""

    error: TiStreamError


FINE = Fine()
Notification = FeedBatch | TiStreamError | Fine | Over  #: of one subscription


def encode_command(command: Command) -> bytes:
    match command:
        case Subscribe(sub=sub, request=request, batches=batches, nbytes=nbytes):
            message = {
                "do": "subscribe",
                "sub": sub,
                "batches": batches,
                "bytes": nbytes,
                "request": _request_json(request),
            }
        case Taken(sub=sub, batches=batches):
            message = {"do": "taken", "sub": sub, "batches": batches}
        case Unsubscribe(sub=sub):
            message = {"do": "unsubscribe", "sub": sub}
        case Live():
            message = {"do": "live"}
    return orjson.dumps(message)


def decode_command(text: memoryview) -> Command:
    """The reverse of `encode_command`. InvalidInput when it is malformed."""
    try:
        if len(text) > COMMAND_BYTES_MAX:
            raise ValueError("too long")
        d = orjson.loads(text)
        match d["do"]:
            case "subscribe":
                return Subscribe(
                    sub=_number(d["sub"]),
                    request=_request(d["request"]),
                    batches=_number(d["batches"]),
                    nbytes=_number(d["bytes"]),
                )
            case "taken":
                return Taken(_number(d["sub"]), _number(d["batches"]))
            case "unsubscribe":
                return Unsubscribe(_number(d["sub"]))
            case "live":
                return Live()
            case other:
                raise ValueError(f"unknown command {other!r:.40}")
    except (ValueError, TypeError, KeyError, TiStreamError) as e:
        raise InvalidInput(f"invalid feed command: {type(e).__name__}: {e}") from e


def encode_batch(sub: int, batch: FeedBatch) -> bytes:
    head = {
        "sub": sub,
        "store": batch.store_id,
        "incarnation": batch.incarnation,
        "seq": batch.seq,
        "cut_ts": batch.cut_ts,
        "closes": batch.closes,
    }
    return _message(head, memoryview(batch.regions.serialize()))


def encode_error(sub: int, error: TiStreamError, *, over: bool) -> bytes:
    """The current error of a subscription, or with `over` why it has ended."""
    return _message({"sub": sub, "error": error_text(error), "over": over})


def encode_fine(sub: int) -> bytes:
    return _message({"sub": sub, "fine": True})


def encode_idle() -> bytes:
    return _message({"idle": True})


def encode_bye() -> bytes:
    return _message({"bye": True})


def decode_notification(rows: pa.RecordBatch | None, metadata: pa.Buffer | None) -> tuple[int, Notification] | None:
    """A message of the dispatcher and its subscription; None for `idle`. Raises EOFError for `bye`, InvalidInput when
    it is malformed."""
    try:
        if metadata is None:
            raise ValueError("no metadata")
        view = memoryview(metadata)
        size = int.from_bytes(view[:4], "little")
        head = orjson.loads(view[4 : 4 + size])
        if "idle" in head:
            return None
        if "bye" in head:
            raise EOFError("the dispatcher has ended the exchange")
        sub = _number(head["sub"])
        if "fine" in head:
            return sub, FINE
        if "error" in head:
            error = decode_error(head["error"])
            return sub, Over(error) if head["over"] else error
        if rows is None:
            raise ValueError("a batch without rows")
        return sub, FeedBatch(
            store_id=_number(head["store"]),
            incarnation=_number(head["incarnation"]),
            seq=_number(head["seq"]),
            cut_ts=_number(head["cut_ts"]),
            rows=rows,
            regions=pa.ipc.read_record_batch(metadata.slice(4 + size), REGIONS),
            closes=bool(head["closes"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OSError, pa.ArrowException) as e:
        raise InvalidInput(f"invalid feed message: {type(e).__name__}: {e}") from e


def error_text(error: TiStreamError) -> dict[str, object]:
    """An error as JSON; facts become text."""
    facts = {name: value.hex() if isinstance(value, bytes) else str(value) for name, value in error.facts.items()}
    name = type(error).__name__
    return {"kind": error.kind, "code": error.code, "class": name, "message": error.message, "facts": facts}


def decode_error(message: Mapping[str, Any]) -> TiStreamError:
    """The reverse of `error_text`; an unknown class becomes a TiStreamError."""
    kind = getattr(errors, message["class"], None)
    if not (isinstance(kind, type) and issubclass(kind, TiStreamError)):
        kind = TiStreamError
    make: Callable[..., TiStreamError] = kind
    error = make(str(message["message"]), **{str(name): str(value) for name, value in message["facts"].items()})
    error.kind, error.code = ErrorKind(message["kind"]), str(message["code"])
    return error


def call_options(token: str, timeout_s: float | None = None) -> fl.FlightCallOptions:
    """Of a call that presents the service token."""
    headers = [(b"authorization", b"Bearer " + token.encode())]
    return fl.FlightCallOptions(headers=headers, timeout=timeout_s)


def encode_files(files: Sequence[BatchKey]) -> bytes:
    """The body of LOOK."""
    return orjson.dumps(
        [[k.tenant.cluster_id, k.tenant.tenant_id, k.store_id, k.incarnation, k.seq] for k in files[:FILES_MAX]]
    )


def decode_files(body: memoryview) -> list[BatchKey]:
    """The reverse of `encode_files`. InvalidInput when it is malformed."""
    try:
        if len(body) > COMMAND_BYTES_MAX:
            raise ValueError("too long")
        return [
            BatchKey(tenant=Tenant(_number(c), _number(t)), store_id=_number(s), incarnation=_number(i), seq=_number(n))
            for c, t, s, i, n in orjson.loads(body)[:FILES_MAX]
        ]
    except (ValueError, TypeError, KeyError) as e:
        raise InvalidInput(f"invalid list of files: {type(e).__name__}: {e}") from e


def as_flight(error: TiStreamError) -> fl.FlightError:
    """An error of a whole call, which `of_flight` reads."""
    text = orjson.dumps(error_text(error))
    if isinstance(error, ServiceRefused):
        return fl.FlightUnauthenticatedError(str(error), text)
    kind = fl.FlightUnavailableError if error.kind is ErrorKind.RETRY else fl.FlightServerError
    return kind(str(error), text)


def of_flight(error: Exception) -> TiStreamError | None:
    """The error that the dispatcher has raised for the whole call; None when this one is not its own."""
    text = getattr(error, "extra_info", b"")
    return decode_error(orjson.loads(text)) if text else None


def _message(head: Mapping[str, object], body: memoryview | bytes = b"") -> bytes:
    text = orjson.dumps(head)
    return b"".join((len(text).to_bytes(4, "little"), text, body))


def _request_json(request: FeedRequest) -> dict[str, object]:
    return {
        "cluster": request.tenant.cluster_id,
        "tenant": request.tenant.tenant_id,
        "store": request.store_id,
        "task": request.task_id,
        "epoch": request.epoch,
        "worker": request.worker_id,
        "start_key": request.range.start.hex(),
        "end_key": request.range.end.hex(),
        "positions": [[i, p.seq, p.closed] for i, p in sorted(request.positions.items())],
    }


def _request(d: Mapping[str, Any]) -> FeedRequest:
    return FeedRequest(
        tenant=Tenant(_number(d["cluster"]), _number(d["tenant"])),
        store_id=_number(d["store"]),
        task_id=_number(d["task"]),
        epoch=_number(d["epoch"]),
        worker_id=str(d["worker"]),
        range=KeyRange(bytes.fromhex(d["start_key"]), bytes.fromhex(d["end_key"])),
        positions={_number(i): Position(seq=_number(seq), closed=bool(closed)) for i, seq, closed in d["positions"]},
    )


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"not a number: {value!r:.40}")
    return value
