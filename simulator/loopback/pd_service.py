"""PD's answers as gRPC methods: whatever is refused gets the status that PD has for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from typing import Any

import grpc

from simulator.loopback.core.pd import TSO, PdAnswers
from simulator.loopback.servers import Unary, streaming, unary
from tistream.errors import InvalidInput, TiStreamError


def pd_methods(
    pd: PdAnswers, lock: AbstractContextManager[Any], *, without: Collection[str] = ()
) -> dict[str, grpc.RpcMethodHandler]:
    """For a server; `lock` is held around every answer. `without`: methods that an older PD does not have."""

    def answered(method: str) -> Unary:
        return lambda request, context: _guarded(lambda: pd.answer(method, request), lock, context)

    def stamps(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        for request in requests:
            yield _guarded(lambda data=request: pd.timestamps(data), lock, context)  # type: ignore[misc]

    return {TSO: streaming(stamps), **{m: unary(answered(m)) for m in pd.methods if m not in without}}


def _guarded(answer: Callable[[], bytes], lock: AbstractContextManager[Any], context: Any) -> bytes:
    try:
        with lock:
            return answer()
    except InvalidInput as e:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, e.message)
    except TiStreamError as e:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(e))
    raise AssertionError("abort raises")
