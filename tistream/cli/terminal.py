"""What reaches a terminal: text without the characters that steer it.

Names, rows and errors come from a service, and a terminal obeys the escape sequences in them: it sets titles, hides
text, writes the clipboard. `guard` puts a filter before standard output and standard error where they are terminals, so
that whatever a command prints is written with those characters as escapes. A pipe or a file gets the exact text, except
for messages and tables, which are for people wherever they go.

The program's own sequences, colours and a status line, are written past the filter, to `unguarded`. So does rich by
itself; `PrintableConsole` filters what its consoles print.
"""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast


def clean(text: str) -> str:
    """The text in one line, without characters that steer a terminal: they are written as escapes."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def clean_lines(text: str) -> str:
    """The same of a text that may have lines and tabs."""
    return "\n".join("\t".join(map(clean, line.split("\t"))) for line in text.split("\n"))


def guard() -> None:
    """From now on nothing that is printed steers a terminal."""
    sys.stdout, sys.stderr = _guarded(sys.stdout), _guarded(sys.stderr)


def unguarded(out: TextIO) -> TextIO:
    """The stream behind the filter, if there is one: only for what the program composes itself."""
    return out.behind if isinstance(out, _Guarded) else out


def _guarded(out: TextIO) -> TextIO:
    is_terminal = out is not None and out.isatty()  # None: closed before the process began
    return cast(TextIO, _Guarded(out)) if is_terminal and not isinstance(out, _Guarded) else out


class _Guarded:
    """A text stream to a terminal, and its bytes as `buffer`."""

    def __init__(self, behind: TextIO) -> None:
        self.behind = behind
        self.rich_proxied_file = behind  #: where consoles of rich write
        self.buffer = _GuardedBytes(behind)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)

    def write(self, text: str) -> int:
        self.behind.write(_unsteering(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)


class _GuardedBytes:
    """The bytes of a text stream to a terminal: text in UTF-8, as all that commands write."""

    def __init__(self, behind: TextIO) -> None:
        self._behind = behind
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind.buffer, name)

    def write(self, data: bytes | memoryview) -> int:
        self._behind.write(_unsteering(self._decoder.decode(bytes(data))))
        return len(data)

    def flush(self) -> None:
        self._behind.flush()


def _unsteering(text: str) -> str:
    return clean_lines(text.replace("\r\n", "\n"))  # the line ends of CSV
