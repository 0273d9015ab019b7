"""A meter for `tistream.objectstore.metered` that keeps what it is told, so that a test can ask for exact numbers."""

from __future__ import annotations

import threading
from collections import Counter


class RequestTally:
    """Requests by (operation, kind, outcome). Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, str]] = Counter()

    def note(self, operation: str, kind: str, outcome: str, size: int, seconds: float) -> None:
        assert size >= 0
        assert seconds >= 0
        with self._lock:
            self._requests[operation, kind, outcome] += 1

    def of(self, operation: str, kind: str | None = None, outcome: str | None = None) -> int:
        """How many there were; None stands for any."""
        with self._lock:
            return sum(
                count
                for (op, k, out), count in self._requests.items()
                if op == operation and kind in (None, k) and outcome in (None, out)
            )

    def seen(self) -> dict[tuple[str, str, str], int]:
        """All of it."""
        with self._lock:
            return dict(self._requests)
