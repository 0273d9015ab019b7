"""Reads what a changefeed has written to object storage once more, and compares it with the log.

    every data file, table by table, in the order in which it is read ──> again, behind later ones
    the commit timestamps of their rows ──┐
    those of the log's changes          ──┴─> lost, unknown

One file is in memory at a time, and 16 bytes for each row of the table; of the log 8 bytes for each change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from destinations.storage.core.names import number_of
from destinations.storage.core.order import Interval, ProblemRows, ReadRows, RowProblem, compare_commits, read_in_order
from destinations.storage.core.parts import Layout
from destinations.storage.files import Files
from tistream.model.arrays import U64

Name = tuple[str, str]
"""Database and table, as they are called in the log."""

_FILE = re.compile(r"([^/]+)/([^/]+)/(\d+)/(?:(\d+)/)?(?:(\d[-\d]+)/)?(CDC\d+\.\w+)")
_ESCAPE = re.compile(r"%([0-9A-F]{2})")
_NOTHING = np.zeros(0, np.uint64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRows:
    """What the destination must have."""

    above: int
    upto: int  #: the checkpoint
    named: Sequence[Interval]  #: by events
    without_key: frozenset[Name]  #: tables whose rows nothing identifies
    log: Mapping[Name, U64]  #: the commit timestamp of each change in (above, upto]


@dataclass(slots=True, kw_only=True)
class Reread:
    """What was found."""

    files: int = 0
    rows: int = 0
    found: list[ProblemRows] = field(default_factory=list)

    def count(self, kind: RowProblem) -> int:
        """Rows of a kind."""
        return sum(each.rows for each in self.found if each.kind is kind)

    @property
    def is_right(self) -> bool:
        """Whether every promise is kept."""
        return not any(each.kind.is_fault for each in self.found)


async def reread(files: Files, layout: Layout, read_rows: ReadRows, expected: ExpectedRows) -> Reread:
    """Read and compare. CorruptObject for a file that is none of the changefeed's protocol."""
    keys = [key async for key in files.list("", "")]
    parts = ordered_files(keys, layout)
    out = Reread()
    for name in sorted(parts.keys() | expected.log.keys()):
        commits = [_NOTHING]
        for part in parts.get(name, ()):
            read = [read_rows(key, data) for key in part if (data := await files.get(key)) is not None]
            out.files, out.rows = out.files + len(read), out.rows + sum(len(file.commit_ts) for file in read)
            faults, once = read_in_order(read, expected.named, has_key=name not in expected.without_key)
            out.found += faults
            commits.append(once)
        there = np.concatenate(commits)
        log = expected.log.get(name, _NOTHING)
        out.found += compare_commits(".".join(name), there, log, expected.above, expected.upto)
    return out


def ordered_files(keys: Sequence[str], layout: Layout) -> dict[Name, list[list[str]]]:
    """The data files of each table, partition by partition, by version, date and number. `layout`: what one number
    between version and file is, a year or a partition."""
    files: dict[Name, dict[str, list[tuple[tuple[int, str, int], str]]]] = {}
    for key in keys:
        parts = _FILE.fullmatch(key)
        if parts is None:
            continue
        db, table, version, partition, date, file = (part or "" for part in parts.groups())
        if not date and layout.date_separator == "year":
            partition, date = "", partition
        place = int(version), date, number_of(file)
        files.setdefault((_plain(db), _plain(table)), {}).setdefault(partition, []).append((place, key))
    return {name: [[key for _, key in sorted(part)] for _, part in sorted(of.items())] for name, of in files.items()}


def _plain(folder: str) -> str:
    """The name that a folder stands for."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), folder)
