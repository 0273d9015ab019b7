"""Write-only, temporary credentials for a store.

Such a writer cannot read back an existing key, so `arrived` checks it by other means. The implementation decides when
to renew credentials; a store asks before each request and caches none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCredentials:
    """Temporary S3 credentials; their repr shows no secret."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False)


class WriteSession(Protocol):
    """Thread-safe."""

    @property
    def kms_key_arn(self) -> str:
        """The key that objects must be encrypted with; empty = the bucket's default."""
        ...

    def credentials(self) -> SessionCredentials:
        """The current credentials, from memory: called within a request."""
        ...

    def arrived(self, key: str, data: bytes | memoryview) -> bool:
        """Whether this existing key holds `data`; False when it no longer exists.

        ObjectConflict: other bytes. StoreUnavailable: unknown now."""
        ...
