"""What a store is opened with by somebody who may write, and nothing else, and not for long.

Such a writer cannot read back what lies under a key that is taken, so it has somebody who looks for it: `arrived`.
Whoever implements this decides when credentials are renewed; a store asks before each request and remembers none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCredentials:
    """Temporary credentials of S3. Its text shows no secret."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False)


class WriteSession(Protocol):
    """Thread-safe."""

    @property
    def kms_key_arn(self) -> str:
        """What objects must be encrypted with; empty = as the bucket says."""
        ...

    def credentials(self) -> SessionCredentials:
        """What counts now. Answers from memory: it is called within a request."""
        ...

    def arrived(self, key: str, data: bytes | memoryview) -> bool:
        """Whether `data` is under this key, which was taken a moment ago; False when nothing is there any more.

        ObjectConflict: other bytes are. StoreUnavailable: nobody can tell now."""
        ...
