"""Release numbers that can be compared: of this program, of processes, and of what the catalog demands.

In the catalog a release is one number, MAJOR * 1000000 + MINOR * 1000 + PATCH, so that SQL compares it: 0.2.1 is 2001.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Self

from tistream import __version__
from tistream.errors import ErrorKind, Fenced, InvalidInput, TiStreamError

_FORM = re.compile(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})(?!\d)")
_STEP = 1000


class ReleaseTooOld(Fenced):
    """A later release has changed the catalog to what this one cannot read."""

    code = "TS-1052"
    hint = "docs/compatibility.md has the order of an upgrade; the only way back is the catalog's backup."


class OlderProcesses(TiStreamError):
    """Processes of an earlier release still run."""

    kind = ErrorKind.RETRY
    code = "TS-1054"
    hint = "Replace or stop them, and run tistream upgrade again; docs/compatibility.md has the order."


class Release(NamedTuple):
    """MAJOR.MINOR.PATCH, ordered. What precedes a release (0.2.0rc1, 0.2.0.dev3) counts as that release."""

    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """The release of a version as packages write it. InvalidInput for anything else."""
        matched = _FORM.match(text)
        if matched is None:
            raise InvalidInput("a release is MAJOR.MINOR.PATCH", release=text)
        return cls(*map(int, matched.groups()))

    @classmethod
    def of_number(cls, number: int) -> Self:
        """The release that the catalog stores as this number."""
        rest, patch = divmod(number, _STEP)
        return cls(*divmod(rest, _STEP), patch)

    @property
    def number(self) -> int:
        """As the catalog stores it."""
        return (self.major * _STEP + self.minor) * _STEP + self.patch

    @property
    def neighbour(self) -> Release:
        """The lowest release that runs beside this one: the first of the minor version before. For the first minor
        version of a major one, any of the major version before."""
        return Release(self.major, self.minor - 1, 0) if self.minor else Release(max(self.major - 1, 0), 0, 0)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


THIS_RELEASE = Release.parse(__version__)
