"""How long an opened root is used, and when the KMS is asked for it.

    ROOT_LIFE_S       from when the granted request began, and no longer
    ROOT_REFRESH_S    after which it is asked for again in the background, if it was used meanwhile

One request at a time. A refusal ends the root at once. After a refusal or a failure the pauses grow, so that neither a
revoked key nor a KMS that is away is asked by every reader; they stay short, so that a grant is noticed by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

ROOT_LIFE_S = 60.0
ROOT_REFRESH_S = 45.0
ROOT_PAUSE_FIRST_S = 1.0
ROOT_PAUSE_MAX_S = 15.0


@dataclass(slots=True)
class RootLife:
    """Of one root in one process. Times are seconds of one monotonic clock."""

    granted_s: float | None = None  #: when the newest granted request began
    used_s: float | None = None
    asked_s: float | None = None  #: when the request that runs now began
    is_void: bool = False  #: the root was forgotten since then: what is granted does not count
    failures: int = 0  #: in a row
    retry_s: float = 0.0  #: not asked before
    refused_s: float | None = None  #: of the first of the refusals in a row

    def is_open(self, now_s: float) -> bool:
        """Whether the root may be used."""
        return self.granted_s is not None and now_s - self.granted_s < ROOT_LIFE_S

    def use(self, now_s: float) -> None:
        """It is wanted, whether it is open or not."""
        self.used_s = now_s

    def may_ask(self, now_s: float) -> bool:
        """Whether a request may begin."""
        return self.asked_s is None and now_s >= self.retry_s

    def wants_refresh(self, now_s: float) -> bool:
        """Whether a request should begin in the background: it is used, and its life is about to end; or it was refused
        or failed, and is still wanted."""
        if not self.may_ask(now_s) or self.is_idle(now_s):
            return False
        if self.granted_s is None or not self.is_open(now_s):
            return self.failures > 0
        return now_s - self.granted_s >= ROOT_REFRESH_S and self.used_s is not None and self.used_s > self.granted_s

    def is_idle(self, now_s: float) -> bool:
        """Whether it was not wanted for so long that it is forgotten."""
        return self.used_s is None or now_s - self.used_s >= ROOT_LIFE_S

    def ask(self, now_s: float) -> None:
        """A request begins."""
        self.asked_s, self.is_void = now_s, False

    def grant(self) -> None:
        """The request was granted: the root lives from when it began."""
        self.granted_s, self.asked_s = self.asked_s, None
        if self.is_void:
            self.granted_s = None
        self.failures, self.retry_s, self.refused_s = 0, 0.0, None

    def forget(self) -> None:
        """The root may not be used until a request that begins later is granted."""
        self.granted_s, self.is_void = None, True

    def refuse(self, now_s: float) -> None:
        """The request was refused: the root may not be used from now on."""
        self.granted_s = None
        self.refused_s = now_s if self.refused_s is None else self.refused_s
        self._fail(now_s)

    def fail(self, now_s: float) -> None:
        """The KMS did not answer, or not now. What was granted lives until its minute ends."""
        self._fail(now_s)

    def _fail(self, now_s: float) -> None:
        self.asked_s = None
        pause_s = min(ROOT_PAUSE_FIRST_S * 2 ** min(self.failures, 10), ROOT_PAUSE_MAX_S)
        self.failures, self.retry_s = self.failures + 1, now_s + pause_s
