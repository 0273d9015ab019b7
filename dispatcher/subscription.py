"""One task's open subscription to one store: positions in, FeedBatches out.

Incarnations are served oldest first; each ends before the next begins, which costs little (an old one ends as soon as
its next file is missing) and keeps a sorter's state small. An old incarnation also ends before a file that stays
corrupt or is ahead of the service's time: any contiguous end is safe (see `dispatcher.tail`). The newest incarnation
waits.

`look` never waits, and errors never move the position. Used from one thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pyarrow as pa
import structlog

from dispatcher.cache import DecodedFile
from dispatcher.core.router import route
from dispatcher.tail import Absent, Failed, Found, Pending, Tail
from tistream.errors import AheadOfTime, CorruptObject, TiStreamError
from tistream.feed.protocol import FeedBatch, FeedRequest, NoBatch, Wake
from tistream.ids import Position
from tistream.limits import PREFETCH_FILES_MAX
from tistream.model.change import REGIONS, ROWS
from tistream.model.positions import position_of, without_ended
from tistream.runtime import metrics

log = structlog.get_logger(__name__)

_CORRUPT_TRIES_MAX = 3  # for a file of a superseded incarnation, before the incarnation ends before it
_ROWS_OUT, _BYTES_OUT = metrics.ROWS.labels("dispatcher", "out"), metrics.BYTES.labels("dispatcher", "out")
_NO_ROWS = pa.RecordBatch.from_pylist([], schema=ROWS)
_NO_REGIONS = pa.RecordBatch.from_pylist([], schema=REGIONS)


class Subscription:
    def __init__(
        self,
        tail: Tail,
        request: FeedRequest,
        wake: Wake,
        *,
        check: Callable[[], None],
    ) -> None:
        """`check` raises FeedUnavailable when the store is no longer served here. `wake` is set whenever another `look`
        may find more."""
        self._tail, self._request, self._wake = tail, request, wake
        self.check = check
        self._positions = dict(request.positions)
        self._ahead = 0
        self._open = True
        tail.listen(wake)

    def look(self) -> FeedBatch | NoBatch:
        """The next batch if available, else the current error and when to look again (monotonic seconds).
        FeedUnavailable when the store is no longer served here."""
        self.check()
        return self._step()

    def close(self) -> None:
        if self._open:
            self._open = False
            self._tail.leave(self._wake)

    def _step(self) -> FeedBatch | NoBatch:
        newest = self._tail.newest
        for incarnation in range(min(self._positions, default=1), newest + 1):  # earlier ones have ended
            position = position_of(self._positions, incarnation)
            if position.closed:
                continue
            outcome = self._tail.poll(incarnation, position.seq + 1, self._ahead)
            match outcome:
                case Found(file=file):
                    self._ahead = min(self._ahead * 2 + 1, PREFETCH_FILES_MAX)
                    return self._batch(file)
                case Pending():
                    return None, math.inf
                case Failed(error=error, until=until, tries=tries):
                    if incarnation == newest or not _is_useless(error, tries):
                        return error, until
                    return self._end(incarnation, position.seq, behind=str(error))
                case Absent(until=until, final=final, later=later):
                    self._ahead = 0
                    if not final:
                        return None, until
                    return self._end(incarnation, position.seq, behind=later)
        return None, math.inf

    def _batch(self, file: DecodedFile) -> FeedBatch:
        key, routed = file.key, route(file.directory, self._request.range)
        self._set_position(key.incarnation, Position(seq=key.seq))
        _ROWS_OUT.inc(routed.rows.num_rows)
        batch = FeedBatch(
            store_id=key.store_id,
            incarnation=key.incarnation,
            seq=key.seq,
            cut_ts=file.cut_ts,
            rows=routed.rows,
            regions=routed.regions,
        )
        _BYTES_OUT.inc(batch.nbytes)
        return batch

    def _end(self, incarnation: int, seq: int, *, behind: str) -> FeedBatch:
        if behind:
            log.warning(
                "incarnation ended, files behind its last contiguous one are ignored",
                tenant=str(self._request.tenant),
                store=self._request.store_id,
                incarnation=incarnation,
                seq=seq,
                task=self._request.task_id,
                behind=behind,
            )
        self._set_position(incarnation, Position(seq=seq, closed=True))
        self._tail.end(incarnation, seq)
        return FeedBatch(
            store_id=self._request.store_id,
            incarnation=incarnation,
            seq=seq,
            cut_ts=0,
            rows=_NO_ROWS,
            regions=_NO_REGIONS,
            closes=True,
        )

    def _set_position(self, incarnation: int, at: Position) -> None:
        self._positions = without_ended({**self._positions, incarnation: at})


def _is_useless(error: TiStreamError, tries: int) -> bool:
    """Whether a superseded incarnation ends before the file: its successor sends the same changes again."""
    return isinstance(error, AheadOfTime) or (isinstance(error, CorruptObject) and tries >= _CORRUPT_TRIES_MAX)
