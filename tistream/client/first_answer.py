"""Waits for the first sign of a service, so that a wrong address is an error within seconds.

A request may take minutes, and a restart of the service is waited for; neither is wanted for an address at which
nothing ever answered. So a client first asks /livez, once; any answer will do, an error as well. The question is asked
in a thread, which may outlive the wait: a name server that is silent has no timeout here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import httpx2

from tistream.client.core.requests import ALIVE, Retries, unreachable


class FirstAnswer:
    """The first answer that a client gets. Safe to use from several threads."""

    def __init__(
        self, url: str, http: httpx2.Client, retry_s: float, wait_s: float, sleep: Callable[[float], None]
    ) -> None:
        """`retry_s`: how long refused connections are tried again; `wait_s`: how long anything is waited for."""
        self._url, self._http, self._retry_s, self._wait_s, self._sleep = url, http, retry_s, wait_s, sleep
        self._lock = threading.Lock()
        self._has_come = self._closes = False
        self._asking = 0  # threads

    def wait(self) -> None:
        """Return when the service has ever answered. StoreUnavailable when it does not."""
        if self._has_come:
            return
        done, errors = threading.Event(), list[Exception]()
        with self._lock:
            self._asking += 1
        threading.Thread(target=self._ask, args=(done, errors), name="tistream-first-answer", daemon=True).start()
        if not done.wait(self._wait_s):
            raise unreachable(self._url, f"nothing came within {self._wait_s:g} s")
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Close the connections, now or when the last question has ended."""
        with self._lock:
            self._closes = True
            if self._asking:
                return
        self._http.close()

    def _ask(self, done: threading.Event, errors: list[Exception]) -> None:
        try:
            self._try()
        except Exception as e:  # noqa: BLE001 - raised where it is waited for
            errors.append(e)
        finally:
            done.set()
            with self._lock:
                self._asking -= 1
                closes = self._closes and not self._asking
            if closes:
                self._http.close()

    def _try(self) -> None:
        retries = Retries(time.monotonic() + self._retry_s)
        while not self._has_come:
            try:
                self._http.get(self._url + ALIVE, timeout=self._wait_s)
                self._has_come = True
            except httpx2.TransportError as e:
                self._sleep(retries.pause(unreachable(self._url, e), None, time.monotonic()))
