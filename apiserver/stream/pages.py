"""Cache of pages: followers that want the same page at the same time share it.

Followers woken together at the same position with the same options get one page. Only pages of a known served state are
shared, so each follower gets everything that was served when it asked.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field, fields

from reading.pages.pull import pull
from reading.pages.request import PullAnswer, PullRequest
from reading.served.position import Served
from reading.served.services import Services

_KEPT_BYTES_MAX = 32 << 20
_KEPT_MAX = 256


@dataclass(slots=True)
class _Page:
    lock: threading.Lock = field(default_factory=threading.Lock)
    answer: PullAnswer | None = None


class SharedPages:
    """The newest pages of followers. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pages: OrderedDict[Hashable, _Page] = OrderedDict()
        self._bytes = 0

    def make(self, services: Services, request: PullRequest, served: Served) -> PullAnswer:
        """The page of this served state. The first caller makes it, concurrent callers wait."""
        key = _key(request, served)
        with self._lock:
            page = self._pages.setdefault(key, _Page())
            self._pages.move_to_end(key)
        with page.lock:
            if page.answer is None:
                try:
                    answer = pull(services, request, served)
                except BaseException:
                    self._drop(key, page)
                    raise
                self._keep(key, page, answer)
                return answer
            return page.answer

    def _drop(self, key: Hashable, page: _Page) -> None:
        """Forget a page that could not be made."""
        with self._lock:
            if self._pages.get(key) is page:
                del self._pages[key]

    def _keep(self, key: Hashable, page: _Page, answer: PullAnswer) -> None:
        """Cache the page, unless it was dropped while it was made."""
        with self._lock:
            page.answer = answer
            if self._pages.get(key) is not page:
                return
            self._bytes += answer.content.size
            while len(self._pages) > 1 and (len(self._pages) > _KEPT_MAX or self._bytes > _KEPT_BYTES_MAX):
                _, dropped = self._pages.popitem(last=False)
                self._bytes -= dropped.answer.content.size if dropped.answer is not None else 0


def _key(request: PullRequest, served: Served) -> Hashable:
    """Everything a page depends on."""
    values = tuple(getattr(request, f.name) for f in fields(request) if f.name != "options")
    return values, tuple(sorted(request.options.items())), served.resolved
