"""Requests to one service, and their retries.

Transport errors and retryable answers (502, 503, 504) are retried with back-off, so a restart of the service is only a
pause. A service that never answered is given up sooner. Every other problem becomes the TiStreamError that the server
raised.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import httpx2
import orjson

from tistream.client.core.requests import FIRST_ANSWER_S, TIMEOUT_S, Retries, error_of, unreachable
from tistream.client.first_answer import FirstAnswer
from tistream.client.shared import ConnectionBase
from tistream.runtime.tls import ClientFiles


class Connection(ConnectionBase):
    """The requests of a client. Safe to use from several threads."""

    _http: httpx2.Client

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        retry_s: float = 30,
        first_answer_s: float = FIRST_ANSWER_S,
        sleep: Callable[[float], None] = time.sleep,
        transport: httpx2.BaseTransport | None = None,
        files: ClientFiles | None = None,
    ) -> None:
        """`key`: the API key, if required; `retry_s` bounds retries, and `first_answer_s` the wait for a service that
        never answered; `transport` replaces the network; `files`: of TLS, None = as the environment or the last login
        names them."""
        super().__init__(url, httpx2.Client, key, transport, files)
        self._retry_s = retry_s
        self._sleep = sleep
        self._first = FirstAnswer(self.url, self._http, min(retry_s, first_answer_s), first_answer_s, sleep)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._first.close()

    def get(self, path: str, **params: str) -> Any:
        """GET a JSON resource of the API by its path."""
        return orjson.loads(self.request("GET", path, params=params).content)

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Any request to the API by its path; the JSON answer, None when empty."""
        content = self.request(method, path, body=body).content
        return orjson.loads(content) if content else None

    def post(self, path: str, body: Mapping[str, Any] | None = None, **params: str) -> Any:
        """POST to a resource or an action of the API. Retries do not repeat it."""
        once = {"Idempotency-Key": secrets.token_hex(16)}
        return orjson.loads(self.request("POST", path, headers=once, body=body, params=params).content)

    def delete(self, path: str) -> Any:
        """DELETE a resource of the API."""
        return orjson.loads(self.request("DELETE", path).content)

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> httpx2.Response:
        """The whole answer, after retries. `timeout_s`: longest silence."""
        request = self._request(method, path, params=params, body=body, headers=headers, timeout_s=timeout_s)
        return self._answer(request, stream=False)

    @contextmanager
    def streaming(self, path: str, params: Mapping[str, str], *, silence_s: float) -> Iterator[httpx2.Response]:
        """The answer of a GET, after retries, with a body that is yet to be read."""
        request = self._request("GET", path, params=params, timeout_s=silence_s)
        answer = self._answer(request, stream=True)
        try:
            yield answer
        finally:
            answer.close()

    def _answer(self, request: httpx2.Request, *, stream: bool) -> httpx2.Response:
        self._first.wait()
        retries = Retries(time.monotonic() + self._retry_s)
        while True:
            headers: Mapping[str, str] | None = None
            try:
                response = self._http.send(request, stream=stream)
                if response.is_success:
                    return response
                headers, content = response.headers, response.read()
                error = error_of(response.status_code, content)
            except httpx2.TransportError as e:
                error = unreachable(self.url, e)
            self._sleep(retries.pause(error, headers, time.monotonic()))
