"""Issues session credentials of the deployment's pusher role by STS, each for one tenant.

Credentials are neither stored nor logged. Requests are not retried here: the caller retries.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import structlog

from apiserver.control.push_policy import PushTerms, session_policy
from tistream.errors import CredentialsUnavailable
from tistream.ids import Tenant
from tistream.runtime.aws import aws_client

log = structlog.get_logger(__name__)

_CONNECT_S, _READ_S = 2, 2.5  # together below the pusher's timeout
_REGION = "us-east-1"  # when the bucket's address names none, and for other S3 servers


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """Session credentials. `repr` shows no secret."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False)
    expires_at: datetime  #: in UTC


class CredentialIssuer:
    """STS client of one deployment, with the credentials of the environment. Thread-safe."""

    def __init__(
        self, terms: PushTerms, *, duration_s: int, endpoint: str | None = None, region: str | None = None
    ) -> None:
        """`endpoint` of STS; None = AWS in the region."""
        self.terms, self.duration_s = terms, duration_s
        self._endpoint, self._region = endpoint, region or _REGION
        self._lock = threading.Lock()
        self._sts: Any = None

    def issue(self, tenant: Tenant) -> Issued:
        """Credentials for the tenant's folders only. CredentialsUnavailable when STS issues none."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer = self._client().assume_role(
                RoleArn=self.terms.role_arn,
                RoleSessionName=f"tistream-{tenant.cluster_id}-{tenant.tenant_id}",
                DurationSeconds=self.duration_s,
                Policy=session_policy(self.terms, tenant),
            )
        except ClientError as e:
            raise self._refused(tenant, str(e.response.get("Error", {}).get("Code", "an error")), e) from e
        except BotoCoreError as e:
            raise self._refused(tenant, type(e).__name__, e) from e
        credentials = answer["Credentials"]
        expires_at = credentials["Expiration"].astimezone(UTC)
        log.info("session credentials issued", tenant=str(tenant), expires_at=expires_at.isoformat())
        return Issued(
            access_key_id=credentials["AccessKeyId"],
            secret_access_key=credentials["SecretAccessKey"],
            session_token=credentials["SessionToken"],
            expires_at=expires_at,
        )

    def _refused(self, tenant: Tenant, code: str, cause: Exception) -> CredentialsUnavailable:
        """The error for pushers, without the deployment's role and account."""
        log.warning("session credentials refused", tenant=str(tenant), role=self.terms.role_arn, error=str(cause))
        return CredentialsUnavailable(
            f"session credentials for tenant {tenant} could not be issued: STS answered {code}",
            tenant=str(tenant),
            cause=code,
        )

    def _client(self) -> Any:
        with self._lock:
            if self._sts is None:
                self._sts = aws_client(
                    "sts", region=self._region, endpoint=self._endpoint, connect_s=_CONNECT_S, read_s=_READ_S
                )
            return self._sts


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPlace:
    """Where the deployment's pushers write."""

    url: str = "memory://"  #: the bucket's address for pushers
    issuer: CredentialIssuer | None = None  #: of credentials for it; without one pushers use their own
