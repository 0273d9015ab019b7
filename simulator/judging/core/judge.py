"""Judges what a reader got, against the promises and what was committed upstream.

    repeated    a version (key, commit_ts) was delivered twice on one cursor                                 P1
    late        a version at or below a resolved_ts up to which everything had been served                   P2
    fell        a resolved_ts lower than an earlier one, on any server                                       P2
    disorder    a version with a lower commit_ts than an earlier one                                         P3
    lost        a version committed upstream, at or below that resolved_ts, is missing                       P1
    foreign     a version that was never committed like this: key, op, value, value before, commit_ts        P1

Pure. One judge judges one cursor that is followed from the beginning of the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from tistream.codec.table_key import table_ids
from tistream.model.change import Op

EXAMPLES_MAX = 20

Version = tuple[bytes, int]  #: key, commit_ts
Content = tuple[int, bytes | None, bytes | None]  #: Op, value, and the value before


@dataclass(slots=True)
class Judge:
    """See the module."""

    name: str
    got: dict[Version, Content] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    resolved_ts: int = 0  #: the highest resolved_ts served
    complete_ts: int = 0  #: up to here a page has served everything
    last_commit_ts: int = 0

    def page(self, rows: pa.Table, resolved_ts: int, has_more: bool) -> None:
        """Take a page: its rows in the order served (columns key, op, commit_ts, value, old_value), its resolved_ts,
        and whether more rows follow up to that."""
        columns = [rows[name].to_pylist() for name in ("key", "op", "commit_ts", "value", "old_value")]
        for key, op, commit_ts, value, old_value in zip(*columns, strict=True):
            if commit_ts <= self.complete_ts:
                self._found("late", f"{key.hex()} at {commit_ts}, everything up to {self.complete_ts} had been served")
            if commit_ts < self.last_commit_ts:
                self._found("disorder", f"{key.hex()} at {commit_ts} after {self.last_commit_ts}")
            if (key, commit_ts) in self.got:
                self._found("repeated", f"{key.hex()} at {commit_ts}")
            self.got[key, commit_ts] = known((op, value, old_value))
            self.last_commit_ts = max(self.last_commit_ts, commit_ts)
        if resolved_ts < self.resolved_ts:
            self._found("fell", f"from {self.resolved_ts} to {resolved_ts}")
        self.resolved_ts = max(self.resolved_ts, resolved_ts)
        if not has_more:
            self.complete_ts = self.resolved_ts

    def compare(self, truth: Mapping[Version, Content]) -> None:
        """At the end: with everything that was committed upstream, as `known` has it."""
        for version, content in truth.items():
            if version[1] <= self.complete_ts and version not in self.got:
                self._found("lost", f"{version[0].hex()} at {version[1]}")
            elif version in self.got and self.got[version] != content:
                self._found("foreign", f"{version[0].hex()} at {version[1]}: another content")
        for version in self.got.keys() - truth.keys():
            self._found("foreign", f"{version[0].hex()} at {version[1]}")

    def broke(self, what: str) -> None:
        """A reader's request failed with an error that no server should return."""
        self._found("error", what)

    @property
    def held(self) -> bool:
        """Whether there are no findings."""
        return not self.counts

    def _found(self, kind: str, example: str) -> None:
        self.counts[kind] += 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(f"{self.name}: {kind}: {example}")


def known(content: Content) -> Content:
    """The part of a version that is compared: a delete has no value, whatever the upstream noted."""
    op, value, old_value = content
    return (int(op), None if op == Op.DELETE else value, old_value)


class Committed(Protocol):
    """A row that was committed upstream, as the simulator's workload records it."""

    @property
    def key(self) -> bytes: ...

    @property
    def commit_ts(self) -> int: ...

    @property
    def op(self) -> int: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def old_value(self) -> bytes | None: ...


def truth_of(rows: Iterable[Committed], start_ts: int, tables: Container[int]) -> dict[Version, Content]:
    """The changes committed in these tables above `start_ts`, as `compare` takes them. The delete of a row that did not
    exist is none."""
    all_rows = [row for row in rows if row.op != Op.DELETE or row.old_value is not None]
    ids = table_ids(pa.array([row.key for row in all_rows], pa.binary())).tolist()
    return {
        (row.key, row.commit_ts): known((row.op, row.value, row.old_value))
        for row, table_id in zip(all_rows, ids, strict=True)
        if table_id in tables and row.commit_ts > start_ts
    }
