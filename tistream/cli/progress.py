"""Progress of long work: a bar with ETA on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import time
from typing import Self, TextIO

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from tistream.cli.printable_console import PrintableConsole
from tistream.cli.terminal import clean, guard

_LINE_EVERY_S = 10.0


class Progress:
    """Call `update(done, total, note)` as often as you like."""

    def __init__(self, title: str, out: TextIO) -> None:
        self._title = title
        self._out = out
        self._last_line = time.monotonic()
        self._bar: RichProgress | None = None
        if out.isatty():
            self._bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}", markup=False),
                console=PrintableConsole(file=out),
            )
            self._task = self._bar.add_task(title, total=None, note="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
            guard()  # while it runs, what is printed goes to rich, which takes colours from any text
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, total: int, note: str = "") -> None:
        """`done` of `total`, and the current activity."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, note=note)
        elif (now := time.monotonic()) - self._last_line >= _LINE_EVERY_S:
            self._last_line = now
            print(f"{self._title}: {done}/{total} {clean(note)}".rstrip(), file=self._out, flush=True)
