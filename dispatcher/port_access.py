"""Who may call the Flight port: services with an accepted service token, checked before anything of a call is parsed.

A call has the header `authorization: Bearer TOKEN`. The accepted tokens are those of the catalog
(`tistream.catalog.work.service_tokens`). They are read again by `refresh`, and when an unknown token is presented, at
most once in REREAD_S. Tokens are compared in constant time and never logged.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow.flight as fl
import structlog

from tistream.catalog.work.service_tokens import ServiceToken
from tistream.clock import Clock
from tistream.errors import ServiceRefused, TiStreamError
from tistream.feed.wire import as_flight
from tistream.runtime import metrics

log = structlog.get_logger(__name__)

REREAD_S = 1.0
_BEARER = "Bearer "


class AcceptedTokens:
    """The tokens that services may present. Thread-safe."""

    def __init__(self, read: Callable[[], tuple[ServiceToken, ...]], clock: Clock) -> None:
        """`read` returns those of the catalog."""
        self._read_tokens, self._clock = read, clock
        self._lock = threading.Lock()
        self._tokens: tuple[ServiceToken, ...] = ()
        self._read_at = float("-inf")

    def refresh(self) -> None:
        """Read them again."""
        with self._lock:
            self._read()

    def number(self, presented: str) -> int | None:
        """The number of the token with this secret; None when it is not accepted."""
        known = self._match(presented)
        if known is not None:
            return known
        with self._lock:
            if self._clock.monotonic() - self._read_at >= REREAD_S:
                self._read()
        return self._match(presented)

    def accepts(self, number: int) -> bool:
        """Whether the token with this number is still accepted."""
        return any(token.number == number for token in self._tokens)

    def _match(self, presented: str) -> int | None:
        given, number = presented.encode("utf-8", "surrogateescape"), None
        for token in self._tokens:
            if hmac.compare_digest(given, token.secret.encode()):
                number = token.number
        return number

    def _read(self) -> None:
        self._read_at = self._clock.monotonic()  # also when it fails: a caller must not make it read at will
        self._tokens = self._read_tokens()


class Caller(fl.ServerMiddleware):  # type: ignore[misc]  # pyarrow has no types
    """A call whose token was accepted."""

    def __init__(self, token: int) -> None:
        super().__init__()
        self.token = token  #: its number


class TokenCheck(fl.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """Refuses calls without an accepted token."""

    NAME = "token"

    def __init__(self, tokens: AcceptedTokens) -> None:
        super().__init__()
        self._tokens = tokens

    def start_call(self, info: Any, headers: Mapping[str, Sequence[str]]) -> Caller:
        try:
            return Caller(self._accepted(headers.get("authorization", ())))
        except TiStreamError as e:
            log.warning("refused a call of the Flight port", method=str(info.method), cause=str(e))
            raise as_flight(e) from None

    def _accepted(self, given: Sequence[str]) -> int:
        if len(given) != 1 or not given[0].startswith(_BEARER):
            raise refused("no_token", "the call has no service token")
        number = self._tokens.number(given[0].removeprefix(_BEARER))
        if number is None:
            raise refused("wrong_token", "the service token is not accepted")
        return number


def check_name(tls_name: str, peer_identity: bytes) -> None:
    """ServiceRefused unless the caller's certificate has this name; any, when it is empty."""
    if tls_name and peer_identity != tls_name.encode():
        raise refused("wrong_name", "the caller's certificate has another name", expected=tls_name, has=peer_identity)


def refused(reason: str, message: str, **facts: object) -> ServiceRefused:
    """The error of a refused call, counted."""
    metrics.FEED_REFUSED.labels(reason).inc()
    return ServiceRefused(message, **facts)
