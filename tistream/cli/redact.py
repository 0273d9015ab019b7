"""Keeps secrets out of the log: passwords, tokens and signatures become `***`.

Two rules. A field whose name is that of a secret is hidden. In every text, including error messages and traces, secrets
are removed by their place: the password or signature of an address, a bearer token, an access key. Names are matched
whole or by their last word, so `object_key` and `start_key` stay.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from typing import Any

HIDDEN = "***"

_NAMES = re.compile(
    r"(?:.*[_-])?(?:password|passwd|passphrase|secret|token|authorization|cookie|credentials?|"
    r"(?:secret|access|api|private|data)[_-]?(?:access[_-]?)?key(?:[_-]id)?|signature)",
    re.IGNORECASE,
)
_TEXTS = (
    # scheme://user:password@host
    (re.compile(r"(?P<kept>[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s/@]+(?=@)", re.IGNORECASE), rf"\g<kept>{HIDDEN}"),
    # ?X-Amz-Signature=...&token=...
    (
        re.compile(
            r"(?P<kept>[?&;\s\"'](?:X-Amz-(?:Signature|Credential|Security-Token)|Signature|AWSAccessKeyId|"
            r"access_token|token|password|passwd|secret|api_key|apikey)=)[^&;\s\"'#]+",
            re.IGNORECASE,
        ),
        rf"\g<kept>{HIDDEN}",
    ),
    (re.compile(r"(?P<kept>\b(?:Bearer|Basic)\s+)[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE), rf"\g<kept>{HIDDEN}"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), HIDDEN),
    (
        re.compile(
            r"(?P<kept>\baws_(?:secret_access_key|session_token|access_key_id)[\"']?\s*[=:]\s*[\"']?)[^\s\"',}]+",
            re.IGNORECASE,
        ),
        rf"\g<kept>{HIDDEN}",
    ),
)


def without_secrets(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor; the last one before the line is written."""
    return {name: _clean(name, value) for name, value in event.items()}


def clean_text(text: str) -> str:
    """The text without secrets."""
    for pattern, instead in _TEXTS:
        text = pattern.sub(instead, text)
    return text


def _clean(name: str, value: object) -> object:
    if _NAMES.fullmatch(name) and value not in (None, ""):
        return HIDDEN
    match value:
        case str():
            return clean_text(value)
        case Mapping():
            return {key: _clean(str(key), each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_clean("", each) for each in value]
        case bool() | int() | float() | None:
            return value
        case bytes():
            return value.hex()
    return clean_text(str(value))
