"""What TiStream needs of a KMS: it wraps roots with a key that it never gives away."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tistream.errors import ErrorKind, TiStreamError
from tistream.ids import Tenant

ROOT_BYTES = 32

#: what a wrap is bound to; a KMS records it, and a key's policy may demand it
Context = Mapping[str, str]


class KeyRefused(TiStreamError):
    """The tenant's key is refused by its KMS."""

    kind = ErrorKind.RETRY
    code = "TS-1055"
    hint = "The owner of the key has to grant it again; nothing is lost meanwhile, and everything continues by itself."


class KmsUnavailable(TiStreamError):
    """The KMS does not answer, or not now."""

    kind = ErrorKind.RETRY
    code = "TS-1057"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a KMS has granted."""

    root: bytes = field(repr=False)
    wrapped: bytes
    request_id: str  #: of the KMS's own log; empty where it has none


class Kms(Protocol):
    """One key of a KMS. Errors: KeyRefused, KmsUnavailable. Thread-safe."""

    def generate(self, context: Context) -> Answer:
        """A new root of 32 random bytes, and its wrap."""
        ...

    def wrap(self, root: bytes, context: Context) -> Answer:
        """Wrap a root that another key has wrapped before."""
        ...

    def unwrap(self, wrapped: bytes, context: Context) -> Answer:
        """The root. KeyRefused also for another context, and for what this key has not wrapped."""
        ...


def context_of(deployment: str, tenant: Tenant) -> dict[str, str]:
    """What the wraps of a tenant's roots are bound to."""
    return {"deployment": deployment, "cluster": str(tenant.cluster_id), "tenant": str(tenant.tenant_id)}


def canonical(context: Context) -> bytes:
    """The same bytes for equal contexts."""
    return json.dumps(dict(context), sort_keys=True, separators=(",", ":")).encode("utf-8")
