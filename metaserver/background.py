"""Runs one function in a thread of its own, for a loop that looks now and then whether it is done.

The thread ends with the process at the latest: nothing waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """The run of a function. `done` and `result` are for one other thread."""

    def __init__(self, function: Callable[[], T], name: str) -> None:
        self._answer: T | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(function,), name=name, daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> T:
        """What the function returned or raised, once it is done."""
        if self._error is not None:
            raise self._error
        assert self._answer is not None
        return self._answer

    def _run(self, function: Callable[[], T]) -> None:
        try:
            self._answer = function()
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            self._error = error
