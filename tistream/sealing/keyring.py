"""The opened roots of one process: each lives for a minute at most, and the KMS is asked for it once a minute.

    root(tenant, root_no)   within its life at once; else one request, for which all callers wait
    refresh()               the step of a background thread: asks before a life ends, drops what has ended

Roots are in memory only, and in no message, log or error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from tistream.clock import Clock
from tistream.errors import CorruptObject, TiStreamError
from tistream.ids import Tenant
from tistream.sealing.core.lifetimes import RootLife
from tistream.sealing.kms.protocol import Answer, KeyRefused, KmsUnavailable

log = structlog.get_logger(__name__)

_WAIT_S = 10.0  # longer than a request to the KMS takes at most
_RootId = tuple[Tenant, int]


@dataclass(slots=True)
class _Entry:
    life: RootLife = field(default_factory=RootLife)
    root: bytes | None = field(default=None, repr=False)
    error: TiStreamError | None = None  #: of the last request, until one is granted


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A tenant whose key is refused."""

    since_s: float  #: by the process's monotonic clock
    error: KeyRefused


class Keyring:
    """Thread-safe."""

    def __init__(self, unwrap: Callable[[Tenant, int], Answer], clock: Clock) -> None:
        """`unwrap` asks the tenant's KMS for a root. KeyRefused, KmsUnavailable; also another TiStreamError, as of the
        catalog that has the wrap."""
        self._unwrap, self._clock = unwrap, clock
        self._changed = threading.Condition()
        self._entries: dict[_RootId, _Entry] = {}

    def root(self, tenant: Tenant, root_no: int) -> bytes:
        """The opened root. KeyRefused while it is refused; KmsUnavailable when its life has ended and the KMS is
        away; CorruptObject when its wrap is damaged."""
        of, deadline_s = (tenant, root_no), self._clock.monotonic() + _WAIT_S
        while True:
            with self._changed:
                now_s = self._clock.monotonic()
                entry = self._entries.setdefault(of, _Entry())
                entry.life.use(now_s)
                if entry.root is not None and entry.life.is_open(now_s):
                    return entry.root
                entry.root = None
                if entry.life.asked_s is not None:
                    if now_s >= deadline_s:
                        raise KmsUnavailable("a request to the KMS takes long", tenant=str(tenant))
                    self._changed.wait(deadline_s - now_s)
                    continue
                if entry.error is not None and not entry.life.may_ask(now_s):
                    raise _again(entry.error)
                entry.life.ask(now_s)
            self._ask(of, entry)

    def refresh(self) -> None:
        """Ask again for roots whose life is about to end or that were not granted, drop those whose life has ended, and
        forget those that are not used. A defect in asking ends the step; the next one continues with the others."""
        with self._changed:
            now_s = self._clock.monotonic()
            due = []
            for of, entry in list(self._entries.items()):
                if not entry.life.is_open(now_s):
                    entry.root = None
                if entry.life.is_idle(now_s) and entry.life.asked_s is None:
                    del self._entries[of]
                elif entry.life.wants_refresh(now_s):
                    due.append((of, entry))
        for of, entry in due:
            # Its request begins only now: while another tenant's KMS was slow, a caller may have asked by itself.
            with self._changed:
                now_s = self._clock.monotonic()
                if not entry.life.wants_refresh(now_s):
                    continue
                entry.life.ask(now_s)
            self._ask(of, entry)

    def refused(self) -> dict[Tenant, Refusal]:
        """The tenants whose key is refused."""
        refusals: dict[Tenant, Refusal] = {}
        with self._changed:
            for (tenant, _), entry in self._entries.items():
                if entry.life.refused_s is not None and isinstance(entry.error, KeyRefused):
                    refusals[tenant] = Refusal(since_s=entry.life.refused_s, error=entry.error)
        return refusals

    def forget(self, tenant: Tenant) -> None:
        """Drop a tenant's roots, as when another process was refused: the next use asks the KMS. A request that runs
        now opens nothing."""
        with self._changed:
            for of, entry in self._entries.items():
                if of[0] == tenant:
                    entry.root = None
                    entry.life.forget()

    def _ask(self, of: _RootId, entry: _Entry) -> None:
        """Ask the KMS; the caller has begun the request in the entry's life."""
        answer, error = None, None
        try:
            answer = self._unwrap(*of)
        except TiStreamError as e:
            error = e
        except BaseException as e:
            self._settle(entry, None, KmsUnavailable("asking the KMS failed by a defect", cause=type(e).__name__))
            raise
        self._settle(entry, answer, error)
        facts = {"tenant": str(of[0]), "root": of[1]}
        if answer is not None:
            log.debug("root opened", **facts, request_id=answer.request_id)
        elif error is not None:
            log.warning("root not opened", **facts, error=str(error))

    def _settle(self, entry: _Entry, answer: Answer | None, error: TiStreamError | None) -> None:
        with self._changed:
            now_s = self._clock.monotonic()
            if answer is not None:
                entry.life.grant()
                entry.root, entry.error = None if entry.life.is_void else answer.root, None
            elif isinstance(error, KeyRefused):
                entry.life.refuse(now_s)
                entry.root, entry.error = None, error
            else:
                entry.life.fail(now_s)
                entry.error = error
            self._changed.notify_all()


def _again(error: TiStreamError) -> TiStreamError:
    """The error for another caller, with a traceback of its own."""
    kinds = (KeyRefused, CorruptObject)  # a damaged wrap is neither a refusal nor an outage
    kind = next((kind for kind in kinds if isinstance(error, kind)), KmsUnavailable)
    return kind(error.message, **error.facts)
