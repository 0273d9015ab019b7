"""Status line and interruption of `tistream pull --follow`.

Ctrl-C while a page is being written takes effect after the page, so the command that resumes neither repeats nor skips
a row. A second Ctrl-C takes effect at once.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Self, TextIO

_EACH_S = 0.2
_OVER_S = 5.0  # rows per second are averaged over about so long
_CLEAR = "\r\x1b[K"


class StatusLine:
    """Rows, rows per second, lag and cursor, below the rows. `out` None: shows nothing."""

    def __init__(self, out: TextIO | None) -> None:
        self._out = out
        self._rows = 0
        self._rate = 0.0
        self._shown_at = self._at = time.monotonic()
        self._is_shown = False

    def show(self, rows: int, resolved_ts: int, cursor: str) -> None:
        """Count rows and show, a few times a second at most."""
        if self._out is None:
            return
        from tistream import ts as tso
        from tistream.clock import SystemClock

        now = time.monotonic()
        weight = min(1.0, (now - self._at) / _OVER_S)
        self._rate += weight * (rows / max(now - self._at, 1e-3) - self._rate)
        self._rows, self._at = self._rows + rows, now
        if self._is_shown and now - self._shown_at < _EACH_S:
            return
        lag_s = max(0, SystemClock().unix_ms() - tso.physical_ms(resolved_ts)) / 1000 if resolved_ts else 0.0
        text = f"{self._rows:,} lines · {self._rate:,.0f}/s · {lag_s:,.1f} s behind · {cursor}"
        self._out.write(f"{_CLEAR}{text[: _width() - 1]}")
        self._out.flush()
        self._shown_at, self._is_shown = now, True

    def clear(self) -> None:
        """Remove the line before rows are written."""
        if self._out is not None and self._is_shown:
            self._out.write(_CLEAR)
            self._out.flush()
            self._is_shown = False


class Whole:
    """Blocks that Ctrl-C does not interrupt: `with Whole() as whole: ... with whole: write(page)`."""

    def __init__(self) -> None:
        self._depth = 0
        self._asked = False
        self._before: signal.Handlers | object = None

    def __enter__(self) -> Self:
        if self._depth == 0 and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._interrupted)
        self._depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth == 0 and self._before is not None:
            signal.signal(signal.SIGINT, self._before)  # type: ignore[arg-type]
        if self._depth == 1 and self._asked and kind is None:
            raise KeyboardInterrupt

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self._depth < 2 or self._asked:
            raise KeyboardInterrupt
        self._asked = True


def _width() -> int:
    import shutil

    return shutil.get_terminal_size().columns
