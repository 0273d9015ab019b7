"""Scenario files for the sorter: directives and the state that must follow, as plain text.

    # a commit overtakes its prewrite          a comment belongs to the block below it
    task [a,c) start_ts=80
    file store=2 cut=106
      region 3 [b,c) checkpoint=80 resolved=105
        commit b@90 100
    ----
    watermark none: hole [a,b)
    waits b@90 -> 100

Blocks are divided by empty lines; what follows `----` is the expected output of the block. Directives:

    task RANGE start_ts=N            a new task; must come first
    file store=N [life=N] [cut=N]    the next file of that store; `region` lines and their rows follow, indented
    again                            the last file comes a second time
    gap store=N                      a file is skipped: the next one of that store is handed over in its place
    give up store=N [life=N]         an operator has rejected that life
    closes store=N [life=N]          that life of the store's pusher has ended
    flush                            write out what can be
    flush, reply lost                ... and never learn whether it arrived
    restart                          throw the task away and go on from a snapshot of now
    restart from an old snapshot     ... from the snapshot of the last `save`
    save                             take that snapshot

    region ID RANGE [version=N] [open=N] [ready=N] checkpoint=N resolved=N
    prewrite KEY@START VALUE | delete KEY@START | fake KEY@START      [gen=N] [old=VALUE]
    commit KEY@START COMMIT [value=V] [op=delete] | committed KEY@START COMMIT VALUE | rollback KEY@START

Every block also runs through the dict-based oracle, as long as there was no restart; both must write the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from sorter.core.contradictions import found_by
from sorter.core.task_core import CoreSnapshot, TaskCore
from tests.kit.routed import routed
from tests.kit.sorter_oracle import (
    DELETE,
    PUT,
    C,
    D,
    Mark,
    OracleBroken,
    OracleContradicted,
    OracleSorter,
    P,
    R,
    Row,
    Served,
)
from tests.kit.sorter_states import SnapshotFiles, tables_of
from tests.kit.sorter_world import File, feed_batch, served
from tistream.errors import FeedGap, PromiseContradicted, UpstreamContractViolated
from tistream.keyrange import KeyRange
from tistream.model.change import COMMITTED

DIVIDER = "----"
_KINDS = {"prewrite": P, "delete": P, "fake": P, "commit": C, "committed": D, "rollback": R}


def run_scenario(text: str) -> str:
    """The same text with the output that the sorter gives in place of the expected one."""
    run = _Run()
    blocks = []
    for block in text.strip("\n").split("\n\n"):
        directives = block.split(f"\n{DIVIDER}")[0]
        lines = [line for line in directives.split("\n") if not line.startswith("#")]
        output = list(run.play(lines))
        blocks.append("\n".join([directives, DIVIDER, *output]))
    return "\n\n".join(blocks) + "\n"


@dataclass
class _Run:
    core: TaskCore | None = None
    oracle: OracleSorter | None = None
    seqs: dict[tuple[int, int], int] = field(default_factory=dict)
    last: File | None = None
    saved: CoreSnapshot | None = None
    log: list[pa.Table] = field(default_factory=list)
    files: SnapshotFiles = field(default_factory=SnapshotFiles)

    def play(self, lines: list[str]) -> Iterator[str]:
        """The output of one block."""
        while lines:
            words = lines.pop(0).split()
            body = []
            while lines and lines[0].startswith(" "):
                body.append(lines.pop(0).split())
            yield from self._do(words, body)
        yield from self._state()

    def _do(self, words: list[str], body: list[list[str]]) -> Iterator[str]:
        options = _options(words)
        match words[0]:
            case "task":
                range_, start_ts = _range(words[1]), options["start_ts"]
                self.core = self.files.bucket.core(1, range_, int(start_ts), int(start_ts))
                self.oracle = OracleSorter(range_.start, range_.end, int(start_ts))
            case "file":
                yield from self._hand_over(self._file(options, body))
            case "again":
                assert self.last is not None
                yield from self._hand_over(self.last, repeated=True)
            case "gap":
                yield from self._gap(options)
            case "closes":
                yield from self._closes(options)
            case "give":
                self._core.end_incarnation(int(options["store"]), int(options.get("life", 1)))
                self._core.check()
                self.oracle = None
            case "flush,":
                w = self._core.pending()
                assert w is not None, "nothing to write"
                yield f"perhaps written up to {w}: {self._core.take(w).rows} rows"
            case "flush":
                yield from self._flush()
            case "save":
                self.files.save(self._core)
                self.saved = self.files.load()
            case "restart":
                self._restart(self.saved if "old" in words else self._core.snapshot())
            case _:
                raise ValueError(f"unknown directive: {' '.join(words)}")

    @property
    def _core(self) -> TaskCore:
        assert self.core is not None, "the first directive must be `task`"
        return self.core

    def _file(self, options: dict[str, str], body: list[list[str]]) -> File:
        at = int(options["store"]), int(options.get("life", 1))
        self.seqs[at] = self.seqs.get(at, 0) + 1
        marks: list[Mark] = []
        rows: list[Row] = []
        for words in body:
            if words[0] == "region":
                marks.append(_mark(words))
            else:
                rows.append(_row(words, len(marks) - 1))
        cut_ts = int(options.get("cut", max((m.resolved_ts for m in marks), default=0)))
        return File(
            store_id=at[0], incarnation=at[1], seq=self.seqs[at], cut_ts=cut_ts, rows=tuple(rows), marks=tuple(marks)
        )

    def _hand_over(self, file: File, *, repeated: bool = False) -> Iterator[str]:
        self.last = file
        broken = False
        good_ts = None
        try:
            batch = routed(feed_batch(file), self._core.range)
            for effect in self._core.handle(batch, pa.concat_tables([COMMITTED.empty_table(), *self.log])):
                u = effect.undecided
                yield f"resubscribe {u.key.decode()}@{u.start_ts} -> {u.commit_ts}"
        except UpstreamContractViolated as e:
            broken = True
            f = e.facts
            at = f"region {f['region_id']} store {f['store_id']} file {f['incarnation']}/{f['seq']}"
            yield f"broken promise: {_text(f['key'])}@{f['start_ts']} -> {f['commit_ts']} from {at}"
        except PromiseContradicted as e:
            good_ts = found_by(e).good_ts
            self.seqs[file.store_id, file.incarnation] -= 1
            for row in found_by(e).sample:
                yield (
                    f"contradiction: {_text(row.key)}@{row.start_ts} -> {row.commit_ts} of region {row.region_id} "
                    f"after {row.promised_ts} was promised, good up to {good_ts}"
                )
            self._core.check()
        else:
            self._core.check()
        if self.oracle is None or repeated:
            return
        try:
            self.oracle.file(file.store_id, file.incarnation, file.cut_ts, file.rows, file.marks)
        except OracleContradicted as contradiction:
            self._same(contradiction.good_ts, good_ts)
        except OracleBroken:
            assert broken, "the oracle finds a broken promise, the sorter does not"
            self.oracle = None
        else:
            assert not broken, "the sorter finds a broken promise, the oracle does not"
            assert good_ts is None, "the sorter finds a contradiction, the oracle does not"

    def _same(self, expected: int, good_ts: int | None) -> None:
        assert good_ts == expected, "the oracle finds another contradiction than the sorter"

    def _gap(self, options: dict[str, str]) -> Iterator[str]:
        file = self._file(options, [])
        try:
            self._core.handle(routed(feed_batch(File(**{**file.__dict__, "seq": file.seq + 1})), self._core.range))
        except FeedGap as e:
            yield f"gap: store {e.facts['store']} expected {e.facts['expected']}, found {e.facts['found']}"
        self.seqs[file.store_id, file.incarnation] -= 1

    def _closes(self, options: dict[str, str]) -> Iterator[str]:
        at = int(options["store"]), int(options.get("life", 1))
        seq = self.seqs.get(at, 0)
        closing = File(store_id=at[0], incarnation=at[1], seq=seq, cut_ts=0, rows=(), marks=(), closes=True)
        self._core.handle(feed_batch(closing))
        yield f"closed store {at[0]} life {at[1]} at {seq}"

    def _flush(self) -> Iterator[str]:
        w = self._core.pending()
        if w is None:
            yield "nothing to write"
            return
        written = self._core.take(w).table()
        self.log.append(written)
        rows = served(written)
        if self.oracle is not None:
            assert self.oracle.flush() == rows, "the oracle writes other rows"
            assert self.oracle.durable_ts == w, "the oracle has another watermark"
        self._core.flushed(w)
        yield f"written up to {w}"
        yield from (f"  {_served(row)}" for row in rows)

    def _restart(self, snapshot: CoreSnapshot | None) -> None:
        assert snapshot is not None, "there is no snapshot yet"
        old = self._core
        self.core = self.files.bucket.core(1, old.range, old.start_ts, old.durable_ts)
        self.core.restore(snapshot, snapshot.positions)
        self.core.check()
        self.oracle = None
        lives = {(store, life): p.seq for store, of in snapshot.positions.items() for life, p in of.items()}
        self.seqs = {at: lives.get(at, 0) for at in self.seqs}

    def _state(self) -> Iterator[str]:
        core = self._core
        tables = tables_of(core.snapshot(), self.files.bucket.read)
        watermark_gaps = [s for s in tables["slices"].to_pylist() if not s["covered"]]
        shown = ", ".join(f"gap {_shown(KeyRange(s['start_key'], s['end_key']))}" for s in watermark_gaps)
        w = core.watermark()
        yield f"watermark {w}" if w is not None else f"watermark none: {shown}"
        for row in tables["waiting"].to_pylist():
            where = _shown(KeyRange(row["start_key"], row["end_key"]))
            yield f"row of region {row['region_id']} {where} waits for {row['checkpoint_ts']}"
        for row in tables["open"].to_pylist():
            yield f"open {_text(row['key'])}@{row['start_ts']} {_value(row)}"
        for row in tables["commits"].to_pylist():
            undecided = ", undecided" if row["asked"] else ""
            yield f"waits {_text(row['key'])}@{row['start_ts']} -> {row['commit_ts']}{undecided}"
        for row in tables["ready"].to_pylist():
            yield f"ready {_text(row['key'])}@{row['start_ts']} -> {row['commit_ts']} {_value(row)}"


def _options(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


def _range(text: str) -> KeyRange:
    start, end = text.strip("[)").split(",")
    return KeyRange(start.encode(), end.encode())


def _shown(range_: KeyRange) -> str:
    return f"[{range_.start.decode()},{range_.end.decode()})"


def _mark(words: list[str]) -> Mark:
    o = _options(words)
    where = _range(words[2])
    return Mark(
        region_id=int(words[1]),
        start=where.start,
        end=where.end,
        checkpoint_ts=int(o["checkpoint"]),
        resolved_ts=int(o["resolved"]),
        version=int(o.get("version", 1)),
        open_ts=int(o.get("open", 1)),
        ready_ts=int(o.get("ready", o.get("open", 1))),
    )


def _row(words: list[str], subscription: int) -> Row:
    o = _options(words)
    plain = [word for word in words[1:] if "=" not in word]
    key, start_ts = plain[0].split("@")
    is_delete = words[0] == "delete" or o.get("op") == "delete"
    value = o.get("value") or (plain[-1] if words[0] in ("prewrite", "committed") else None)
    if words[0] == "fake":
        value = ""
    return Row(
        kind=_KINDS[words[0]],
        key=key.encode(),
        start_ts=int(start_ts),
        commit_ts=int(plain[1]) if words[0] in ("commit", "committed") else 0,
        op=0 if words[0] == "rollback" else DELETE if is_delete else PUT,
        value=None if value is None or is_delete else value.encode(),
        old_value=o["old"].encode() if "old" in o else None,
        generation=int(o.get("gen", 0)),
        subscription=subscription,
    )


def _text(key: object) -> str:
    assert isinstance(key, bytes)
    return key.decode()


def _value(row: dict[str, bytes | int | None]) -> str:
    value = "deleted" if row["op"] == DELETE else f"= {_text(row['value']) or '(empty)'}"
    return value if row["old_value"] is None else f"{value}, was {_text(row['old_value'])}"


def _served(row: Served) -> str:
    shown: dict[str, bytes | int | None] = {"op": row.op, "value": row.value, "old_value": row.old_value}
    return f"{row.commit_ts} {row.key.decode()}@{row.start_ts} {_value(shown)}"
