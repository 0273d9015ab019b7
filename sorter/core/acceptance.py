"""Completes rows of an accepted file that contradict a promise: an operator has decided that they belong to the log.

    COMMITTED    complete as sent
    COMMIT       with its prewrite, from this file or the buffer, by the usual rule (`conflicts.matched`)

A row at or below `durable_ts` becomes part of an amendment of the log, which the shell writes. A row above it is ready
like any other, although W may have passed it. Nothing is guessed: RowsNotAcceptable for a commit whose prewrite is not
there, and for a row whose version is known with other bytes. Pure: the buffers only change with `TaskCore.handle`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import polars as pl
import pyarrow as pa

from sorter.core.admission import Buffers, prewrites_of
from sorter.core.conflicts import COMMITS, OPEN, READY, TXN, VERSION, frame_of, matched, merged
from sorter.core.contradictions import outcomes_of
from sorter.core.sort_buffer import SortBuffer
from sorter.rows.batch_rows import Arrivals, empty, from_arrow
from sorter.rows.kernels import I64
from sorter.rows.run import Need
from tistream.errors import RowsNotAcceptable
from tistream.model.change import COMMITTED, RowKind

_ALL = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Accepted:
    """What becomes of the contradicting rows of a file."""

    below: pa.Table  #: for the log, with schema change.COMMITTED, in its order
    above: pl.DataFrame  #: READY: above `durable_ts`


NOTHING = Accepted(COMMITTED.empty_table(), empty(READY))


def needs_of(rows: Arrivals, at: I64, buffers: Buffers) -> list[Need]:
    """What `accept` reads of saved runs and is not loaded. Ask again until it is empty."""
    needles = partial(rows.needles, at, "start_ts")
    needs = buffers.open.needs(needles, "start_ts")
    if needs:
        return needs
    found = buffers.open.find(rows.needles(at, "start_ts"), "start_ts")
    return [need for run, _, _ in found for need in run.missing()]


def accept(rows: Arrivals, at: I64, buffers: Buffers, logged: pa.Table | None, durable_ts: int) -> Accepted:
    """Complete these rows. `logged`: what the log holds of their versions. RowsNotAcceptable as the module says."""
    _refuse_other_bytes(rows, at, buffers, logged)
    sent = outcomes_of(rows, at)
    whole = sent.filter(pl.col("complete")).select(READY.names).unique(maintain_order=True)
    _refuse_first(whole.filter(pl.struct(VERSION).is_duplicated()), "the file holds it with different bytes")
    commits = sent.filter(~pl.col("complete")).join(whole, on=VERSION, how="anti")
    found = pl.concat([whole, _with_prewrites(rows, at, commits, buffers)])
    scratch = SortBuffer()
    scratch.add(found.filter(pl.col("commit_ts") <= durable_ts))
    below = scratch.take(_ALL).table() if scratch.count else COMMITTED.empty_table()
    return Accepted(below, found.filter(pl.col("commit_ts") > durable_ts))


def _with_prewrites(rows: Arrivals, at: I64, commits: pl.DataFrame, buffers: Buffers) -> pl.DataFrame:
    """The rows that these commits committed."""
    if not commits.height:
        return empty(READY)
    named = {"store_id": 0, "incarnation": 0, "seq": 0, "region_id": 0}
    due = commits.sort(pl.col("value").is_null()).unique(VERSION, keep="first", maintain_order=True)
    due = due.with_columns(pl.lit(n, pl.UInt64).alias(name) for name, n in named.items())
    due = due.with_columns(asked=pl.lit(value=False)).select(COMMITS.names)
    needles = rows.needles(at, "start_ts")
    held = [frame_of(run, np.unique(there), OPEN) for run, _, there in buffers.open.find(needles, "start_ts")]
    sent = prewrites_of(rows, rows.of_kind(RowKind.PREWRITE))
    open_ = pl.concat([empty(OPEN), *held, frame_of(sent, np.arange(len(sent)), OPEN)])
    open_ = merged(open_.join(due, on=TXN, how="semi"))
    done, doubtful = matched(due, open_)
    _refuse_first(doubtful, "its prewrite cannot be determined")
    return done


def _refuse_other_bytes(rows: Arrivals, at: I64, buffers: Buffers, logged: pa.Table | None) -> None:
    """The rows are held nowhere with equal bytes; refuse those that are held with others."""
    needles = rows.needles(at, "commit_ts")
    known = buffers.ready.known(needles) | buffers.commits.known(needles, "commit_ts")
    mine = outcomes_of(rows, at)
    _refuse_first(mine.filter(pl.Series(known)), "the task holds this version with different bytes")
    if logged is not None and logged.num_rows:
        held = from_arrow(logged.select(VERSION))
        _refuse_first(mine.join(held, on=VERSION, how="semi"), "the log holds this version with different bytes")


def _refuse_first(rows: pl.DataFrame, why: str) -> None:
    if rows.height:
        first = rows.sort(VERSION).row(0, named=True)
        names = ("key", "start_ts", "commit_ts")
        raise RowsNotAcceptable(
            f"The row of key {first['key'].hex()} with start_ts {first['start_ts']} and commit_ts {first['commit_ts']} "
            f"cannot be merged into the log: {why}.",
            **{name: first[name] for name in names},
            rows=rows.height,
        )
