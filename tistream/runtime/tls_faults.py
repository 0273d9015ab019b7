"""What went wrong when a client and a service agreed on TLS (pure)."""

from __future__ import annotations

import ssl

from tistream.errors import ErrorKind, InvalidInput, TiStreamError


class CertificateRefused(InvalidInput):
    """The TLS certificates of a service and its client do not fit."""

    code = "TS-1096"
    hint = (
        "Name the CA of the service's certificate: the option ca, or TISTREAM_CA. The certificate must have the host of"
        " the address. A client's certificate must be of the service's tls.client_ca."
    )


class CertificateNotRead(TiStreamError):
    """The files of a certificate have changed and cannot be used; what was read before stays in use."""

    kind = ErrorKind.RETRY
    code = "TS-1098"
    hint = "Write a certificate and its key that belong together; they are read again within seconds."


def refusal(error: BaseException) -> ssl.SSLError | None:
    """The fault of certificates or of TLS itself that is behind an error of an HTTP client; None: another fault."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return cause
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return None


def words_of(fault: ssl.SSLError) -> str:
    """What a fault of TLS means for who connects."""
    if isinstance(fault, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {fault.verify_message}"
    reason = fault.reason or ""
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
        return "it does not speak TLS: its address begins with http://"
    if "ALERT" in reason:
        return f"it refused this client's certificate or TLS version: {reason.lower().replace('_', ' ')}"
    return f"TLS failed: {reason.lower().replace('_', ' ') or fault}"
