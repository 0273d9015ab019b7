"""The changes that the recording has shown up to a line: versions by key, and what is open.

    Openings    the open prewrites and commits of one recorded registration
    History     every committed version, as the self-contained row that an opening scan sends

Relations:

- a commit becomes a version when its prewrite is known, which precedes it except during an opening scan;
- a prewrite of an opening scan never reopens what a live row has ended, because the scan may be slower;
- the same version from several registrations is one version.

Pure. A commit that never finds its prewrite is CorruptObject.
"""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict

from simulator.loopback.core.feed_wire import Row, committed
from tistream.errors import CorruptObject
from tistream.keyrange import KeyRange
from tistream.model.change import RowKind

_Lock = tuple[bytes, int]  # key, start_ts


class Openings:
    """The open prewrites and commits of one recorded registration."""

    def __init__(self) -> None:
        self._prewrites: dict[_Lock, Row] = {}
        self._commits: dict[_Lock, Row] = {}  # that came before their prewrite
        self._decided: set[_Lock] | None = set()  # during the opening scan

    def take(self, row: Row) -> Row | None:
        """The version that a row completes, as a self-contained row; None when it completes none."""
        lock = (row.key, row.start_ts)
        if row.kind == RowKind.COMMITTED:
            self._commits.pop(lock, None)
            self._prewrites.pop(lock, None)
            return row
        if row.kind == RowKind.PREWRITE:
            commit = self._commits.pop(lock, None)
            if commit is not None:
                return committed(row, commit)
            if self._decided is None or lock not in self._decided:
                self._prewrites[lock] = row
            return None
        prewrite = self._prewrites.pop(lock, None)
        if self._decided is not None:
            self._decided.add(lock)
        if row.kind != RowKind.COMMIT:
            return None
        if prewrite is not None:
            return committed(prewrite, row)
        if self._decided is None:
            raise CorruptObject("a recorded commit has no prewrite", key=row.key, commit_ts=row.commit_ts)
        self._commits[lock] = row
        return None

    def initialized(self) -> None:
        """The opening scan is complete."""
        self._decided = None
        for row in self._commits.values():
            raise CorruptObject("a recorded commit has no prewrite", key=row.key, commit_ts=row.commit_ts)

    def rows(self, key_range: KeyRange) -> list[Row]:
        """The open prewrites of a range, in any order."""
        return [r for rows in (self._prewrites, self._commits) for r in rows.values() if r.key in key_range]


class VersionHistory:
    """Every committed version that was seen."""

    def __init__(self) -> None:
        self._versions: SortedDict = SortedDict()  # key -> {commit_ts: Row}
        self.count = 0

    def add(self, row: Row) -> None:
        versions = self._versions.get(row.key)
        if versions is None:
            versions = self._versions[row.key] = {}
        if row.commit_ts not in versions:
            versions[row.commit_ts] = row
            self.count += 1

    def above(self, key_range: KeyRange, ts: int) -> Iterator[Row]:
        """The versions with a commit_ts above `ts`: by key, newest first."""
        end = key_range.end or None
        for key in self._versions.irange(key_range.start, end, inclusive=(True, False)):
            versions = self._versions[key]
            for commit_ts in sorted(versions, reverse=True):
                if commit_ts <= ts:
                    break
                yield versions[commit_ts]
