"""The loop of one stream: pages as they are served, a watermark at least each second, an end with its reason.

    page -> pieces -> (wait for changes, watermark each second) -> page -> ...

The next page is made only when the socket has taken the one before, so a slow consumer holds one page. Moves of the
watermark without changes for the scope need no catalog read. Retryable errors (catalog or bucket unavailable) keep the
stream open; other errors end it with a problem.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import structlog

from apiserver.compression import Coder
from apiserver.stream.followers import Followers
from apiserver.stream.frames import Frames, Mark
from apiserver.waker import Watch
from reading.pages.request import PullAnswer, PullRequest
from reading.served import position
from reading.served.position import Served
from tistream.errors import BeyondQuarantine, ErrorKind, TiStreamError
from tistream.http import problem

log = structlog.get_logger(__name__)

_RESOLVED_EACH_S = 1.0
_IDLE_MOVES_EACH_S = 0.5  # how often an idle scope's watermark is sent at most
_RETRY_FIRST_S = 0.2
_RETRY_MAX_S = 2.0

T = TypeVar("T")
Piece = bytes | memoryview
Send = Callable[[Piece], Awaitable[None]]
_Start = tuple[bool, tuple[Mark, list[Piece]] | None]  # (has_more, the coded page if it fits)


class StreamLoop:
    """One stream. `send` takes coded bytes and returns when the socket has taken earlier ones."""

    def __init__(
        self,
        followers: Followers,
        request: PullRequest,
        frames: Frames,
        coder: Coder,
        first: PullAnswer,
        send: Send,
        check_key: Callable[[], Awaitable[None]],
        caller: str,
    ) -> None:
        """`first` is the stream's first page, made as of now. `check_key` raises once the consumer's key has ended.
        `caller`: whose pages these are."""
        self._caller = caller
        self._followers, self._frames, self._coder, self._send = followers, frames, coder, send
        self._first: PullAnswer | None = first
        self._check_key = check_key
        self._end_ts = first.end_ts
        end_ts = None if first.end_ts is None else str(first.end_ts)
        self._request = replace(request, start_ts=None, end_ts=end_ts)
        self._loop = asyncio.get_running_loop()
        self._at = first.after
        self._inside = self._start(request, first.after)  # the mark of a page that ended inside a transaction
        self._delivered = self._mark(self._at)
        self._waiting: deque[Piece] = deque()  # coded pieces that the socket has not taken
        self._ended = False
        self._seen = first.resolved_ts
        self._sent_at = 0.0

    @property
    def delivered(self) -> Mark:
        """Everything up to here has been given to the socket."""
        return self._delivered

    @property
    def place(self) -> str:
        """The delivered cursor."""
        return self._delivered.cursor

    async def run(self) -> None:
        """Stream until the end is reached, the process stops, or a permanent error."""
        has_more, start = await self._followers.run(self._begin)
        with self._followers.waker.watching(self._request.scope.tenant) as watch:
            while True:
                if start is None:
                    return await self._last("schema-changed")
                await self._deliver(*start)
                start = None  # release the page while the stream waits
                if self._is_at_end():
                    return await self._last("end-reached")
                try:
                    await self._check_key()
                    served = await self._served_now() if has_more else await self._wait_for_changes(watch)
                    if served is None:
                        return await self._last("end-reached" if self._is_at_end() else "shutdown")
                    has_more, start = await self._retried(
                        partial(self._followers.run_for, self._caller, self._request, self._make, served)
                    )
                except TiStreamError as e:
                    if e.kind not in (ErrorKind.NOT_FOUND, ErrorKind.INVALID):
                        log.error("stream failed", scope=str(self._request.scope), exc_info=e)
                    return await self._last("error", problem.problem_body(e))

    def rest(self, reason: str, body: Mapping[str, object] | None = None) -> bytes:
        """The unsent pieces, and the end of the body with the cursor. Coded pieces cannot be dropped: the end of a
        compressed body depends on them."""
        pieces = [*self._waiting]
        self._waiting.clear()
        if not self._ended:
            self._ended = True
            pieces += [self._coder.push(self._frames.end(reason, self._mark(self._at), body)), self._coder.finish()]
        return b"".join(pieces)

    async def _last(self, reason: str, body: Mapping[str, object] | None = None) -> None:
        self._waiting.append(self.rest(reason, body))
        await self._send_waiting()

    async def _deliver(self, mark: Mark, pieces: Sequence[Piece]) -> None:
        self._waiting += pieces
        self._at, self._inside = mark.ts, mark if mark.open_ts is not None else None
        await self._send_waiting()
        self._delivered, self._sent_at = mark, self._loop.time()

    async def _send_waiting(self) -> None:
        while self._waiting:
            await self._send(self._waiting[0])
            self._waiting.popleft()

    def _begin(self) -> _Start:
        """The start of the body and the first page, which is then released."""
        answer, self._first = self._first, None
        assert answer is not None, "a stream runs once"
        self._waiting.append(self._coder.push(self._frames.begin(answer)))
        return answer.has_more, self._cut(answer)

    def _make(self, served: Served) -> _Start:
        request = replace(self._request, cursor=self._delivered.cursor)
        make = partial(self._followers.pages.make, self._followers.services, request)
        try:
            answer = make(served)
        except BeyondQuarantine:  # a store was quarantined since the state was read
            answer = make(self._followers.services.served(request.scope.tenant))
        return answer.has_more, self._cut(answer)

    def _cut(self, answer: PullAnswer) -> tuple[Mark, list[Piece]] | None:
        """The page as coded pieces; None when it does not fit this stream."""
        if not self._frames.fits(answer):
            return None
        mark = Mark(ts=answer.end, cursor=answer.next_cursor, open_ts=answer.open_ts)
        return mark, [self._coder.push(piece) for piece in self._frames.page(answer, mark)]

    async def _served_now(self) -> Served | None:
        """The served state for the next page of a backlog; None at shutdown."""
        if self._followers.waker.closing:
            return None
        return await self._served_at(self._seen)

    async def _wait_for_changes(self, watch: Watch) -> Served | None:
        """Wait for a served state that may hold changes, sending a watermark each second. None ends the stream."""
        scope = self._request.scope
        while not self._followers.waker.closing:
            left = self._sent_at + _RESOLVED_EACH_S - self._loop.time()
            moved = await watch.moved(self._seen, max(0.0, left))
            if moved is None:
                await self._check_good(watch)
                await self._send_watermark()
                continue
            served = await self._served_at(moved)
            self._seen = served.covers
            if served.resolved <= self._at:
                continue
            if not self._followers.served.is_idle(scope, self._at, served):
                return served
            self._at = served.resolved if self._end_ts is None else min(served.resolved, self._end_ts)
            if self._is_at_end() or self._loop.time() - self._sent_at >= _IDLE_MOVES_EACH_S:
                await self._send_watermark()
            if self._is_at_end():
                return None
        return None

    @staticmethod
    def _start(request: PullRequest, after: int) -> Mark | None:
        """Where the stream begins, if that is inside a transaction."""
        if request.cursor is None or (inside := position.read_cursor(request.cursor, request.scope).inside) is None:
            return None
        return Mark(ts=after, cursor=request.cursor, open_ts=inside.commit_ts)

    def _is_at_end(self) -> bool:
        return self._end_ts is not None and self._at >= self._end_ts

    async def _served_at(self, watermark: int) -> Served:
        """A served state that covers `watermark`; while a store is quarantined the newest, which may not."""
        return await self._retried(partial(self._followers.served_at, self._request.scope.tenant, watermark))

    async def _check_good(self, watch: Watch) -> None:
        """BeyondQuarantine when a quarantined store may still change what was delivered."""
        if watch.good_ts is not None and self._at > watch.good_ts:
            newest = partial(self._followers.served.now, self._request.scope.tenant)
            served = await self._retried(partial(self._followers.run, newest))
            served.check_good(self._at)

    async def _retried(self, run: Callable[[], Awaitable[T]]) -> T:
        """Await `run`. Retryable errors are retried with heartbeats in between. Pages wait for the caller's turn
        (`Followers.run_for`), reads of the catalog do not."""
        pause_s = _RETRY_FIRST_S
        while True:
            try:
                return await run()
            except TiStreamError as e:
                if e.kind is not ErrorKind.RETRY or self._followers.waker.closing:
                    raise
                log.warning("stream retries", scope=str(self._request.scope), cause=str(e))
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _RETRY_MAX_S)
            if self._loop.time() - self._sent_at >= _RESOLVED_EACH_S:
                await self._send_watermark()

    async def _send_watermark(self) -> None:
        await self._check_key()
        mark = self._mark(self._at)
        await self._deliver(mark, [self._coder.push(self._frames.mark(mark))])

    def _mark(self, ts: int) -> Mark:
        if self._inside is not None and self._inside.ts == ts:
            return self._inside  # a cursor at its watermark would deliver the part of the transaction again
        return Mark(ts=ts, cursor=position.encode_cursor(self._request.scope, ts))
