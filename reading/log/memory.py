"""What reads of the log may hold of a process's memory, by tenant: admitted before bytes are fetched.

    with memory.held(tenant) as part:
        part.take(bytes)        before a page's segments are fetched; more for a larger page

A part that does not fit waits until others are given back, and then ends with ReadsFull. One that is alone always fits,
so a page of any size is read. While a tenant has taken its share, others still have theirs. `in_turn`: a read that
begins waits for those before it that wait, so that a large one gets its turn; else small ones pass it.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tistream.errors import RateLimited, TooLarge
from tistream.ids import Tenant
from tistream.limits import READ_MEMORY_BYTES, READ_WAIT_S_MAX


class ReadsFull(RateLimited):
    """Reads of the log hold the memory of this process that is meant for them."""

    code = "TS-1118"
    hint = "Ask again, or for fewer rows at once; server.read_memory_mib is the bound."


class TransactionTooLarge(TooLarge):
    """One commit_ts holds more than this reader can take at once."""

    code = "TS-1117"
    hint = (
        "Pull it in pages: the cursor of GET .../changes continues inside such a transaction. A changefeed takes a "
        "quarter of its worker's replication.memory_mib in one transaction."
    )


class ReadMemory:
    """The memory for reads of one process. Safe to use from several threads."""

    def __init__(
        self, size: int = READ_MEMORY_BYTES, *, wait_s: float = READ_WAIT_S_MAX, in_turn: bool = False
    ) -> None:
        """`size` in bytes; half of it for one tenant. `wait_s`: the longest wait for a part. `in_turn`: see above."""
        self.size, self._share, self._wait_s, self._in_turn = size, size // 2, wait_s, in_turn
        self._given_back = threading.Condition()
        self._of: Counter[Tenant] = Counter()
        self._waiting: list[tuple[Tenant, int]] = []  # reads that have nothing yet, in their order

    @contextmanager
    def held(self, tenant: Tenant) -> Iterator[Held]:
        """What one read holds, nothing at first, which is given back at the end."""
        part = Held(self, tenant)
        try:
            yield part
        finally:
            self._give_back(tenant, part.bytes)

    @property
    def taken(self) -> int:
        """Bytes that are taken now."""
        with self._given_back:
            return self._of.total()

    def _take(self, tenant: Tenant, own: int, more: int) -> None:
        place = tenant, more

        def may_begin() -> bool:
            before = itertools.takewhile(lambda other: other is not place, self._waiting)
            return bool(own) or not self._in_turn or not any(self._in_share(each, 0, size) for each, size in before)

        with self._given_back:
            if not own:
                self._waiting.append(place)
            try:
                if not self._given_back.wait_for(lambda: may_begin() and self._fits(tenant, own, more), self._wait_s):
                    raise self._full(tenant, more)
                self._of[tenant] += more
            finally:
                if not own:
                    self._waiting[:] = [each for each in self._waiting if each is not place]
                    self._given_back.notify_all()

    def _fits(self, tenant: Tenant, own: int, more: int) -> bool:
        whole = self._of.total()
        return whole == own or (whole + more <= self.size and self._in_share(tenant, own, more))

    def _in_share(self, tenant: Tenant, own: int, more: int) -> bool:
        return self._of[tenant] == own or self._of[tenant] + more <= self._share

    def _full(self, tenant: Tenant, more: int) -> ReadsFull:
        return ReadsFull(
            f"Other reads hold {self._of.total()} of {self.size} bytes, and this one needs {more} more.",
            tenant=str(tenant),
            bytes=more,
            tenant_bytes=self._of[tenant],
        )

    def _give_back(self, tenant: Tenant, size: int) -> None:
        with self._given_back:
            self._of[tenant] -= size
            if not self._of[tenant]:
                del self._of[tenant]
            self._given_back.notify_all()


class Held:
    """What one read holds."""

    def __init__(self, memory: ReadMemory, tenant: Tenant, outer: Held | None = None) -> None:
        """`outer`: what this is a part of."""
        self._memory, self._tenant, self._outer = memory, tenant, outer
        self.bytes = 0

    def take(self, size: int) -> None:
        """Hold at least `size` bytes. Waits; ReadsFull after the longest wait."""
        if size > self.bytes:
            self.add(size - self.bytes)

    def add(self, size: int) -> None:
        """Hold `size` bytes more. Waits as `take` does."""
        *_, whole = self._chain()
        self._memory._take(self._tenant, whole.bytes, size)
        for each in self._chain():
            each.bytes += size

    def drop(self, size: int) -> None:
        """Give `size` of the bytes back."""
        self._memory._give_back(self._tenant, size)
        for each in self._chain():
            each.bytes -= size

    @contextmanager
    def part(self) -> Iterator[Held]:
        """A part of it, nothing at first, which is given back at the end."""
        own = Held(self._memory, self._tenant, self)
        try:
            yield own
        finally:
            own.drop(own.bytes)

    def _chain(self) -> Iterator[Held]:
        each: Held | None = self
        while each is not None:
            yield each
            each = each._outer
