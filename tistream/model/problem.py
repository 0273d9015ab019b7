"""A present error that an operator should see, as parts of a process report it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tistream.errors import TiStreamError


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A present error that an operator should see."""

    source: str  #: the reporting part, for example "dispatcher-1/refresh"
    code: str
    message: str
    facts: Mapping[str, object] = field(default_factory=dict)
    fatal: bool = False  #: the part has stopped; unless `contained`, it does not retry
    contained: bool = False  #: one of many items has stopped; the process and other items continue

    @classmethod
    def of(cls, source: str, error: BaseException, *, fatal: bool = False, contained: bool = False) -> Problem:
        """Convert an error."""
        code, message, facts = TiStreamError.code, f"{type(error).__name__}: {error}", dict[str, object]()
        if isinstance(error, TiStreamError):
            code, message, facts = error.code, error.message, dict(error.facts)
        return cls(source=source, code=code, message=message, facts=facts, fatal=fatal, contained=contained)

    @property
    def ends_process(self) -> bool:
        """Whether the process must be restarted."""
        return self.fatal and not self.contained

    def shown(self) -> dict[str, object]:
        """As a JSON object for display."""
        facts = {k: v.hex() if isinstance(v, bytes) else str(v) for k, v in self.facts.items()}
        return {
            "source": self.source,
            "code": self.code,
            "message": self.message,
            "fatal": self.fatal,
            "contained": self.contained,
            "facts": facts,
        }
